// model.bin, the original project's form: a table of names, shapes and offsets, then fp32 data.
#pragma once

#include "base/checked_file.h"
#include "weights-tools/formats/raw_tensor.h"
#include "weights-tools/model/model_source.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

// The tensors of a file under their Hugging Face names (the file leaves out the leading "model."). Checks limits on
// counts, names and ranks, that sizes are shape x 4, and that data lie inside the file and do not overlap.
// Error(kData).
RawTensors read_model_bin_header(const CheckedFile& file);

// The layout of the model in the order of model_tensors(), everything as fp32, with the data directly behind the table.
FileLayout model_bin_layout(const ModelSource& source);

}  // namespace lfm2
