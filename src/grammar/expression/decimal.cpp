#include "grammar/expression/decimal.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/expression/limits.h"

namespace lfm2::grammar {

namespace {

constexpr size_t kMaxStepDigits = 18;  // ten times as much is below 2^64

bool is_decimal_digit(char byte) { return byte >= '0' && byte <= '9'; }

std::string without_leading_zeros(std::string digits) {
  digits.erase(0, digits.find_first_not_of('0'));  // all, where there is no other digit
  return digits;
}

std::string_view leading_digits(std::string_view text) {
  return text.substr(0, std::ranges::find_if_not(text, is_decimal_digit) - text.begin());
}

void check_decimal_digits(int64_t digits) {
  if (digits > static_cast<int64_t>(kMaxDigits))
    throw Refusal("", "", fmt::format("a number of {} digits", digits), fmt::format("at most {}", kMaxDigits));
}

// Adds 1 to a whole number.
std::string incremented(std::string digits) {
  for (size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '9') {
      ++digits[i];
      return digits;
    }
    digits[i] = '0';
  }
  return "1" + digits;
}

[[noreturn]] void refuse_number(std::string_view json) {
  throw Refusal("", "", fmt::format("\"{}\"", json.substr(0, 80)), "a JSON number");
}

}  // namespace

Decimal::Decimal(int64_t value) : Decimal(parse(std::to_string(value))) {}

Decimal Decimal::parse(std::string_view json) {
  std::string_view rest = json;
  const auto accept = [&](std::string_view set) {
    if (rest.empty() || set.find(rest.front()) == set.npos) return false;
    rest.remove_prefix(1);
    return true;
  };
  const auto digits = [&] {
    const std::string_view found = leading_digits(rest);
    if (found.empty()) refuse_number(json);
    rest.remove_prefix(found.size());
    return std::string(found);
  };
  Decimal number;
  number.negative_ = accept("-");
  const std::string whole = digits();
  if (whole.size() > 1 && whole[0] == '0') refuse_number(json);
  number.digits_ = whole;
  if (accept(".")) number.digits_ += digits();
  number.exponent_ = static_cast<int64_t>(whole.size());
  if (accept("eE")) {
    const bool is_minus = rest.starts_with("-");
    accept("+-");
    const std::string power = without_leading_zeros(digits());
    if (power.size() > 9)
      throw Refusal("", "", fmt::format("a number with an exponent of {} digits", power.size()), "at most 9");
    const int64_t value = power.empty() ? 0 : std::stoll(power);
    number.exponent_ += is_minus ? -value : value;
  }
  if (!rest.empty()) refuse_number(json);
  const size_t zeros = std::min(number.digits_.find_first_not_of('0'), number.digits_.size());
  number.digits_.erase(0, zeros);
  number.exponent_ -= static_cast<int64_t>(zeros);
  number.digits_.erase(number.digits_.find_last_not_of('0') + 1);
  return number.digits_.empty() ? Decimal() : number;
}

Decimal Decimal::negated() const {
  Decimal number = *this;
  number.negative_ = !is_zero() && !negative_;
  return number;
}

std::string Decimal::integer_digits() const {
  if (exponent_ <= 0) return "";
  check_decimal_digits(exponent_);
  std::string digits = digits_.substr(0, static_cast<size_t>(exponent_));
  digits.resize(static_cast<size_t>(exponent_), '0');
  return digits;
}

std::string Decimal::fraction_digits() const {
  if (is_integer()) return "";
  check_decimal_digits(static_cast<int64_t>(digits_.size()) - std::min<int64_t>(exponent_, 0));
  if (exponent_ >= 0) return digits_.substr(static_cast<size_t>(exponent_));
  return std::string(static_cast<size_t>(-exponent_), '0') + digits_;
}

std::string Decimal::text() const {
  const std::string whole = integer_digits(), fraction = fraction_digits();
  return fmt::format("{}{}{}{}", negative_ ? "-" : "", whole.empty() ? "0" : whole, fraction.empty() ? "" : ".",
                     fraction);
}

Decimal Decimal::floor() const {
  if (is_integer()) return *this;
  const std::string whole = integer_digits();
  return parse(negative_ ? "-" + (whole.empty() ? "1" : incremented(whole)) : whole.empty() ? "0" : whole);
}

Decimal Decimal::ceil() const { return negated().floor().negated(); }

bool Decimal::is_multiple_of(const Decimal& step) const {
  if (is_zero()) return true;
  // In units of the step's last digit, it ends in this many zeros.
  const int64_t zeros = exponent_ - std::ssize(digits_) - (step.exponent_ - std::ssize(step.digits_));
  if (zeros < 0) return false;
  check_decimal_digits(zeros);
  if (step.digits_.size() > kMaxStepDigits)
    throw Refusal("", "", fmt::format("a multiple of a number of {} digits", step.digits_.size()),
                  fmt::format("at most {}", kMaxStepDigits));
  const uint64_t divisor = std::stoull(step.digits_);
  uint64_t rest = 0;
  for (const char digit : digits_) rest = (rest * 10 + static_cast<uint64_t>(digit - '0')) % divisor;
  for (int64_t i = 0; i < zeros && rest != 0; ++i) rest = rest * 10 % divisor;
  return rest == 0;
}

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  const auto sign = [](const Decimal& number) { return number.is_zero() ? 0 : number.negative_ ? -1 : 1; };
  if (const auto order = sign(*this) <=> sign(other); order != 0 || is_zero()) return order;
  const Decimal &less = negative_ ? other : *this, &more = negative_ ? *this : other;
  if (const auto order = less.exponent_ <=> more.exponent_; order != 0) return order;
  return less.digits_.compare(more.digits_) <=> 0;
}

NumberSet intersection(const NumberSet& first, const NumberSet& second) {
  NumberSet set = first;
  set.integer = first.integer || second.integer;
  if (second.min && (!set.min || *second.min >= *set.min)) {
    set.exclusive_min = second.exclusive_min || (set.exclusive_min && set.min == second.min);
    set.min = second.min;
  }
  if (second.max && (!set.max || *second.max <= *set.max)) {
    set.exclusive_max = second.exclusive_max || (set.exclusive_max && set.max == second.max);
    set.max = second.max;
  }
  for (const Decimal& step : second.multiples)
    if (std::ranges::find(set.multiples, step) == set.multiples.end()) set.multiples.push_back(step);
  return set;
}

bool contains(const NumberSet& set, const Decimal& number) {
  if (set.integer && !number.is_integer()) return false;
  if (set.min && (set.exclusive_min ? number <= *set.min : number < *set.min)) return false;
  if (set.max && (set.exclusive_max ? number >= *set.max : number > *set.max)) return false;
  return std::ranges::all_of(set.multiples, [&](const Decimal& step) { return number.is_multiple_of(step); });
}

}  // namespace lfm2::grammar
