#include "grammar/matcher/matcher_states.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace lfm2::grammar {
namespace {

// Configurations that one closure may follow: several for each of Limits::max_places.
constexpr size_t kMaxVisits = 1 << 16;
constexpr uint32_t kTargetUnknown = UINT32_MAX;

// A place in 64 bits: kind, value, frame. The order of the numbers is the order of a state's places.
constexpr uint64_t pack(MatcherStates::Place::Kind kind, uint32_t value, FrameId frame) {
  return static_cast<uint64_t>(kind) << 62 | static_cast<uint64_t>(value) << 32 | frame;
}

MatcherStates::Place unpack(uint64_t place) {
  return {static_cast<MatcherStates::Place::Kind>(place >> 62), static_cast<uint32_t>(place >> 32) & 0x3fffffffu,
          static_cast<FrameId>(place)};
}

uint64_t hash_of(uint32_t a, uint32_t b, uint32_t c) {
  return mix_bits(mix_bits(static_cast<uint64_t>(a) << 32 | b) + c);
}

}  // namespace

MatcherStates::MatcherStates(Grammar& grammar) : grammar_(grammar) {
  expect(grammar.finished(), "a grammar is matched before it is finished");
  clear();
}

void MatcherStates::clear() {
  frames_ = {{0, 0, kBottom}};
  frame_index_.clear();
  states_ = {State{}};
  places_.clear();
  state_index_.clear();
  tables_.clear();
  after_.clear();
  first_.clear();
  states_[kDead].table = kNone;
  begin();
  call(grammar_.start(), 0, kBottom);
  close();
  start_ = state(closure_.places);
}

size_t MatcherStates::memory() const {
  return frames_.size() * sizeof(Frame) + states_.size() * sizeof(State) + places_.size() * sizeof(PackedPlace) +
         tables_.size() * sizeof(Table) + after_.size() * sizeof(StateId) + frame_index_.memory() +
         state_index_.memory() + first_.size() * 2 * sizeof(ByteSet);
}

MatcherStates::Place MatcherStates::place(StateId state, uint32_t index) const {
  return unpack(places_[states_[state].begin + index]);
}

// ---- Steps ----

StateId MatcherStates::next(StateId from, uint8_t byte) {
  const State& state = states_[from];
  if (state.table != kNone) {
    const StateId to = (*tables_[state.table])[byte];
    if (to != kTargetUnknown) return to;
  } else {
    for (uint32_t i = 0; i < state.known; ++i)
      if (state.bytes[i] == byte) return state.targets[i];
  }
  const StateId to = compute(from, byte);
  remember(from, byte, to);
  return to;
}

void MatcherStates::remember(StateId from, uint8_t byte, StateId to) {
  State& state = states_[from];
  if (state.table == kNone) {
    if (state.known < state.bytes.size()) {
      state.bytes[state.known] = byte;
      state.targets[state.known++] = to;
      return;
    }
    state.table = static_cast<uint32_t>(tables_.size());
    tables_.push_back(std::make_unique<Table>());
    tables_.back()->fill(kTargetUnknown);
    for (uint32_t i = 0; i < state.known; ++i) (*tables_.back())[state.bytes[i]] = state.targets[i];
  }
  (*tables_[state.table])[byte] = to;
}

StateId MatcherStates::compute(StateId from, uint8_t byte) {
  Expressions& expressions = grammar_.expressions();
  begin();
  const uint32_t first = states_[from].begin, end = first + states_[from].count;
  for (uint32_t i = first; i < end; ++i) {
    const Place place = unpack(places_[i]);
    if (place.kind != Place::Kind::kText) break;
    const Expr rest = expressions.derivative(static_cast<Expr>(place.value), byte);
    if (!expressions.possible(rest)) continue;
    // A place may stay in its expression, and leave it where that may end.
    if (rest != expressions.empty()) add(Place::Kind::kText, static_cast<uint32_t>(rest), place.frame);
    if (expressions.nullable(rest)) resume(place.frame);
  }
  close();
  return state(closure_.places);
}

