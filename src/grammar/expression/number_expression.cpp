// Sets of numbers as expressions over their decimal digits.
#include <algorithm>

#include "grammar/expression/decimal.h"
#include "grammar/expression/limits.h"

namespace lfm2::grammar {

namespace {

// How a number may continue after the digits that decide its value.
enum class Fraction {
  kNone,   // no point
  kZeros,  // optionally a point and zeros
  kAny,    // optionally a point and digits
};

// The digits of a bound, without its sign.
struct Magnitude {
  explicit Magnitude(const Decimal& number) : whole(number.integer_digits()), fraction(number.fraction_digits()) {
    if (whole.empty()) whole = "0";
  }
  std::string whole, fraction;
};

class NumberWriter {
 public:
  NumberWriter(Expressions& expressions, Fraction fraction)
      : e_(expressions),
        fraction_(fraction),
        digit_(digits('0', '9')),
        nonzero_(digits('1', '9')),
        minus_(e_.text("-")),
        zero_tail_(fraction == Fraction::kNone ? e_.empty()
                                               : optional(e_.concat(point(), e_.repeat(digits('0', '0'), 1)))),
        tail_(fraction == Fraction::kAny ? optional(e_.concat(point(), e_.repeat(digit_, 1))) : zero_tail_) {}

  Expr any() { return e_.concat(optional(minus_), any_magnitude()); }

  Expr at_least(const Decimal& bound, bool exclusive) {
    if (bound.is_negative()) return e_.either({any_magnitude(), negative(magnitude_up_to(bound, exclusive))});
    if (bound.is_zero() && !exclusive) return e_.either({any_magnitude(), negative(zero())});
    return magnitude_from(bound, exclusive);
  }

  Expr at_most(const Decimal& bound, bool exclusive) {
    if (bound.is_negative()) return negative(magnitude_from(bound, exclusive));
    if (!bound.is_zero()) return e_.either({negative(any_magnitude()), magnitude_up_to(bound, exclusive)});
    if (exclusive) return negative(magnitude_from(bound, true));
    return e_.either({negative(any_magnitude()), zero()});
  }

 private:
  Expr digits(char first, char last) {
    ByteSet set;
    for (char digit = first; digit <= last; ++digit) set.set(static_cast<uint8_t>(digit));
    return e_.bytes(set);  // nothing where first > last
  }
  Expr point() { return e_.text("."); }
  Expr optional(Expr part) { return e_.repeat(part, 0, 1); }
  Expr negative(Expr magnitude) { return e_.concat(minus_, magnitude); }
  Expr zero() { return e_.concat(digits('0', '0'), zero_tail_); }
  Expr any_magnitude() {
    return e_.concat(e_.either({digits('0', '0'), e_.concat(nonzero_, e_.repeat(digit_, 0))}), tail_);
  }
  Expr some_digits(size_t count) {
    return e_.repeat(digit_, static_cast<uint32_t>(count), static_cast<uint32_t>(count));
  }

  // Numbers from a bound on: with more digits before the point; or with the same number, of which the first that
  // differs is larger; or with the same ones and a fraction that decides.
  //
  //   bound 27.4    [1-9][0-9]{2,} tail | [3-9][0-9] tail | 2 ([8-9] tail | 7 (. ([5-9] digits | 4 digits)))
  Expr magnitude_from(const Decimal& number, bool exclusive) {
    const Magnitude bound(number);
    Expr rest = fraction_from(bound.fraction, exclusive);
    for (size_t i = bound.whole.size(); i-- > 0;) {
      const Expr larger = e_.concat(
          {digits(static_cast<char>(bound.whole[i] + 1), '9'), some_digits(bound.whole.size() - 1 - i), tail_});
      rest = e_.either({larger, e_.concat(digits(bound.whole[i], bound.whole[i]), rest)});
    }
    const Expr longer = e_.concat({nonzero_, e_.repeat(digit_, static_cast<uint32_t>(bound.whole.size())), tail_});
    return e_.either({longer, rest});
  }

