#include "base/json/error_json.h"

#include <fmt/format.h>

#include "base/json/json.h"

namespace lfm2 {

namespace {

constexpr std::string_view kContextLength = "This model's maximum context length is ";
constexpr std::string_view kHowever = "However, your ";

// The first quoted name in the message, if it follows the place of the error; else null.
OrderedJson named_field(std::string_view message) {
  const size_t quote = message.find_first_of("\"'");
  if (quote == message.npos || quote < 2 || message.substr(quote - 2, 3) != ": \"") return nullptr;
  const std::string_view name = message.substr(quote + 1, message.find('"', quote + 1) - quote - 1);
  const bool is_name = !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.[]0123456789") == name.npos;
  return is_name ? OrderedJson(name) : OrderedJson();
}

}  // namespace

std::string context_length_text(int64_t most, int64_t tokens, std::string_view field) {
  // LangChain searches for the first words, LiteLLM for the sentence.
  return fmt::format("the {} is too long. {}{} tokens. {}{} resulted in {} tokens. Please reduce the length of the {}.",
                     field == "input" ? "input" : "prompt", kContextLength, most, kHowever, field, tokens, field);
}

OrderedJson error_object(std::string_view message, int status) {
  OrderedJson error{{"message", message},
                    {"type", status < 500 ? "invalid_request_error" : "server_error"},
                    {"param", status < 500 ? named_field(message) : OrderedJson()},
                    {"code", status}};
  const size_t however = message.find(kContextLength) != std::string_view::npos ? message.find(kHowever) : message.npos;
  if (however != message.npos) {
    const std::string_view field = message.substr(however + kHowever.size());
    error["param"] = field.substr(0, field.find(' '));
    error["code"] = "context_length_exceeded";
  }
  return error;
}

}  // namespace lfm2
