// model.safetensors.index.json: which file of a Hugging Face folder holds which tensor.
#pragma once

#include <vector>

#include "base/checked_file.h"
#include "weights-tools/formats/raw_tensor.h"

namespace lfm2 {

struct IndexedCheckpoint {
  std::vector<CheckedFile> files;
  RawTensors tensors;
};

// Opens every file that the index names, and reads the headers. Checks that the names are plain file names, that each
// tensor is in the file that the index says and in no other, and that the total size is right. Error(kData);
// Error(kNoInput) for a missing file.
IndexedCheckpoint open_indexed_checkpoint(const std::filesystem::path& index);

}  // namespace lfm2
