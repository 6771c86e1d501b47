// The names of the JSON types, for headers that only mention them: the parser behind json.h is large to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lfm2 {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

}  // namespace lfm2