StateId MatcherStates::next_token(StateId from, TokenId token) {
  begin();
  for (uint32_t i = 0; i < states_[from].count; ++i) {
    const Place at = place(from, i);
    if (at.kind == Place::Kind::kToken && static_cast<TokenId>(at.value) == token) resume(at.frame);
  }
  close();
  return state(closure_.places);
}

StateId MatcherStates::after(FrameId frame) {
  if (after_.size() < frames_.size()) after_.resize(frames_.size(), kNone);
  if (after_[frame] == kNone) {
    begin();
    resume(frame);
    close();
    const StateId found = state(closure_.places);
    after_[frame] = found;
  }
  return after_[frame];
}

ByteSet MatcherStates::first(StateId state) {
  ByteSet bytes;
  for (uint32_t i = 0; i < states_[state].count; ++i) {
    const Place at = place(state, i);
    if (at.kind != Place::Kind::kText) break;
    bytes |= first(static_cast<Expr>(at.value));
  }
  return bytes;
}

const ByteSet& MatcherStates::first(Expr expression) {
  if (const auto known = first_.find(static_cast<uint32_t>(expression)); known != first_.end()) return known->second;
  Expressions& expressions = grammar_.expressions();
  ByteSet bytes = expressions.first(expression);  // a superset
  for (size_t byte = bytes._Find_first(); byte < 256; byte = bytes._Find_next(byte))
    if (!expressions.possible(expressions.derivative(expression, static_cast<uint8_t>(byte)))) bytes.reset(byte);
  return first_.emplace(static_cast<uint32_t>(expression), bytes).first->second;
}

// ---- Closures: what can be reached without a byte ----

void MatcherStates::begin() {
  closure_.visited.clear();
  closure_.index.clear();
  closure_.places.clear();
}

void MatcherStates::add(Place::Kind kind, uint32_t value, FrameId frame) {
  closure_.places.push_back(pack(kind, value, frame));
}

// Whether this is the first visit of a closure to a configuration, which it is no longer then.
bool MatcherStates::visit_first(uint32_t step, FrameId top) {
  const auto next = static_cast<uint32_t>(closure_.visited.size());
  const auto same = [&](uint32_t i) { return closure_.visited[i].step == step && closure_.visited[i].top == top; };
  if (closure_.index.find_or_add(hash_of(step, top, 0), next, same) != next) return false;
  if (closure_.visited.size() == kMaxVisits)
    throw OutOfFuel(
        fmt::format("the grammar offers more than {} ways to continue at one place of the text", kMaxVisits));
  closure_.visited.push_back({step, top});
  return true;
}

// Continues the sequence of the top frame.
void MatcherStates::resume(FrameId frame) {
  if (frame == kBottom)
    add(Place::Kind::kEnd, 0, kBottom);
  else
    visit_first(frames_[frame].step, frames_[frame].parent);
}

// `top` is the frame to which a sequence returns at its end.
void MatcherStates::close() {
  using Kind = Grammar::Step::Kind;
  const std::vector<Grammar::Step>& steps = grammar_.steps();
  for (size_t i = 0; i < closure_.visited.size(); ++i) {
    const auto [at, top] = closure_.visited[i];
    const Grammar::Step step = steps[at];
    // What stands last in its sequence returns where the sequence does, so it needs no frame.
    const auto pushed = [&, at = at, top = top] {
      return steps[at + 1].kind == Kind::kEnd ? top : frame({at + 1, 0, top});
    };
    switch (step.kind) {
      case Kind::kText: {
        const auto expression = static_cast<Expr>(step.value);
        const FrameId after = pushed();
        if (expression != grammar_.expressions().empty()) add(Place::Kind::kText, step.value, after);
        if (grammar_.expressions().nullable(expression)) resume(after);
        break;
      }
      case Kind::kToken:
        add(Place::Kind::kToken, step.value, pushed());
        break;
      case Kind::kCall:
        call(step.value, at + 1, top);
        break;
      case Kind::kEnd:
        resume(top);
        break;
      case Kind::kItemEnd:
        end_item(step.value, top);
        break;
      case Kind::kSeparatorEnd:
        end_separator(step.value, top);
        break;
    }
  }
}

