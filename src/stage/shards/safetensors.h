// The safetensors file format: a strict reader of the header.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked_file.h"
#include "base/dtype.h"

namespace lfm2 {

// A tensor as a file describes it, before it is matched with the model's tensors.
struct RawTensor {
  std::vector<uint64_t> dims;
  DType dtype = DType::kF32;
  size_t file = 0;                 // index into the source's files
  uint64_t offset = 0, bytes = 0;  // place in that file; checked to lie inside it
  std::string checkpoint_name;     // after matching: the file's name, if it differs from that of model_tensors()
};

using RawTensors = std::map<std::string, RawTensor>;

struct SafetensorsDType {
  DType dtype;
  std::string_view text;
};
// In the order in which Hugging Face's library writes types into a file.
inline constexpr std::array<SafetensorsDType, 4> kSafetensorsDTypes = {
    {{DType::kF32, "F32"}, {DType::kBf16, "BF16"}, {DType::kF16, "F16"}, {DType::kF8, "F8_E4M3"}}};

// The tensors of one file; each gets `file_index`. Checks that the header is at most 16 MiB, inside the file and strict
// JSON, that sizes are shape x dtype, and that there is no hole, no overlap and nothing after the last tensor.
// Error(kData).
RawTensors read_safetensors_header(const CheckedFile& file, size_t file_index);

}  // namespace lfm2
