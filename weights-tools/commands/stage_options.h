// Options that several commands share, from text to meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "stage/model/partition.h"

namespace lfm2 {

// The type that a text names; nothing for "keep". Error(kUsage) for an unknown type.
std::optional<DType> wanted_dtype(const std::string& text);

// The stages that --stages or --layers asks for; with neither, four stages, or one for each layer of a smaller model.
// Error(kUsage).
std::vector<LayerRange> choose_stages(int64_t layers, const std::optional<int64_t>& stages,
                                      const std::vector<int64_t>& counts);

// Parses "80GB", "512 MiB", "1.5TB" or plain bytes: decimal units count 1000, binary ones 1024. Error(kUsage).
uint64_t parse_bytes(const std::string& text);

}  // namespace lfm2
