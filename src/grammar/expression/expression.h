// Languages of byte strings as expressions that are closed under "and", "or", "not" and counted repetition.
//
// The mathematics is Brzozowski, "Derivatives of regular expressions", J. ACM 11 (1964), with the byte classes and the
// weak equivalences of Owens, Reppy, Turon, "Regular-expression derivatives re-examined", J. Funct. Program. 19 (2009).
// The derivative of a language L by a byte b is {t : b·t in L}. An expression is the state of an automaton that is
// built as far as texts walk it: derivative() is the step, nullable() tells accepting states, possible() live ones.
//
// Equal expressions are one node (hash-consing), so that equality is equality of numbers, and simplification keeps the
// derivatives of an expression finite and few. Counts of repetitions are numbers in a node and are never unrolled.
#pragma once

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/expression/byte_classes.h"
#include "grammar/expression/limits.h"
#include "grammar/expression/refusal.h"

namespace lfm2::grammar {

// An expression of one Expressions. Small numbers, dense from 0, usable as an index.
enum class Expr : uint32_t {};

inline constexpr uint32_t kNoMax = UINT32_MAX;  // a repetition without an upper bound

// A deterministic automaton over bytes, for languages that have no short expression, such as remainders.
struct Automaton {
  static constexpr uint32_t kDead = UINT32_MAX;

  PartitionId partition = 0;          // of the Expressions that it is added to: Expressions::byte_classes()
  uint32_t classes = 1;               // of the partition
  std::vector<uint32_t> next;         // [states, classes], a state or kDead
  std::vector<bool> accepts;          // [states]
  std::vector<uint32_t> min_lengths;  // [states], set by Expressions: of the shortest text
};

// Owner of expressions. Expressions of different owners must not be mixed. Not thread-safe: const calls alone may run
// at the same time. Calls that make nodes or compute throw Refusal, without pointer and keyword, where a limit of
// nodes, memory or work is passed; the object remains usable.
class Expressions {
 public:
  enum class Kind : uint8_t { kNothing, kEmpty, kBytes, kConcat, kEither, kBoth, kComplement, kRepeat, kAutomaton };

  explicit Expressions(Limits limits = {});

  Expr nothing() const { return Expr{0}; }   // the language without any text
  Expr empty() const { return Expr{1}; }     // the empty text alone
  Expr anything() const { return Expr{2}; }  // all byte strings
  Expr text(std::string_view bytes);         // this one byte string
  Expr texts(std::vector<std::string> all);  // any of these byte strings
  Expr bytes(const ByteSet& set);            // one byte of the set
  Expr concat(Expr first, Expr second);
  Expr concat(std::span<const Expr> parts);
  Expr concat(std::initializer_list<Expr> parts) { return concat(std::span(parts.begin(), parts.size())); }
  Expr either(std::span<const Expr> parts);
  Expr either(std::initializer_list<Expr> parts) { return either(std::span(parts.begin(), parts.size())); }
  Expr both(std::span<const Expr> parts);
  Expr both(std::initializer_list<Expr> parts) { return both(std::span(parts.begin(), parts.size())); }
  Expr complement(Expr part);  // among all byte strings, so also of bytes that are no UTF-8
  Expr repeat(Expr part, uint32_t min, uint32_t max = kNoMax);
  // The language of an automaton from its first state.
  Expr automaton(Automaton machine);
  ByteClasses& byte_classes() { return classes_; }

  // Declares that all texts of `star` and of expressions noted by note_within() are made of the same pieces: then
  // "any text, or …" becomes "any text". `star` is a repetition without bounds. Returns the number for note_within().
  // `key` is the caller's, to find the universe again; one star is one universe, with the key that came first.
  uint32_t add_universe(Expr star, uint32_t key);
  struct Universe {
    uint32_t number;
    Expr star;
  };
  std::optional<Universe> find_universe(uint32_t key) const;
  // States that `part`, one piece or a text of pieces, is within the universe. Not checked.
  void note_within(uint32_t universe, Expr part);

  // Whether the empty text is in the language.
  bool nullable(Expr expr) const { return node(expr).nullable; }
  // What may follow `byte`. May be a language without any text that is not nothing(): ask possible(). A step that was
  // made before costs three loads.
  Expr derivative(Expr expr, uint8_t byte) {
    const Transitions& from = transitions_[static_cast<uint32_t>(expr)];
    if (from.row != kNoRow) {
      const uint32_t to = rows_[from.row + classes_.classes(from.partition)[byte]];
      if (to != kUnknown) return Expr{to};
    }
    return new_derivative(expr, byte);
  }
  Expr derivative(Expr expr, std::string_view bytes);
  bool matches(Expr expr, std::string_view bytes) { return nullable(derivative(expr, bytes)); }
  // Bytes that a text may begin with: at least all of them, told by the structure of the expression alone.
  const ByteSet& first(Expr expr);
  // A byte of each class: derivatives by other bytes are the same as by one of these.
  std::span<const uint8_t> representatives(Expr expr);

