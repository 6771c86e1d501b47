// Version 2 B-trees of an HDF5 file: the index of links, attributes and huge objects. Used by the scan alone.
#pragma once

#include "stage/hdf5/h5_blocks.h"

namespace lfm2::h5 {

// All records of a version 2 B-tree, in order.
std::vector<Block> read_btree2(Blocks& blocks, uint64_t address, uint8_t type, const std::string& what);

}  // namespace lfm2::h5
