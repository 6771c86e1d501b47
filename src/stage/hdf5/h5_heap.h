// Structures of an HDF5 file outside of object headers. Version 2 B-trees index links, attributes and huge objects;
// fractal heaps hold the links of large groups and large attributes. Used only by the scan.
#pragma once

#include "stage/hdf5/h5_blocks.h"

namespace lfm2::h5 {

// All records of a version 2 B-tree, in order.
std::vector<Block> read_btree2(Blocks& blocks, uint64_t address, uint8_t type, const std::string& what);

// Reads the whole heap at once. Error(kData) if it violates the specification.
class FractalHeap {
 public:
  FractalHeap(Blocks& blocks, uint64_t address, size_t id_bytes, const std::string& what);

  Block object(std::span<const std::byte> id) const;

 private:
  struct DirectBlock {
    uint64_t address;
    Block bytes;
  };

  void read_free_space(uint64_t address);
  void read_direct(uint64_t address, uint64_t heap_offset, uint64_t bytes);
  void read_indirect(uint64_t address, uint64_t heap_offset, uint64_t rows);
  uint64_t row_bytes(uint64_t row) const;

  Blocks& blocks_;
  uint64_t address_;
  std::string what_;
  size_t id_bytes_ = 0, offset_bytes_ = 0, length_bytes_ = 0, block_header_bytes_ = 0;
  bool direct_checksums_ = false;
  uint64_t width_ = 0, start_bytes_ = 0, max_direct_bytes_ = 0, direct_rows_ = 0;
  std::map<uint64_t, DirectBlock> direct_;  // keyed by the offset in the heap
  std::map<uint64_t, Block> huge_;          // keyed by the object's number
};

}  // namespace lfm2::h5
