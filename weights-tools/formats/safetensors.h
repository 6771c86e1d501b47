// The safetensors file form: a strict reader of the header, and the layout that Hugging Face's library would write.
#pragma once

#include "stage/support/checked_file.h"
#include "weights-tools/formats/raw_tensor.h"
#include "weights-tools/model/model_source.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

// The tensors of one file; `file_index` goes into each. Checked: header at most 16 MiB and inside the file, strict
// JSON, sizes equal to shape x dtype, no hole, no overlap, nothing after the last tensor. Error(kData).
RawTensors read_safetensors_header(const CheckedFile& file, size_t file_index);

// The model as one file, ordered as Hugging Face's library orders it: types of larger alignment first, then by name.
// A checkpoint which that library wrote comes back byte for byte.
FileLayout safetensors_layout(const ModelSource& source);

}  // namespace lfm2