  // Whether the language has any text. Exact, and remembered.
  bool possible(Expr expr);
  // Whether each text of `beginnings` is the beginning of a text of `whole`.
  bool begins(Expr whole, Expr beginnings);

  // The number of expressions, and the memory in bytes.
  size_t size() const { return nodes_.size(); }
  size_t memory() const;
  // Whether a call threw Refusal because of memory rather than work.
  bool is_full() const { return nodes_.size() >= limits_.expression_nodes || memory() > limits_.expression_bytes; }
  // Expressions made after mark() can be forgotten, so that their memory is free again. Those made before stay valid.
  struct Mark {
    size_t nodes, lists;
  };
  Mark mark() const { return {nodes_.size(), lists_.size()}; }
  void forget(const Mark& after);
  // Allows this much further work: about the number of nodes looked up. A new object has Limits::expression_steps.
  void refuel(uint64_t steps) { steps_left_ = steps; }
  uint64_t steps_left() const { return steps_left_; }
  const Limits& limits() const { return limits_; }

 private:
  static constexpr uint32_t kNoRow = UINT32_MAX, kUnknown = UINT32_MAX;

  enum class Possible : uint8_t { kUnknown, kNo, kYes };
  struct Node {
    Kind kind;
    bool nullable;
    Possible possible;
    uint32_t depth;       // of nodes inside each other; the second part of a concat counts as beside it
    uint32_t min_length;  // no text is shorter, in bytes
    uint32_t max_length;  // no text is longer; kNoMax: not known
    // kBytes: a set. kConcat: two nodes, the first one no concat. kEither, kBoth: offset and count in lists_.
    // kComplement: a node. kRepeat: a node, min, max. kAutomaton: automaton and state.
    uint32_t a, b, c;
  };
  // Derivatives known so far, by class of bytes.
  struct Transitions {
    uint32_t row;           // offset in rows_, or kNoRow
    PartitionId partition;  // kUnknown where not computed
    uint32_t first;         // a set; kUnknown where not computed
  };
  struct Facts {
    uint32_t key;
    Expr star;
    std::vector<uint32_t> within;  // [nodes] a rest of the universe that contains the node, or 0
  };
  // What either() and both() were given, flattened.
  struct Terms {
    std::vector<uint32_t> parts;  // neither empty() nor sets of bytes
    ByteSet set;                  // their union or intersection
    bool has_set = false, has_empty = false;
  };

  static constexpr uint32_t id(Expr expr) { return static_cast<uint32_t>(expr); }
  const Node& node(Expr expr) const { return nodes_[id(expr)]; }
  bool is(Expr expr, Kind kind) const { return node(expr).kind == kind; }
  bool known_impossible(Expr expr) const { return node(expr).possible == Possible::kNo; }
  // A copy, as making nodes moves the lists.
  std::vector<uint32_t> parts_of(const Node& node) const;
  uint64_t hash_of(const Node& fields, std::span<const uint32_t> parts) const;
  Expr intern(Node fields, std::span<const uint32_t> parts = {});
  void fill_table(size_t slots);
  void charge(uint64_t steps);

  Expr texts_from(std::span<const std::string> sorted, size_t at, int depth);
  Expr concat_one(Expr first, Expr second);
  std::optional<Expr> joined_repeats(Expr first, Expr second);
  void add_either_term(Expr part, Terms& terms);
  bool add_both_term(Expr part, Terms& terms);
  bool are_disjoint(const std::vector<uint32_t>& parts) const;
  void merge_tails(Terms& terms);
  void merge_heads(std::span<const uint32_t> heads, uint32_t tail, bool& tail_is_part, std::vector<uint32_t>& parts);
  void absorb(Kind kind, std::vector<uint32_t>& parts) const;
  Expr intern_list(Kind kind, std::vector<uint32_t> parts);

  uint32_t set_number(const ByteSet& set);
  uint32_t new_first(Node node);
  Expr automaton_state(uint32_t number, uint32_t state);

  uint32_t within(size_t universe, uint32_t node) const;
  void set_within(size_t universe, uint32_t node, uint32_t whole);

  PartitionId partition(Expr expr);
  PartitionId new_partition(const Node& node);
  Expr new_derivative(Expr expr, uint8_t byte);
  Expr compute_derivative(const Node& node, uint8_t byte);
  Expr derivative_of_concat(Node node, uint8_t byte);
  bool compute_possible(Node node, Expr expr);
  bool search(Expr expr);

  Limits limits_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> table_;  // hash table of nodes, open addressing; kUnknown where free
  std::vector<uint32_t> lists_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, uint32_t> set_numbers_;
  std::vector<Automaton> automata_;
  ByteClasses classes_;
  std::vector<Transitions> transitions_;  // [nodes]
  std::vector<uint32_t> rows_;
  std::vector<Facts> universes_;
  uint64_t steps_left_;
};

}  // namespace lfm2::grammar
