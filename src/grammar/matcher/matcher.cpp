#include "grammar/matcher/matcher.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace lfm2::grammar {

Matcher::Matcher(std::shared_ptr<CompiledGrammar> grammar, std::vector<TokenId> ends)
    : grammar_(std::move(grammar)), ends_(std::move(ends)) {
  std::erase_if(ends_, [&](TokenId id) { return id < 0 || static_cast<size_t>(id) >= grammar_->tokens().size(); });
  const std::lock_guard lock(grammar_->mutex_);
  state_ = grammar_->states_.start();
  generation_ = grammar_->generation_;
}

template <class Work>
auto Matcher::locked(const Work& work) {
  const std::lock_guard lock(grammar_->mutex_);
  Expressions& expressions = grammar_->grammar_.expressions();
  grammar_->make_room();
  for (bool is_again = false;; is_again = true) {
    try {
      if (generation_ != grammar_->generation_) replay();
      expressions.refuel(expressions.limits().mask_steps);
      return work();
    } catch (const Refusal& refusal) {
      // Other texts may have filled the memory, and a call that failed must not help those that follow.
      const bool is_full = expressions.is_full();
      grammar_->forget();
      if (is_again || !is_full) throw OutOfFuel(refusal.what());
    }
  }
}

// The states were forgotten: those of this text are found again.
void Matcher::replay() {
  StateId state = grammar_->states_.start();
  for (Taken& one : taken_) {
    one.before = state;
    grammar_->grammar_.expressions().refuel(grammar_->grammar_.limits().mask_steps);
    if (!is_end(one.token))
      state = one.token == kNoToken ? after_bytes(state, one.bytes) : after_token(state, one.token);
  }
  state_ = state;
  generation_ = grammar_->generation_;
}

StateId Matcher::after_bytes(StateId state, std::string_view bytes) {
  for (const char byte : bytes) {
    if (state == MatcherStates::kDead) break;
    state = grammar_->states_.next(state, static_cast<uint8_t>(byte));
  }
  return state;
}

StateId Matcher::after_token(StateId state, TokenId token) {
  const std::string_view bytes = grammar_->tokens().bytes(token);
  return bytes.empty() ? grammar_->states_.next_token(state, token) : after_bytes(state, bytes);
}

bool Matcher::is_end(TokenId token) const { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); }

bool Matcher::take(TokenId token) {
  if (ended_) return false;
  if (is_end(token)) {
    if (!may_end()) return false;
    taken_.push_back({state_, token, {}});
    return ended_ = true;
  }
  return locked([&] {
    const StateId to = after_token(state_, token);
    if (to == MatcherStates::kDead) return false;
    taken_.push_back({state_, token, {}});
    state_ = to;
    return true;
  });
}

bool Matcher::take_bytes(std::string_view bytes) {
  if (ended_) return false;
  return locked([&] {
    const StateId to = after_bytes(state_, bytes);
    if (to == MatcherStates::kDead) return false;
    taken_.push_back({state_, kNoToken, std::string(bytes)});
    state_ = to;
    return true;
  });
}

void Matcher::undo(size_t tokens) {
  expect(tokens <= taken_.size(), "more tokens are undone than were taken");
  if (tokens == 0) return;
  state_ = taken_[taken_.size() - tokens].before;
  taken_.resize(taken_.size() - tokens);
  ended_ = false;
}

bool Matcher::may_end() {
  return !ended_ && locked([&] { return grammar_->states_.may_end(state_); });
}

bool Matcher::must_end() {
  return !ended_ && locked([&] {
    MatcherStates& states = grammar_->states_;
    if (!states.may_end(state_)) return false;
    const auto token = [&](uint32_t i) { return states.place(state_, i).kind == MatcherStates::Place::Kind::kToken; };
    for (uint32_t i = 0; i < states.places(state_); ++i)
      if (token(i)) return false;
    return states.first(state_).none();
  });
}

void Matcher::mask(std::span<uint32_t> words) {
  std::fill(words.begin(), words.end(), 0);
  if (ended_) return;
  locked([&] {
    grammar_->masks_.write(state_, words);
    if (!grammar_->states_.may_end(state_)) return;
    for (const TokenId id : ends_) words[static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
  });
}

}  // namespace lfm2::grammar