  // Fractions of at least .d1d2…; more than that where exclusive. A fraction that ends before the bound's is less.
  Expr fraction_from(const std::string& bound, bool exclusive) {
    if (bound.empty() && !exclusive) return tail_;
    if (fraction_ != Fraction::kAny) return e_.nothing();
    const Expr any = e_.repeat(digit_, 0);
    Expr rest = exclusive ? e_.concat({any, nonzero_, any}) : any;
    for (size_t i = bound.size(); i-- > 0;)
      rest = e_.either(
          {e_.concat(digits(static_cast<char>(bound[i] + 1), '9'), any), e_.concat(digits(bound[i], bound[i]), rest)});
    return e_.concat(point(), rest);
  }

  // Numbers up to a bound: the same, with fewer digits and smaller ones. A number does not begin with 0 but for 0
  // itself.
  Expr magnitude_up_to(const Decimal& number, bool exclusive) {
    const Magnitude bound(number);
    const size_t size = bound.whole.size();
    Expr rest = fraction_up_to(bound.fraction, exclusive);
    for (size_t i = size; i-- > 0;) {
      const char least = i == 0 && size > 1 ? '1' : '0';
      const Expr smaller =
          e_.concat({digits(least, static_cast<char>(bound.whole[i] - 1)), some_digits(size - 1 - i), tail_});
      rest = e_.either({smaller, e_.concat(digits(bound.whole[i], bound.whole[i]), rest)});
    }
    if (size == 1) return rest;
    const Expr shorter = e_.concat({nonzero_, e_.repeat(digit_, 0, static_cast<uint32_t>(size - 2)), tail_});
    return e_.either({e_.concat(digits('0', '0'), tail_), shorter, rest});
  }

  // Fractions of at most .d1d2…, none at all among them; less than that where exclusive.
  Expr fraction_up_to(const std::string& bound, bool exclusive) {
    if (bound.empty()) return exclusive ? e_.nothing() : zero_tail_;
    const Expr any = e_.repeat(digit_, 0);
    Expr rest = exclusive ? e_.nothing() : e_.repeat(digits('0', '0'), 0);
    for (size_t i = bound.size(); i-- > 0;) {
      rest = e_.either(
          {e_.concat(digits('0', static_cast<char>(bound[i] - 1)), any), e_.concat(digits(bound[i], bound[i]), rest)});
      if (i > 0) rest = e_.either({e_.empty(), rest});  // a digit at least follows the point
    }
    return optional(e_.concat(point(), rest));
  }

