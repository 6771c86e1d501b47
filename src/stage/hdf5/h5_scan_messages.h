// What the messages of an object's header say: its attributes, and the type, shape, filters and place of a dataset.
// Used by the scan alone.
#pragma once

#include "stage/hdf5/h5_scan_header.h"

namespace lfm2::h5 {

ScannedAttributes read_attributes(Blocks& blocks, const ObjectHeader& header);

// Reads a dataset with its attributes, and claims the extent of its data where they are contiguous.
ScannedDataset read_dataset(Blocks& blocks, const ObjectHeader& header);

}  // namespace lfm2::h5