void MatcherStates::call(uint32_t index, uint32_t return_step, FrameId top) {
  const Grammar::Rule& rule = grammar_.rule(index);
  if (rule.kind == Grammar::Rule::Kind::kAlternatives) {
    const bool last = grammar_.steps()[return_step].kind == Grammar::Step::Kind::kEnd;
    const FrameId after = last ? top : frame({return_step, 0, top});
    for (const uint32_t start : rule.starts) visit_first(start, after);
    return;
  }
  if (rule.min == 0) visit_first(return_step, top);
  if (rule.max > 0) visit_first(rule.starts[0], frame({return_step, 1, top}));
}

void MatcherStates::end_item(uint32_t index, FrameId top) {
  const Grammar::Rule& rule = grammar_.rule(index);
  const Frame loop = frames_[top];
  if (loop.count >= rule.min) visit_first(loop.step, loop.parent);
  if (loop.count < rule.max) visit_first(rule.starts[1], top);
}

void MatcherStates::end_separator(uint32_t index, FrameId top) {
  const Grammar::Rule& rule = grammar_.rule(index);
  const Frame loop = frames_[top];
  // An item that began at this place of the text after fewer others can become whatever the next one can. Without
  // this rule, empty items would be counted up to the maximum. finish() sets the minimum of such repeats to 0.
  const auto same = [&](uint32_t i) {
    return closure_.visited[i].step == rule.starts[0] && closure_.visited[i].top == top;
  };
  if (rule.min == 0 && closure_.index.has(hash_of(rule.starts[0], top, 0), same)) return;
  // Without a maximum, all counts from the minimum on are alike.
  const bool saturated = rule.max == kNoMax && loop.count >= rule.min;
  const FrameId next = saturated ? top : frame({loop.step, loop.count + 1, loop.parent});
  visit_first(rule.starts[0], next);
}

// ---- Equal values are equal numbers ----

FrameId MatcherStates::frame(const Frame& frame) {
  const auto next = static_cast<FrameId>(frames_.size());
  const uint64_t hash = hash_of(frame.step, frame.count, frame.parent);
  const FrameId found = frame_index_.find_or_add(hash, next, [&](uint32_t i) { return frames_[i] == frame; });
  if (found == next) frames_.push_back(frame);
  return found;
}

StateId MatcherStates::state(std::vector<PackedPlace>& places) {
  if (places.empty()) return kDead;
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  if (places.size() > grammar_.limits().max_places)
    throw OutOfFuel(fmt::format("the grammar has {} places for one place of the text, expected at most {}",
                                places.size(), grammar_.limits().max_places));
  uint64_t hash = places.size();
  for (const PackedPlace place : places) hash = mix_bits(hash + place);
  const auto same = [&](uint32_t i) {
    return states_[i].count == places.size() &&
           std::equal(places.begin(), places.end(), places_.begin() + states_[i].begin);
  };
  const auto next = static_cast<StateId>(states_.size());
  const StateId found = state_index_.find_or_add(hash, next, same);
  if (found != next) return found;
  State added{};
  added.begin = static_cast<uint32_t>(places_.size());
  added.count = static_cast<uint32_t>(places.size());
  added.table = kNone;
  added.may_end = unpack(places.back()).kind == Place::Kind::kEnd;
  places_.insert(places_.end(), places.begin(), places.end());
  states_.push_back(added);
  return found;
}

}  // namespace lfm2::grammar
