// The names of files and attributes in a folder of shards. Written by weights-tools split, read by ShardSet;
// weights-tools/FORMAT.md describes the format for users of h5py and h5dump.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lfm2::shard {

inline constexpr const char* kFormat = "lfm2-stage-shard";
// A reader refuses any other version. Shards with fp8 have the second, so that readers without fp8 refuse them.
inline constexpr int64_t kVersion = 1, kFp8Version = 2;

// Root attributes.
inline constexpr const char* kFormatAttribute = "format";           // text, kFormat
inline constexpr const char* kVersionAttribute = "schema_version";  // int
inline constexpr const char* kConfigAttribute = "config_json";      // text, the model's config.json unchanged
inline constexpr const char* kModelTypeAttribute = "model_type";    // text
inline constexpr const char* kStageAttribute = "stage";             // int, from 0
inline constexpr const char* kStagesAttribute = "stages";           // int, the number of files in this split
inline constexpr const char* kLayerFirstAttribute = "layer_first";  // int
inline constexpr const char* kLayerCountAttribute = "layer_count";  // int
inline constexpr const char* kSplitIdAttribute = "split_id";  // text, 32 hex digits, equal in all files of one split
// Text, kZeroGaps: every byte of the file outside all structures is 0, and readers refuse the file otherwise. Optional.
inline constexpr const char* kGapsAttribute = "gaps";
inline constexpr const char* kZeroGaps = "zero";
inline constexpr const char* kCreatedByAttribute = "created_by";  // text
// Text, a JSON object: the checksum of each text file beside the shards, by the file's name; equal in all files of one
// split. Optional; splits of models without text files lack it.
inline constexpr const char* kTextFilesAttribute = "text_files";
// Text, a JSON list: name and checksums of each adapter that was merged into the weights, in their order; equal in all
// files of one split. Optional; splits without adapters lack it.
inline constexpr const char* kAdaptersAttribute = "adapters";
// Attributes of each dataset.
// Text, 32 hex digits: the checksum of the stored bytes.
inline constexpr const char* kChecksumAttribute = "xxh3_128";
// Text: the element type of a dataset of unsigned bytes. kFp8Type: an fp8 weight X.weight, whose scales are the dataset
// X.weight_scale.
inline constexpr const char* kElementTypeAttribute = "element_type";
inline constexpr const char* kFp8Type = "float8_e4m3fn";
// Text: the tensor's name in the split checkpoint, if it differs from the dataset's. Several datasets may be parts of
// one such tensor.
inline constexpr const char* kCheckpointNameAttribute = "checkpoint_name";

// The names of the text files in a Hugging Face folder that split copies beside the shards.
inline constexpr std::string_view kTokenizerFile = "tokenizer.json";
inline constexpr std::string_view kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr std::string_view kChatTemplateFile = "chat_template.jinja";
inline constexpr std::string_view kToolTemplateFile = "additional_chat_templates/tool_use.jinja";
inline constexpr std::string_view kGenerationConfigFile = "generation_config.json";
inline constexpr std::array kTextFiles = {kTokenizerFile, kTokenizerConfigFile, kChatTemplateFile, kToolTemplateFile,
                                          kGenerationConfigFile};
inline constexpr uint64_t kMaxTextFileBytes = uint64_t{64} << 20;

// All numbers in the names of a split have the same width, so that sorting by name sorts by stage.
inline std::string file_name(int64_t stage, int64_t stages) {
  const int width = stages <= 100 ? 2 : 4;
  return fmt::format("stage-{:0{}}-of-{:0{}}.h5", stage, width, stages, width);
}

}  // namespace lfm2::shard
