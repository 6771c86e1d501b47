// Fractal heaps, as HDF5 File Format Specification 3.0, section III.G describes them.
#include "stage/hdf5/h5_heap.h"

#include <algorithm>
#include <bit>

namespace lfm2::h5 {

namespace {

constexpr uint64_t kHeapHeaderBytes = 146, kFreeSpaceHeaderBytes = 82;
// Type of the B-tree records that list huge objects: address, length, number.
constexpr uint8_t kHugeObjects = 1;
constexpr uint64_t kMaxDirect = uint64_t{1} << 24;
constexpr uint64_t kMaxRows = 64;
constexpr uint64_t kMaxObject = uint64_t{1} << 24;

uint64_t log2_of(uint64_t value) { return static_cast<uint64_t>(std::bit_width(value)) - 1; }

}  // namespace

DoublingTable::DoublingTable(Cursor& header) {
  width_ = header.u16();
  start_bytes_ = header.u64();
  max_direct_bytes_ = header.u64();
}

bool DoublingTable::possible() const {
  return std::has_single_bit(width_) && width_ <= 256 && std::has_single_bit(start_bytes_) &&
         std::has_single_bit(max_direct_bytes_) && start_bytes_ <= max_direct_bytes_ && max_direct_bytes_ <= kMaxDirect;
}

bool DoublingTable::is_direct(uint64_t row) const {
  return row < log2_of(max_direct_bytes_) - log2_of(start_bytes_) + 2;
}

uint64_t DoublingTable::row_bytes(uint64_t row, const Cursor& index) const {
  const uint64_t doublings = row < 2 ? 0 : row - 1;
  if (doublings >= 63 - log2_of(start_bytes_)) index.refuse("more rows than a heap can have");
  return start_bytes_ << doublings;
}

uint64_t DoublingTable::rows_in(uint64_t bytes, const Cursor& index) const {
  const uint64_t first_row = start_bytes_ * width_;
  if (bytes < first_row) index.refuse("an index below is smaller than a row");
  return log2_of(bytes) - log2_of(first_row) + 1;
}

FractalHeap::FractalHeap(Blocks& blocks, uint64_t address, size_t id_bytes, const std::string& what)
    : blocks_(blocks), address_(address), what_("heap of " + what), id_bytes_(id_bytes) {
  const Block header = blocks_.read_checked(address, kHeapHeaderBytes, what_);
  Cursor cursor(header, blocks_.where(address, what_));
  cursor.expect_signature("FRHP", 0);
  // The library would misread ids of another length, from 17 bytes on as addresses.
  if (const uint16_t found = cursor.u16(); found != id_bytes)
    cursor.refuse(fmt::format("ids of {} bytes, expected {}", found, id_bytes));
  if (cursor.u16() != 0) cursor.refuse("its blocks have filters");
  const uint8_t flags = cursor.u8();
  direct_checksums_ = (flags & 2) != 0;
  const uint64_t max_managed = cursor.u32();
  cursor.skip(8);  // number that the next huge object gets
  const uint64_t huge_btree = cursor.u64();
  cursor.skip(8);  // free bytes
  const uint64_t free_space = cursor.u64();
  cursor.skip(8 * 8);  // counts of bytes and objects
  table_ = DoublingTable(cursor);
  const uint64_t max_bits = cursor.u16();
  cursor.skip(2);  // rows that a new root block starts with
  const uint64_t root = cursor.u64();
  const uint64_t root_rows = cursor.u16();
  if (!table_.possible() || max_bits < 8 || max_bits > 64 || root_rows > kMaxRows)
    cursor.refuse("impossible sizes of blocks or rows");
  offset_bytes_ = (max_bits + 7) / 8;
  length_bytes_ = std::min<size_t>((log2_of(table_.max_direct_bytes()) + 7) / 8, bytes_for(max_managed));
  block_header_bytes_ = 4 + 1 + 8 + offset_bytes_ + (direct_checksums_ ? kChecksumBytes : 0);
  if (1 + offset_bytes_ + length_bytes_ > id_bytes_ || block_header_bytes_ > table_.start_bytes())
    cursor.refuse("its ids are too short for its size, or its blocks for their header");
  if (free_space != kUndefined) read_free_space(free_space);
  if (root != kUndefined && root_rows == 0) read_direct(root, 0, table_.start_bytes());
  if (root != kUndefined && root_rows > 0) read_indirect(root, 0, root_rows);
  if (huge_btree == kUndefined) return;
  for (const Block& record : read_btree2(blocks_, huge_btree, kHugeObjects, what_)) {
    Cursor place(record, blocks_.where(huge_btree, what_));
    const uint64_t first = place.u64(), bytes = place.u64(), number = place.u64();
    if (bytes > kMaxObject) place.refuse(fmt::format("an object of {} bytes", bytes));
    huge_[number] = blocks_.read(first, bytes, "object in the " + what_);
  }
}

// Claims and checks the list of the heap's free space: no reader needs it, but it is a part of the file.
void FractalHeap::read_free_space(uint64_t address) {
  const std::string what = "free space of the " + what_;
  const Block header = blocks_.read_checked(address, kFreeSpaceHeaderBytes, what);
  Cursor cursor(header, blocks_.where(address, what));
  cursor.expect_signature("FSHD", 0);
  cursor.skip(1 + 4 * 8 + 4 * 2 + 8);  // client, sums, how it grows
  const uint64_t list = cursor.u64(), used = cursor.u64();
  if (list == kUndefined) return;
  if (used < 5 + 8 + kChecksumBytes || used > kMaxObject) cursor.refuse(fmt::format("a list of {} bytes", used));
  const Block sections = blocks_.read_checked(list, used, what);
  Cursor(sections, blocks_.where(list, what)).expect_signature("FSSE");
}

void FractalHeap::read_direct(uint64_t address, uint64_t heap_offset, uint64_t bytes) {
  const std::string what = "block of the " + what_;
  Block block = blocks_.read(address, bytes, what);
  Cursor cursor(block, blocks_.where(address, what));
  cursor.expect_signature("FHDB", 0);
  if (cursor.u64() != address_ || cursor.number(offset_bytes_) != heap_offset)
    cursor.refuse("belongs to another heap or another place in it");
  if (direct_checksums_) {  // the checksum covers the block with its own bytes as zeros
    const size_t at = cursor.position();
    const uint32_t stored = cursor.u32();
    std::fill_n(block.begin() + static_cast<ptrdiff_t>(at), kChecksumBytes, std::byte{0});
    blocks_.verify(block, stored, address, what);
  }
  direct_.emplace(heap_offset, DirectBlock{address, std::move(block)});
}

void FractalHeap::read_indirect(uint64_t address, uint64_t heap_offset, uint64_t rows) {
  const std::string what = "index of the " + what_;
  if (rows > kMaxRows) blocks_.refuse(address, what, fmt::format("{} rows", rows));
  const Block block =
      blocks_.read_checked(address, 4 + 1 + 8 + offset_bytes_ + rows * table_.width() * 8 + kChecksumBytes, what);
  Cursor cursor(block, blocks_.where(address, what));
  cursor.expect_signature("FHIB", 0);
  if (cursor.u64() != address_ || cursor.number(offset_bytes_) != heap_offset)
    cursor.refuse("belongs to another heap or another place in it");
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t bytes = table_.row_bytes(row, cursor);
    for (uint64_t column = 0; column < table_.width(); ++column) {
      const uint64_t child = cursor.u64();
      if (child != kUndefined && table_.is_direct(row)) read_direct(child, heap_offset, bytes);
      if (child != kUndefined && !table_.is_direct(row))
        read_indirect(child, heap_offset, table_.rows_in(bytes, cursor));
      heap_offset = checked_add(heap_offset, bytes, cursor.where());
    }
  }
}

