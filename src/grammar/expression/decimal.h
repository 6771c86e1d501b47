// Exact decimal numbers of any length, and sets of numbers as expressions over their digits. No doubles: bounds and
// multiples hold to the last digit.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression/expression.h"

namespace lfm2::grammar {

// The value ±0.d1d2d3… · 10^exponent. Zero has no digits and no sign; else d1 and the last digit are not 0.
class Decimal {
 public:
  Decimal() = default;
  explicit Decimal(int64_t value);
  // Reads JSON's number. Refusal where `json` is none, or its exponent has more than nine digits.
  static Decimal parse(std::string_view json);

  bool is_zero() const { return digits_.empty(); }
  bool is_negative() const { return negative_; }
  bool is_integer() const { return exponent_ >= static_cast<int64_t>(digits_.size()); }
  // Whether it is k · `step` for an integer k. `step` is above 0. Refusal where a number has too many digits.
  bool is_multiple_of(const Decimal& step) const;
  Decimal negated() const;
  // The largest integer that is not above it, and the smallest that is not below it. Refusal as text().
  Decimal floor() const;
  Decimal ceil() const;

  // The digits before and after the point, the former without leading zeros ("" below 1), the latter without trailing
  // ones. Refusal where there are more than kMaxDigits.
  std::string integer_digits() const;
  std::string fraction_digits() const;
  // Its shortest spelling without exponent: "-0.5", "100". Refusal as above.
  std::string text() const;

  std::strong_ordering operator<=>(const Decimal& other) const;
  bool operator==(const Decimal& other) const = default;

 private:
  bool negative_ = false;
  std::string digits_;
  int64_t exponent_ = 0;
};

// Numbers within bounds that are multiples of all `multiples`.
struct NumberSet {
  bool integer = false;
  std::optional<Decimal> min, max;
  bool exclusive_min = false, exclusive_max = false;
  std::vector<Decimal> multiples;  // each above 0
};

NumberSet intersection(const NumberSet& first, const NumberSet& second);
bool contains(const NumberSet& set, const Decimal& number);

// JSON's spellings of the set's numbers that are written. An integer has no point and no exponent. Other numbers have
// an exponent only where the set has neither bounds nor multiples. Refusal, without pointer, where a bound has more
// than kMaxDigits digits or a multiple needs more than kMaxMultipleStates states.
Expr number_expression(const NumberSet& set, Expressions& expressions);

// All spellings without exponent of the set's numbers: also 1.0 of an integer, and -0 of 0. Exact, so that its
// complement within decimal_values({}) has the other numbers' spellings without exponent.
Expr decimal_values(const NumberSet& set, Expressions& expressions);

}  // namespace lfm2::grammar
