// model.safetensors.index.json: which file of a Hugging Face folder holds which tensor.
#pragma once

#include <vector>

#include "stage/support/checked_file.h"
#include "weights-tools/formats/raw_tensor.h"

namespace lfm2 {

struct IndexedCheckpoint {
  std::vector<CheckedFile> files;
  RawTensors tensors;
};

// Opens every file that the index names and reads the headers. Checked: plain file names, each tensor in exactly the
// file the index says and in no other, the total size. Error(kData), Error(kNoInput) for a missing file.
IndexedCheckpoint open_indexed_checkpoint(const std::filesystem::path& index);

}  // namespace lfm2