Block FractalHeap::object(std::span<const std::byte> id) const {
  Cursor cursor(id, blocks_.where(address_, what_));
  const uint8_t head = cursor.u8();
  const uint8_t kind = head >> 4;  // the upper two bits are the version, which is 0
  if (kind == 2) {                 // the object's bytes are in the id
    const auto bytes = cursor.read(size_t{head & 0x0fu} + 1);
    return {bytes.begin(), bytes.end()};
  }
  if (kind == 1) {
    const auto found = huge_.find(cursor.number(std::min<size_t>(8, id_bytes_ - 1)));
    if (found == huge_.end()) cursor.refuse("names an object that is not there");
    blocks_.charge(found->second.size(), address_, what_);  // counted, because many ids may name one object
    return found->second;
  }
  if (kind != 0) cursor.refuse(fmt::format("an id of kind {}", kind));
  const uint64_t offset = cursor.number(offset_bytes_), length = cursor.number(length_bytes_);
  auto at = direct_.upper_bound(offset);
  if (at == direct_.begin()) cursor.refuse(fmt::format("no block holds its byte {}", offset));
  --at;
  const Block& block = at->second.bytes;
  const uint64_t inside = offset - at->first;
  if (inside < block_header_bytes_ || inside > block.size() || length > block.size() - inside)
    cursor.refuse(fmt::format("no block holds its bytes from {} to {}", offset, offset + length));
  blocks_.charge(length, address_, what_);
  const auto first = block.begin() + static_cast<ptrdiff_t>(inside);
  return {first, first + static_cast<ptrdiff_t>(length)};
}

}  // namespace lfm2::h5
