#include "openai/answer/python_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/json/json.h"

namespace lfm2 {

namespace {

constexpr size_t kMaxBaseDigits = 1 << 13;  // of a number whose base is not 10: converting takes their square

int digit_of(char c) {
  if (TextCursor::is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

// Digits with single underscores between them, which are left out.
std::string read_digits(TextCursor& in, int base) {
  std::string digits;
  while (!in.at_end()) {
    const std::string_view rest = in.rest();
    const bool between = rest[0] == '_' && !digits.empty() && rest.size() > 1 && digit_of(rest[1]) < base;
    if (!between && digit_of(rest[0]) >= base) break;
    if (!between) digits += rest[0];
    in.skip(1);
  }
  return digits;
}

std::string without_leading_zeros(std::string digits) {
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

std::string in_base_10(std::string_view digits, int base) {
  constexpr uint64_t kLimb = 1'000'000'000;
  std::vector<uint64_t> limbs{0};  // the lowest first
  for (const char digit : digits) {
    uint64_t carry = static_cast<uint64_t>(digit_of(digit));
    for (uint64_t& limb : limbs) {
      carry += limb * static_cast<uint64_t>(base);
      limb = carry % kLimb;
      carry /= kLimb;
    }
    if (carry > 0) limbs.push_back(carry);
  }
  std::string text;
  for (size_t i = limbs.size(); i-- > 0;) text += fmt::format("{:09}", limbs[i]);
  return without_leading_zeros(std::move(text));
}

OrderedJson digits_value(const std::string& digits) { return OrderedJson::binary({digits.begin(), digits.end()}); }

OrderedJson integer_value(std::string digits, bool negative) {
  constexpr size_t kShort = 18;
  if (digits.empty()) return 0;
  if (negative) digits.insert(0, "-");
  if (digits.size() > kShort) return digits_value(digits);
  int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

// A double's shortest text has the same digits again where there are at most 15.
OrderedJson float_value(const std::string& text) {
  constexpr int64_t kExact = 15;
  const double value = std::strtod(text.c_str(), nullptr);
  if (!std::isfinite(value)) throw NoLiteral{};
  const std::string_view mantissa = std::string_view(text).substr(0, text.find('e'));
  const size_t first = mantissa.find_first_of("123456789");
  const std::string_view significant = first == std::string_view::npos ? "" : mantissa.substr(first);
  if (std::count_if(significant.begin(), significant.end(), TextCursor::is_digit) <= kExact) return value;
  return digits_value(text);
}

std::string read_exponent(TextCursor& in) {
  TextCursor behind = in;
  if (behind.next() != 'e' && behind.next() != 'E') return {};
  behind.skip(1);
  std::string exponent = "e";
  if (behind.next() == '-' || behind.next() == '+') {
    exponent += behind.next();
    behind.skip(1);
  }
  const std::string digits = read_digits(behind, 10);
  if (digits.empty()) return {};
  in = behind;
  return exponent + digits;
}

}  // namespace

bool begins_number(char c) { return TextCursor::is_digit(c) || c == '-' || c == '+' || c == '.'; }

OrderedJson read_number(TextCursor& in) {
  const bool negative = in.peek() == '-';
  if (negative || in.next() == '+') {
    in.skip(1);
    in.skip_blanks();
  }
  const auto expect_end = [&] {
    if (!in.at_end() && is_call_name(in.next())) throw NoLiteral{};
  };
  const std::string_view head = in.rest().substr(0, 2);
  const auto base_is = [&](std::string_view small, std::string_view large) { return head == small || head == large; };
  if (const int base = base_is("0x", "0X") ? 16 : base_is("0o", "0O") ? 8 : base_is("0b", "0B") ? 2 : 0; base > 0) {
    in.skip(2);
    const std::string digits = read_digits(in, base);
    expect_end();
    if (digits.empty() || digits.size() > kMaxBaseDigits) throw NoLiteral{};
    return integer_value(in_base_10(digits, base), negative);
  }
  std::string whole = read_digits(in, 10), fraction;
  const bool point = in.next() == '.';
  if (point) {
    in.skip(1);
    fraction = read_digits(in, 10);
  }
  if (whole.empty() && fraction.empty()) throw NoLiteral{};
  const std::string exponent = read_exponent(in);
  expect_end();
  whole = without_leading_zeros(std::move(whole));
  if (!point && exponent.empty()) return integer_value(std::move(whole), negative);
  return float_value(fmt::format("{}{}.{}{}", negative ? "-" : "", whole.empty() ? "0" : whole,
                                 fraction.empty() ? "0" : fraction, exponent));
}

}  // namespace lfm2
