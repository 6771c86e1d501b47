// Structures of an HDF5 file outside of object headers. Version 2 B-trees index links, attributes and huge objects;
// fractal heaps hold the links of large groups and large attributes. Used only by the scan.
#pragma once

#include "stage/hdf5/h5_blocks.h"

namespace lfm2::h5 {

// All records of a version 2 B-tree, in order.
std::vector<Block> read_btree2(Blocks& blocks, uint64_t address, uint8_t type, const std::string& what);

// The sizes of a heap's blocks. A row has `width` blocks; the first two rows have the smallest blocks, each further row
// doubles them. Rows with larger blocks than `max_direct_bytes` have indexes of blocks in their place.
class DoublingTable {
 public:
  DoublingTable() = default;
  explicit DoublingTable(Cursor& header);  // reads it from the heap's header

  bool possible() const;  // true for sizes that a heap may have; the other functions expect them
  uint64_t width() const { return width_; }
  uint64_t start_bytes() const { return start_bytes_; }  // of the smallest block
  uint64_t max_direct_bytes() const { return max_direct_bytes_; }
  bool is_direct(uint64_t row) const;
  // Bytes of each block in this row. `index` refuses rows that no heap has.
  uint64_t row_bytes(uint64_t row, const Cursor& index) const;
  // The rows of an index in the place of a block of this size. `index` refuses it if it is smaller than a row.
  uint64_t rows_in(uint64_t bytes, const Cursor& index) const;

 private:
  uint64_t width_ = 0, start_bytes_ = 0, max_direct_bytes_ = 0;
};

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

  Blocks& blocks_;
  uint64_t address_;
  std::string what_;
  size_t id_bytes_ = 0, offset_bytes_ = 0, length_bytes_ = 0, block_header_bytes_ = 0;
  bool direct_checksums_ = false;
  DoublingTable table_;
  std::map<uint64_t, DirectBlock> direct_;  // keyed by the offset in the heap
  std::map<uint64_t, Block> huge_;          // keyed by the object's number
};

}  // namespace lfm2::h5
