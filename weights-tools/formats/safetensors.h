// The safetensors file form: a strict reader of the header, and the layout that Hugging Face's library would write.
#pragma once

#include "base/checked_file.h"
#include "weights-tools/formats/raw_tensor.h"
#include "weights-tools/model/model_source.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

// The tensors of one file; each gets `file_index`. Checks that the header is at most 16 MiB, inside the file and strict
// JSON, that sizes are shape x dtype, and that there is no hole, no overlap and nothing after the last tensor.
// Error(kData).
RawTensors read_safetensors_header(const CheckedFile& file, size_t file_index);

// The layout of the model as one file, in the order of Hugging Face's library: types of larger alignment first, then by
// name. A checkpoint that this library wrote comes back byte for byte.
FileLayout safetensors_layout(const ModelSource& source);

}  // namespace lfm2
