// model.bin, the original project's form: a table of names, shapes and offsets, then fp32 data.
#pragma once

#include "stage/support/checked_file.h"
#include "weights-tools/formats/raw_tensor.h"
#include "weights-tools/model/model_source.h"
#include "weights-tools/model/model_writer.h"

namespace lfm2 {

// The tensors of a file under their Hugging Face names (the file leaves out the leading "model."). Checked: limits on
// counts, names and ranks, sizes equal to shape x 4, data inside the file and not overlapping. Error(kData).
RawTensors read_model_bin_header(const CheckedFile& file);

// The model in the order of model_tensors(), everything as fp32, the data directly behind the table.
FileLayout model_bin_layout(const ModelSource& source);

}  // namespace lfm2
