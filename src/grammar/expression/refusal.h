// The error of this folder: a schema, pattern or grammar that cannot be enforced. A server answers it with status 400.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/error.h"

namespace lfm2::grammar {

// Its what() is one line: "#/properties/age: multipleOf: found 0, expected a number above 0".
class Refusal : public Error {
 public:
  // `pointer` is the JSON pointer (RFC 6901) of the schema object, "" for the root. `keyword` is the keyword in that
  // object. `found` quotes the input, `expected` names what is accepted instead.
  Refusal(std::string pointer, std::string keyword, std::string found, std::string expected,
          const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : Error(ExitCode::kData, message(pointer, keyword, found, expected), file, line),
        pointer_(std::move(pointer)),
        keyword_(std::move(keyword)),
        found_(std::move(found)),
        expected_(std::move(expected)) {}

  // The same refusal at a place that the thrower did not know: a pattern or a number does not know its schema.
  Refusal at(std::string pointer, std::string keyword) const {
    return {std::move(pointer), std::move(keyword), found_, expected_};
  }
  // The same, where the thrower named neither pointer nor keyword.
  Refusal at_if_nowhere(std::string pointer, std::string keyword) const {
    return pointer_.empty() && keyword_.empty() ? at(std::move(pointer), std::move(keyword)) : *this;
  }

  const std::string& keyword() const { return keyword_; }
  const std::string& found() const { return found_; }

 private:
  static std::string message(const std::string& pointer, const std::string& keyword, const std::string& found,
                             const std::string& expected) {
    return fmt::format("#{}: {}{}found {}, expected {}", pointer, keyword, keyword.empty() ? "" : ": ", found,
                       expected);
  }

  std::string pointer_, keyword_, found_, expected_;
};

}  // namespace lfm2::grammar
