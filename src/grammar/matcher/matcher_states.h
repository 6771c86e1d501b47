// Where texts can be in a grammar. A state is a set of places; a place is an expression that the text is in, and a
// stack of what follows it. All of them are hash-consed: equal places and states are equal numbers, so a state and a
// byte determine the next state, and a step that was made before is one look-up.
//
// The stack is a list of frames that share their tails. With the rules  list = "[" items "]"  and
// items = repeat(list, ","), after "[[" :
//
//     place: expression [ or ]     frame: item 1 of items, then "]"  ->  item 1 of items, then "]"  ->  bottom
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "grammar/expression/index_table.h"
#include "grammar/matcher/grammar.h"

namespace lfm2::grammar {

// A limit on work or memory (limits.h) was passed while a text was matched. That text fails; others are not affected.
class OutOfFuel : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

using StateId = uint32_t;
using FrameId = uint32_t;

// Not thread-safe.
class MatcherStates {
 public:
  static constexpr StateId kDead = 0;  // no place: the text is none of the grammar
  static constexpr FrameId kBottom = 0;

  struct Place {
    enum class Kind : uint8_t { kText, kToken, kEnd };
    Kind kind;
    uint32_t value;  // Expr or TokenId
    FrameId frame;
  };

  // `grammar` must be finished and outlive this.
  explicit MatcherStates(Grammar& grammar);

  StateId start() const { return start_; }
  // The state after a byte. OutOfFuel where it has too many places.
  StateId next(StateId state, uint8_t byte);
  // The state after a token by its id, which only symbols of tokens allow.
  StateId next_token(StateId state, TokenId token);
  // The state after the symbol of a place with this frame.
  StateId after(FrameId frame);

  // The number of places; those of texts come first, then those of tokens, then the end.
  uint32_t places(StateId state) const { return states_[state].count; }
  Place place(StateId state, uint32_t index) const;
  // Whether the text may end here.
  bool may_end(StateId state) const { return states_[state].may_end; }
  // The bytes that do not lead to kDead.
  ByteSet first(StateId state);
  // The bytes with a possible derivative.
  const ByteSet& first(Expr expression);

  size_t memory() const;
  // Forgets all states but the start's, which stays what it is: other indices are void.
  void clear();

 private:
  struct Frame {
    uint32_t step;   // in the grammar's steps: where the sequence continues
    uint32_t count;  // of a repeat: items begun, this one too, and no more than need be told apart; else 0
    FrameId parent;
    bool operator==(const Frame&) const = default;
  };
  struct State {
    uint32_t begin, count;  // in places_
    uint32_t table;         // in tables_, or kNone
    bool may_end;
    uint8_t known;  // steps in `bytes` and `targets`, before there is a table
    std::array<uint8_t, 4> bytes;
    std::array<StateId, 4> targets;
  };
  struct Config {
    uint32_t step;
    FrameId top;
  };
  using Table = std::array<StateId, 256>;
  using PackedPlace = uint64_t;  // kind and value, then frame; ascending within a state
  static constexpr uint32_t kNone = UINT32_MAX;

  FrameId frame(const Frame& frame);
  StateId state(std::vector<PackedPlace>& places);
  StateId compute(StateId from, uint8_t byte);
  void remember(StateId from, uint8_t byte, StateId to);

  // The places that can be reached without a byte are added to closure_.places, between begin() and close().
  void begin();
  void resume(FrameId frame);
  void visit(uint32_t step, FrameId top);
  void close();
  void call(uint32_t rule, uint32_t return_step, FrameId top);
  void end_item(uint32_t rule, FrameId top);
  void end_separator(uint32_t rule, FrameId top);
  bool visit_first(uint32_t step, FrameId top);
  void add(Place::Kind kind, uint32_t value, FrameId frame);

  Grammar& grammar_;
  std::vector<Frame> frames_;
  IndexTable frame_index_;
  std::vector<State> states_;
  std::vector<PackedPlace> places_;
  IndexTable state_index_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<StateId> after_;  // by frame, or kNone
  StateId start_ = kDead;
  std::unordered_map<uint32_t, ByteSet> first_;  // by expression
  // The closure that is being computed. Configurations are followed in the order in which they were met.
  struct {
    std::vector<Config> visited;
    IndexTable index;
    std::vector<PackedPlace> places;
  } closure_;
};

}  // namespace lfm2::grammar