  Expressions& e_;
  const Fraction fraction_;
  const Expr digit_, nonzero_, minus_;
  const Expr zero_tail_, tail_;  // after the whole digits: a fraction of 0, any fraction
};

// The step as a whole number of units of 10^-places.
struct Step {
  uint64_t units;
  uint32_t places;
};

Step step_of(const Decimal& step) {
  const std::string fraction = step.fraction_digits();
  std::string units = step.integer_digits() + fraction;
  units.erase(0, units.find_first_not_of('0'));
  // All states of the automaton below: remainders before the point, and after each place of the fraction.
  const uint64_t value = units.size() <= 5 && !units.empty() ? std::stoull(units) : kMaxMultipleStates + 1;
  if (step.is_negative() || step.is_zero() || value > kMaxMultipleStates ||
      value * (fraction.size() + 1) > kMaxMultipleStates)
    throw Refusal("", "", fmt::format("a multiple of {}", step.text().substr(0, 80)),
                  fmt::format("a number above 0 that needs at most {} remainders", kMaxMultipleStates));
  return {value, static_cast<uint32_t>(fraction.size())};
}

// Reads digits from the left and keeps the remainder of what they are in units of the last place, so that the value is
// a multiple where the remainder becomes 0 once the places of the step are filled. Further digits must be zeros.
//
//   state = phase · units + remainder      phase: 0 before the point, 1 + the places that were read after it
Expr multiples_of(const Decimal& number, Expressions& expressions) {
  const Step step = step_of(number);
  ByteClasses& classes = expressions.byte_classes();
  PartitionId partition = ByteClasses::kWhole;
  constexpr std::string_view kBytes = "-.0123456789";
  for (const char byte : kBytes)
    partition = classes.meet(partition, classes.of(ByteSet().set(static_cast<uint8_t>(byte))));
  Automaton machine;
  machine.partition = partition;
  machine.classes = static_cast<uint32_t>(classes.representatives(partition).size());
  const uint64_t phases = step.places + 2;
  for (uint64_t phase = 0; phase < phases; ++phase) {
    const uint64_t filled = phase == 0 ? 0 : phase - 1;  // places of the fraction
    for (uint64_t rest = 0; rest < step.units; ++rest) {
      uint64_t padded = rest;
      for (uint64_t place = filled; place < step.places; ++place) padded = padded * 10 % step.units;
      machine.accepts.push_back(padded == 0);
      std::vector<uint32_t> next(machine.classes, Automaton::kDead);
      const auto go = [&](char byte, uint64_t to_phase, uint64_t to_rest) {
        next[classes.classes(partition)[static_cast<uint8_t>(byte)]] =
            static_cast<uint32_t>(to_phase * step.units + to_rest);
      };
      if (phase == 0) go('-', 0, rest);
      if (phase == 0) go('.', 1, rest);
      for (uint64_t digit = 0; digit < 10; ++digit) {
        const auto byte = static_cast<char>('0' + digit);
        if (phase == phases - 1) {  // all places are filled
          if (digit == 0 && rest == 0) go(byte, phase, rest);
        } else {
          go(byte, phase == 0 ? 0 : phase + 1, (rest * 10 + digit) % step.units);
        }
      }
      machine.next.insert(machine.next.end(), next.begin(), next.end());
    }
  }
  return expressions.automaton(std::move(machine));
}

// The numbers within the bounds of `set`, spelled as `fraction` says.
Expr bounded_numbers(const NumberSet& set, Fraction fraction, Expressions& expressions) {
  NumberWriter writer(expressions, fraction);
  std::vector<Expr> conditions;
  if (set.min) {
    const bool round = set.integer && !set.min->is_integer();
    conditions.push_back(writer.at_least(round ? set.min->ceil() : *set.min, set.exclusive_min && !round));
  }
  if (set.max) {
    const bool round = set.integer && !set.max->is_integer();
    conditions.push_back(writer.at_most(round ? set.max->floor() : *set.max, set.exclusive_max && !round));
  }
  if (conditions.empty()) conditions.push_back(writer.any());
  for (const Decimal& step : set.multiples) conditions.push_back(multiples_of(step, expressions));
  return expressions.both(conditions);
}

}  // namespace

Expr number_expression(const NumberSet& set, Expressions& expressions) {
  const bool is_bounded = set.min || set.max || !set.multiples.empty();
  const Expr plain = bounded_numbers(set, set.integer ? Fraction::kNone : Fraction::kAny, expressions);
  if (set.integer || is_bounded) return plain;
  ByteSet digits, signs;
  for (const char digit : std::string_view("0123456789")) digits.set(static_cast<uint8_t>(digit));
  signs.set('+').set('-');
  const Expr sign = expressions.repeat(expressions.bytes(signs), 0, 1);
  const Expr letter = expressions.bytes(ByteSet().set('e').set('E'));
  const Expr exponent = expressions.concat({letter, sign, expressions.repeat(expressions.bytes(digits), 1)});
  return expressions.concat(plain, expressions.repeat(exponent, 0, 1));
}

Expr decimal_values(const NumberSet& set, Expressions& expressions) {
  return bounded_numbers(set, set.integer ? Fraction::kZeros : Fraction::kAny, expressions);
}

}  // namespace lfm2::grammar
