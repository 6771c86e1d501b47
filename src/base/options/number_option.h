// Options of both programs whose values are numbers: plain decimal, within a range. CLI11's own conversion reads 010 as
// octal and 0x10 as hexadecimal, lets -1 and 2^64 wrap around, and accepts NaN.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lfm2 {

template <class T>
struct NumberRange {
  T least, most;

  bool is_open() const { return std::floating_point<T> && most == std::numeric_limits<T>::max(); }
  std::string text() const { return is_open() ? fmt::format("{} up", least) : fmt::format("{} to {}", least, most); }
  std::string help() const {
    const char* kind = std::integral<T> ? "INT" : "FLOAT";
    return is_open() ? fmt::format("{} >= {}", kind, least) : fmt::format("{} in [{} - {}]", kind, least, most);
  }
};

// The value of a number in plain decimal (a sign of "-" is allowed; for floating point also a point and an exponent).
// Nothing for other text, and for numbers outside the range.
template <class T>
std::optional<T> parse_number(std::string_view text, NumberRange<T> range) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if constexpr (std::floating_point<T>)
    if (error == std::errc::result_out_of_range && std::abs(std::strtold(std::string(text).c_str(), nullptr)) < 1) {
      value = 0;  // an underflow: 0 is the nearest value
      error = {};
    }
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!(value >= range.least && value <= range.most)) return std::nullopt;  // written so that NaN is refused
  return value;
}

// The values of a list such as "7,6,6,5"; nothing where an element is missing or no number.
template <class T>
std::optional<std::vector<T>> parse_numbers(std::string_view text, NumberRange<T> range) {
  std::vector<T> values;
  for (size_t comma = 0; comma != std::string_view::npos; text.remove_prefix(std::min(comma + 1, text.size()))) {
    comma = text.find(',');
    const std::optional<T> value = parse_number(text.substr(0, comma), range);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

template <class Target>
struct NumberIn {
  using Type = Target;
};
template <class T>
struct NumberIn<std::optional<T>> {
  using Type = T;
};

template <class Target, class T = typename NumberIn<Target>::Type>
CLI::Option* add_number(CLI::App& app, const std::string& name, Target& target, const std::string& description,
                        std::type_identity_t<T> least, std::type_identity_t<T> most) {
  const NumberRange<T> range{least, most};
  const auto check = [range](std::string& text) {
    if (parse_number(text, range)) return std::string();
    return fmt::format("\"{}\", expected {} from {}", text, std::integral<T> ? "an integer" : "a number", range.text());
  };
  auto* option = app.add_option_function<std::string>(
      name, [&target, range](const std::string& text) { target = *parse_number(text, range); }, description);
  if constexpr (std::is_same_v<Target, T>) option->default_function([&target] { return fmt::format("{}", target); });
  return option->check(CLI::Validator(check, range.help()))->type_name(std::integral<T> ? "N" : "X");
}

// The same with the target's value as the default that --help shows.
template <class T>
CLI::Option* add_setting(CLI::App& app, const std::string& name, T& target, const std::string& description,
                         std::type_identity_t<T> least, std::type_identity_t<T> most) {
  return add_number(app, name, target, description, least, most)->capture_default_str();
}

// Adds an option that takes a list: 7,6,6,5 or, unless the caller says expected(1), 7 6 6 5.
template <class T>
CLI::Option* add_numbers(CLI::App& app, const std::string& name, std::vector<T>& target, const std::string& description,
                         std::type_identity_t<T> least, std::type_identity_t<T> most) {
  const NumberRange<T> range{least, most};
  const auto check = [range](std::string& text) {
    if (parse_numbers(text, range)) return std::string();
    return fmt::format("\"{}\", expected {} from {} with commas between", text,
                       std::integral<T> ? "integers" : "numbers", range.text());
  };
  const auto take = [&target, range](const std::vector<std::string>& words) {
    target.clear();
    for (const std::string& word : words) {
      const std::optional<std::vector<T>> values = parse_numbers(word, range);
      target.insert(target.end(), values->begin(), values->end());
    }
  };
  return app.add_option_function<std::vector<std::string>>(name, take, description)
      ->check(CLI::Validator(check, range.help()))
      ->type_name("N,N,...");
}

}  // namespace lfm2
