#include "grammar/matcher/token_mask.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace lfm2::grammar {
namespace {

// A longer list is larger and slower than a mask of 64 Ki bits.
constexpr size_t kMaxListed = 256;

// Work of one search that may spare the walk over a slice, which costs up to 100,000 steps.
constexpr uint64_t kMaxSearchSteps = 20'000;

void set_bit(std::span<uint32_t> words, TokenId id) {
  words[static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
}

void set_bits(std::span<uint32_t> words, std::span<const uint32_t> more) {
  for (size_t i = 0; i < words.size(); ++i) words[i] |= more[i];
}

// One character of the language, in UTF-8.
Expr character(const SliceLanguage& language, Expressions& expressions) {
  const auto range = [&](unsigned first, unsigned last) {
    ByteSet set;
    for (unsigned byte = first; byte <= last; ++byte) set.set(byte);
    return expressions.bytes(set);
  };
  ByteSet ascii;
  for (size_t i = 0; i < 128; ++i) ascii[i] = language.ascii[i];
  if (!language.beyond_ascii) return expressions.bytes(ascii);
  const Expr tail = range(0x80, 0xbf);
  return expressions.either({expressions.bytes(ascii), expressions.concat({range(0xc2, 0xdf), tail}),
                             expressions.concat({range(0xe0, 0xe0), range(0xa0, 0xbf), tail}),
                             expressions.concat({range(0xe1, 0xec), tail, tail}),
                             expressions.concat({range(0xed, 0xed), range(0x80, 0x9f), tail}),
                             expressions.concat({range(0xee, 0xef), tail, tail}),
                             expressions.concat({range(0xf0, 0xf0), range(0x90, 0xbf), tail, tail}),
                             expressions.concat({range(0xf1, 0xf3), tail, tail, tail}),
                             expressions.concat({range(0xf4, 0xf4), range(0x80, 0x8f), tail, tail})});
}

}  // namespace

TokenMasks::TokenMasks(Grammar& grammar, MatcherStates& states, const TokenTable& tokens)
    : grammar_(grammar),
      states_(states),
      tokens_(tokens),
      languages_(tokens.slices().size()),
      expression_path_(TokenTrie::kMaxBytes + 1),
      state_path_(TokenTrie::kMaxBytes + 1) {}

void TokenMasks::forget() {
  std::fill(languages_.begin(), languages_.end(), std::nullopt);
  inner_.clear();
  state_masks_.clear();
  memory_ = 0;
}

const TokenTrie& TokenMasks::trie(size_t index) const {
  return index < tokens_.slices().size() ? tokens_.slices()[index].trie : tokens_.rest();
}

void TokenMasks::charge(uint64_t visits) {
  if (visits > fuel_)
    throw OutOfFuel(
        fmt::format("the tokens that may come next are found in more than {} steps", grammar_.limits().mask_fuel));
  fuel_ -= visits;
}

void TokenMasks::write(StateId state, std::span<uint32_t> words) {
  expect(words.size() == tokens_.mask_words(), "a mask has other words than the vocabulary");
  if (memory_ > grammar_.limits().max_mask_bytes) forget();  // masks are made again where they are wanted
  const auto [mask, first_time] = state_masks_.try_emplace(state);
  if (!mask->second.words.empty()) {
    std::copy(mask->second.words.begin(), mask->second.words.end(), words.begin());
    return;
  }
  if (first_time) memory_ += sizeof(StateMask);
  compute(state, words);
  // Most states of a text are met once.
  if (first_time) return;
  mask->second.words.assign(words.begin(), words.end());
  memory_ += words.size_bytes();
}

void TokenMasks::compute(StateId state, std::span<uint32_t> words) {
  fuel_ = grammar_.limits().mask_fuel;
  std::fill(words.begin(), words.end(), 0);
  const Inner* last = nullptr;  // places with the same expression are neighbours
  for (uint32_t i = 0; i < states_.places(state); ++i) {
    const MatcherStates::Place place = states_.place(state, i);
    if (place.kind == MatcherStates::Place::Kind::kEnd) break;
    if (place.kind == MatcherStates::Place::Kind::kToken) {
      if (place.value < tokens_.size()) set_bit(words, static_cast<TokenId>(place.value));
      continue;
    }
    const Inner& found = inner(static_cast<Expr>(place.value));
    charge(1 + (&found == last ? 0 : found.visits));
    if (&found != last) {
      if (!found.words.empty()) set_bits(words, found.words);
      for (const TokenId id : found.ids) set_bit(words, id);
    }
    last = &found;
    if (found.exits.empty()) continue;
    const StateId after = states_.after(place.frame);
    const ByteSet first = states_.first(after);
    if (first.none()) continue;
    for (const Exit& exit : found.exits) walk_exit(exit, after, first, words);
  }
}

const TokenMasks::Inner& TokenMasks::inner(Expr expression) {
  const auto known = inner_.find(static_cast<uint32_t>(expression));
  if (known != inner_.end()) return known->second;
  Inner made;
  const size_t slices = tokens_.slices().size();
  for (uint32_t i = 0; i < slices; ++i) {
    if (!takes_whole(expression, i)) {
      walk_inner(expression, i, made);
      continue;
    }
    made.words.resize(tokens_.mask_words());
    set_bits(made.words, tokens_.slices()[i].mask);
  }
  walk_inner(expression, static_cast<uint32_t>(slices), made);
  if (made.ids.size() > kMaxListed || !made.words.empty()) {
    made.words.resize(tokens_.mask_words());
    for (const TokenId id : made.ids) set_bit(made.words, id);
    made.ids = {};
  }
  memory_ += sizeof(Inner) + made.ids.size() * sizeof(TokenId) + made.words.size() * sizeof(uint32_t) +
             made.exits.size() * sizeof(Exit);
  return inner_.emplace(static_cast<uint32_t>(expression), std::move(made)).first->second;
}

bool TokenMasks::takes_whole(Expr expression, size_t slice) {
  const TokenTable::Slice& of = tokens_.slices()[slice];
  const ByteSet& first = states_.first(expression);
  for (size_t i = 0; i < 128; ++i)
    if (of.language.ascii[i] && !first[i]) return false;
  if (of.language.beyond_ascii && !first[0xe2]) return false;
  Expressions& expressions = grammar_.expressions();
  if (!languages_[slice]) {
    const auto most = static_cast<uint32_t>(of.trie.max_depth());
    languages_[slice] = expressions.repeat(character(of.language, expressions), 1, most);
  }
  const uint64_t steps = expressions.steps_left(), search_steps = std::min(steps, kMaxSearchSteps);
  expressions.refuel(search_steps);
  bool whole = false;
  try {
    whole = expressions.begins(expression, *languages_[slice]);
  } catch (const Refusal&) {  // too much work: the walk says the same
  }
  expressions.refuel(steps - (search_steps - expressions.steps_left()));
  return whole;
}

void TokenMasks::walk_inner(Expr expression, uint32_t index, Inner& inner) {
  Expressions& expressions = grammar_.expressions();
  const TokenTrie& tokens = trie(index);
  const std::span<const TokenTrie::Node> nodes = tokens.nodes();
  const ByteSet& first = states_.first(expression);
  expression_path_[0] = expression;
  for (size_t byte = first._Find_first(); byte < 256; byte = first._Find_next(byte)) {
    uint32_t node = tokens.first(static_cast<uint8_t>(byte));
    const uint32_t end = nodes[node].after;
    while (node < end) {
      ++inner.visits;
      const uint8_t depth = nodes[node].depth;
      const Expr rest = expressions.derivative(expression_path_[depth - 1u], nodes[node].byte);
      if (rest == expressions.nothing() || !expressions.possible(rest)) {
        node = nodes[node].after;
        continue;
      }
      expression_path_[depth] = rest;
      const auto ids = tokens.ids(node);
      inner.ids.insert(inner.ids.end(), ids.begin(), ids.end());
      if (nodes[node].after > node + 1 && expressions.nullable(rest)) inner.exits.push_back({index, node});
      ++node;
    }
  }
}

void TokenMasks::walk_exit(const Exit& exit, StateId state, const ByteSet& first, std::span<uint32_t> words) {
  const TokenTrie& tokens = trie(exit.trie);
  const std::span<const TokenTrie::Node> nodes = tokens.nodes();
  const uint8_t top = nodes[exit.node].depth;
  const uint32_t end = nodes[exit.node].after;
  state_path_[top] = state;
  uint64_t visits = 0;
  for (uint32_t node = exit.node + 1; node < end;) {
    ++visits;
    const auto [after, first_id, byte, depth] = nodes[node];
    if (depth == top + 1 && !first[byte]) {
      node = after;
      continue;
    }
    const StateId to = states_.next(state_path_[depth - 1u], byte);
    if (to == MatcherStates::kDead) {
      node = after;
      continue;
    }
    state_path_[depth] = to;
    visits += states_.places(to);
    for (const TokenId id : tokens.ids(node)) set_bit(words, id);
    ++node;
  }
  charge(visits);
}

}  // namespace lfm2::grammar
