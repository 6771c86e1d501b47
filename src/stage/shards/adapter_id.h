// Which adapters were merged into weights: written into shards by weights-tools split, shown by inspect and in reports.
#pragma once

#include <string>
#include <vector>

#include "base/json/json_fwd.h"
#include "stage/hdf5/h5_scan.h"

namespace lfm2 {

struct AdapterId {
  std::string name;             // of the adapter's folder
  std::string config, weights;  // checksums of adapter_config.json and adapter_model.safetensors

  bool operator==(const AdapterId&) const = default;
};

// The value of shard::kAdaptersAttribute, as JSON and as its text, and the adapters of a shard with the root attributes
// `root`: none without that attribute. Error(kData), beginning with `where`, for any other value.
OrderedJson adapters_json(const std::vector<AdapterId>& adapters);
std::string adapters_text(const std::vector<AdapterId>& adapters);
std::vector<AdapterId> adapters_of(const h5::ScannedAttributes& root, const std::string& where);

// The names, separated by commas, as printable text.
std::string adapter_names(const std::vector<AdapterId>& adapters);

}  // namespace lfm2
