// Fields of OpenAI's interface, and of servers that extend it, that are known here and not computed: one table for
// bodies that the server reads and for batch lines.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json/json_fwd.h"

namespace lfm2 {

enum class OtherField {
  kUnknown,         // not in the table
  kChangesNothing,  // ignored: its value leaves every answer as it is
  kUnsupported,     // its value asks for another answer
};

// What the table says of a field that the endpoint at hand does not read. null is as if the field were absent.
OtherField other_field(std::string_view key, const OrderedJson& value);

// Error(kData) that names a field of `body` that asks for another answer; `read` are those that the endpoint reads.
void refuse_unsupported(const OrderedJson& body, std::initializer_list<std::string_view> read,
                        const std::string& where);
// The same for fields of generation_config.json that would change texts: transformers writes many others.
void refuse_unsupported_config(const OrderedJson& config, const std::string& where);
// Error(kData). `otherwise`: what is expected but the values that change nothing.
[[noreturn]] void refuse_unsupported_field(const std::string& where, std::string_view key, const OrderedJson& found,
                                           std::string_view otherwise = "no such field");

}  // namespace lfm2
