#include "stage/shards/adapter_id.h"

#include <fmt/format.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json/json.h"
#include "stage/shards/shard_format.h"

namespace lfm2 {

OrderedJson adapters_json(const std::vector<AdapterId>& adapters) {
  OrderedJson json = OrderedJson::array();
  for (const AdapterId& adapter : adapters)
    json.push_back({{"name", adapter.name}, {"config", adapter.config}, {"weights", adapter.weights}});
  return json;
}

std::string adapters_text(const std::vector<AdapterId>& adapters) { return json_text(adapters_json(adapters)); }

std::vector<AdapterId> adapters_of(const h5::ScannedAttributes& root, const std::string& where) {
  if (!root.contains(shard::kAdaptersAttribute)) return {};
  const std::string what = fmt::format("{}: {}", where, shard::kAdaptersAttribute);
  const Json json = parse_json(h5::text_of(root, shard::kAdaptersAttribute, where), what);
  const auto refuse = [&](const Json& found) {
    throw Error(ExitCode::kData,
                fmt::format("{}: {}, expected a list of objects with the texts name, config and weights", what,
                            json_excerpt(found)));
  };
  if (!json.is_array() || json.empty()) refuse(json);
  std::vector<AdapterId> adapters;
  for (const Json& entry : json) {
    AdapterId adapter;
    for (const auto& [key, field] :
         {std::pair{"name", &adapter.name}, {"config", &adapter.config}, {"weights", &adapter.weights}}) {
      if (!entry.is_object() || entry.size() != 3 || !entry.contains(key) || !entry[key].is_string()) refuse(entry);
      *field = entry[key].get<std::string>();
    }
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

std::string adapter_names(const std::vector<AdapterId>& adapters) {
  std::string names;
  for (const AdapterId& adapter : adapters) names += (names.empty() ? "" : ", ") + printable(adapter.name);
  return names;
}

}  // namespace lfm2
