// What a folder of shards looks like: names of files and attributes. Written by weights-tools split, read by ShardSet;
// the format's description for users of h5py and h5dump is weights-tools/FORMAT.md.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace lfm2::shard {

inline constexpr const char* kFormat = "lfm2-stage-shard";
inline constexpr int64_t kVersion = 1;  // a reader refuses any other

// Root attributes.
inline constexpr const char* kFormatAttribute = "format";           // text, kFormat
inline constexpr const char* kVersionAttribute = "schema_version";  // int
inline constexpr const char* kConfigAttribute = "config_json";      // text, the model's config.json as it was
inline constexpr const char* kModelTypeAttribute = "model_type";    // text
inline constexpr const char* kStageAttribute = "stage";             // int, 0 …
inline constexpr const char* kStagesAttribute = "stages";           // int: files of this split
inline constexpr const char* kLayerFirstAttribute = "layer_first";  // int
inline constexpr const char* kLayerCountAttribute = "layer_count";  // int
inline constexpr const char* kSplitIdAttribute = "split_id";  // text, 32 hex digits, equal in all files of one split
// text, kZeroGaps: every byte of the file that belongs to no structure is 0, and a reader refuses others. Shards
// without it are older.
inline constexpr const char* kGapsAttribute = "gaps";
inline constexpr const char* kZeroGaps = "zero";
inline constexpr const char* kCreatedByAttribute = "created_by";  // text
// Of each dataset.
inline constexpr const char* kChecksumAttribute = "xxh3_128";  // text, 32 hex digits over the stored bytes

// All numbers of a split have the same width: sorted by name, the files are sorted by stage.
inline std::string file_name(int64_t stage, int64_t stages) {
  const int width = stages <= 100 ? 2 : 4;
  return fmt::format("stage-{:0{}}-of-{:0{}}.h5", stage, width, stages, width);
}

}  // namespace lfm2::shard
