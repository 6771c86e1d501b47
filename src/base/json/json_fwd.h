// Forward declarations of the JSON types, for headers that only mention them: json.h's parser is slow to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lfm2 {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

}  // namespace lfm2
