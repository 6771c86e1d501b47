// What the messages of an object's header say: attributes, and the type, shape, filters and place of a dataset. Used by
// the scan alone.
#pragma once

#include "stage/hdf5/h5_scan_header.h"

namespace lfm2::h5 {

ScannedAttributes read_attributes(Blocks& blocks, const ObjectHeader& header);

// With its attributes; claims the extent of contiguous data.
ScannedDataset read_dataset(Blocks& blocks, const ObjectHeader& header);

}  // namespace lfm2::h5
