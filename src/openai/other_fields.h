// Fields of OpenAI's interface, and of servers that extend it, that are known but not implemented. One table serves
// request bodies and batch lines.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json/json_fwd.h"

namespace lfm2 {

enum class OtherField {
  kUnknown,         // not in the table
  kChangesNothing,  // ignored, because its value changes no answer
  kUnsupported,     // its value would change the answer
};

// Looks up a field that the endpoint does not read. A value of null counts as absent.
OtherField other_field(std::string_view key, const OrderedJson& value);

// Error(kData) naming the field, if `body` has an unsupported field; `read` lists the fields that the endpoint reads.
void refuse_unsupported(const OrderedJson& body, std::initializer_list<std::string_view> read,
                        const std::string& where);
// The same for fields of generation_config.json that would change texts; transformers writes many others.
void refuse_unsupported_config(const OrderedJson& config, const std::string& where);
// Error(kData). `otherwise` describes the accepted values besides those that change nothing.
[[noreturn]] void refuse_unsupported_field(const std::string& where, std::string_view key, const OrderedJson& found,
                                           std::string_view otherwise = "no such field");

}  // namespace lfm2
