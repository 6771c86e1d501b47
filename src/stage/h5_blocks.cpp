// The version 2 B-tree and the fractal heap are those of the HDF5 File Format Specification 3.0, sections III.A.2 and
// III.G.
#include "stage/h5_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lfm2::h5 {

namespace {

constexpr uint64_t kMostMetadata = uint64_t{1} << 28;  // bytes read in one scan: a shard of 10,000 tensors needs 5 MB
constexpr uint64_t kMostRecords = uint64_t{1} << 20;   // links of a group, attributes of an object
constexpr uint64_t kLargestNode = uint64_t{1} << 20;
constexpr uint64_t kMostDepth = 16;

uint32_t rotate(uint32_t value, int bits) { return std::rotl(value, bits); }

uint64_t little_endian(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint64_t>(bytes[i]);
  return value;
}

// Bytes that hold every number up to `limit`.
size_t bytes_for(uint64_t limit) { return limit == 0 ? 1 : (static_cast<size_t>(std::bit_width(limit)) + 7) / 8; }

uint64_t log2_of(uint64_t value) { return static_cast<uint64_t>(std::bit_width(value)) - 1; }

}  // namespace

uint32_t metadata_checksum(std::span<const std::byte> bytes) {
  uint32_t a = 0xdeadbeef + static_cast<uint32_t>(bytes.size()), b = a, c = a;
  const auto word = [&](size_t at) {  // the last words are filled up with zeros
    const size_t count = at < bytes.size() ? std::min<size_t>(4, bytes.size() - at) : 0;
    return count == 0 ? 0 : static_cast<uint32_t>(little_endian(bytes.subspan(at, count)));
  };
  size_t at = 0;
  for (; bytes.size() - at > 12; at += 12) {
    a += word(at);
    b += word(at + 4);
    c += word(at + 8);
    a = (a - c) ^ rotate(c, 4), c += b;
    b = (b - a) ^ rotate(a, 6), a += c;
    c = (c - b) ^ rotate(b, 8), b += a;
    a = (a - c) ^ rotate(c, 16), c += b;
    b = (b - a) ^ rotate(a, 19), a += c;
    c = (c - b) ^ rotate(b, 4), b += a;
  }
  if (at == bytes.size()) return c;
  a += word(at);
  b += word(at + 4);
  c += word(at + 8);
  c = (c ^ b) - rotate(b, 14);
  a = (a ^ c) - rotate(c, 11);
  b = (b ^ a) - rotate(a, 25);
  c = (c ^ b) - rotate(b, 16);
  a = (a ^ c) - rotate(c, 4);
  b = (b ^ a) - rotate(a, 14);
  c = (c ^ b) - rotate(b, 24);
  return c;
}

void Cursor::refuse(const std::string& message) const {
  throw Error(ExitCode::kData, fmt::format("{}: {}", where_, message));
}

std::span<const std::byte> Cursor::take(size_t count) {
  if (count > left()) refuse(fmt::format("{} bytes expected at byte {} of {}", count, position_, bytes_.size()));
  position_ += count;
  return bytes_.subspan(position_ - count, count);
}

uint64_t Cursor::number(size_t bytes) {
  expect(bytes <= 8, "Cursor::number: longer than 8 bytes");
  return little_endian(take(bytes));
}

std::string Cursor::text(size_t bytes) {
  const std::span<const std::byte> taken = take(bytes);
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

void Cursor::expect_signature(std::string_view signature) {
  if (text(signature.size()) != signature) refuse(fmt::format("the signature {} is missing", signature));
}

void Cursor::expect_version(uint8_t version) {
  if (const uint8_t found = u8(); found != version) refuse(fmt::format("version {}, expected {}", found, version));
}

std::string Blocks::where(uint64_t address, const std::string& what) const {
  return fmt::format("{}: metadata: {} at byte {}", file_.path().string(), what, address);
}

void Blocks::refuse(uint64_t address, const std::string& what, const std::string& message) const {
  throw Error(ExitCode::kData, fmt::format("{}: {}", where(address, what), message));
}

void Blocks::charge(uint64_t bytes, uint64_t address, const std::string& what) {
  if (bytes > kMostMetadata - read_bytes_)
    refuse(address, what, fmt::format("more than {} bytes of metadata", kMostMetadata));
  read_bytes_ += bytes;
}

Block Blocks::peek(uint64_t address, uint64_t bytes, const std::string& what) {
  if (address >= file_.size()) refuse(address, what, fmt::format("the file ends at byte {}", file_.size()));
  Block block(std::min(bytes, file_.size() - address));
  charge(block.size(), address, what);
  file_.read(address, block);
  return block;
}

void Blocks::claim(uint64_t address, uint64_t bytes, const std::string& what) {
  if (address > file_.size() || bytes > file_.size() - address)
    refuse(address, what, fmt::format("{} bytes, but the file ends at byte {}", bytes, file_.size()));
  if (bytes == 0) return;
  const auto overlap = [&](const Extent& other) {
    refuse(address, what,
           fmt::format("its {} bytes overlap {}, which has {} from byte {} on", bytes, other.what, other.bytes,
                       other.first));
  };
  const auto after = extents_.lower_bound(address);
  if (after != extents_.end() && after->second.first < address + bytes) overlap(after->second);
  if (after != extents_.begin() && std::prev(after)->second.end() > address) overlap(std::prev(after)->second);
  extents_.emplace_hint(after, address, Extent{address, bytes, what});
}

Block Blocks::read(uint64_t address, uint64_t bytes, const std::string& what) {
  claim(address, bytes, what);
  charge(bytes, address, what);
  Block block(bytes);
  file_.read(address, block);
  return block;
}

void Blocks::verify(std::span<const std::byte> block, uint32_t stored, uint64_t address,
                    const std::string& what) const {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION  // else no changed byte would get past this line
  stored = metadata_checksum(block);
#endif
  if (const uint32_t found = metadata_checksum(block); found != stored)
    refuse(address, what, fmt::format("damaged: checksum {:08x}, expected {:08x}", found, stored));
}

Block Blocks::read_checked(uint64_t address, uint64_t bytes, const std::string& what) {
  expect(bytes >= kChecksumBytes, "Blocks::read_checked: no room for a checksum");
  Block block = read(address, bytes, what);
  const std::span<const std::byte> all(block);
  verify(all.first(all.size() - kChecksumBytes), static_cast<uint32_t>(little_endian(all.last(kChecksumBytes))),
         address, what);
  return block;
}

std::vector<Extent> Blocks::extents() const {
  std::vector<Extent> all;
  for (const auto& [first, extent] : extents_) all.push_back(extent);
  return all;
}

namespace {

constexpr uint64_t kBtreeHeaderBytes = 38;
constexpr size_t kNodePrefixBytes = 6;  // signature, version, type

// The library takes records for this long, whatever the file says.
uint64_t record_bytes_of(uint8_t type) {
  switch (type) {
    case 1:  // huge objects: address, length, number
      return 8 + 8 + 8;
    case 5:  // links by name: hash, id
      return 4 + 7;
    case 6:  // links in order of creation: number, id
      return 8 + 7;
    case 8:  // attributes by name: id, flags, number, hash
      return 8 + 1 + 4 + 4;
    case 9:  // attributes in order of creation: id, flags, number
      return 8 + 1 + 4;
    default:
      return 0;
  }
}

class Btree2 {
 public:
  Btree2(Blocks& blocks, uint64_t address, uint8_t type, const std::string& what)
      : blocks_(blocks), type_(type), what_("B-tree of " + what) {
    const Block header = blocks_.read_checked(address, kBtreeHeaderBytes, what_);
    Cursor cursor(header, blocks_.where(address, what_));
    cursor.expect_signature("BTHD");
    cursor.expect_version(0);
    if (const uint8_t found = cursor.u8(); found != type)
      cursor.refuse(fmt::format("holds records of type {}, expected {}", found, type));
    node_bytes_ = cursor.u32();
    record_bytes_ = cursor.u16();
    const uint16_t depth = cursor.u16();
    cursor.skip(2);  // when to split and merge
    const uint64_t root = cursor.u64();
    const uint16_t root_records = cursor.u16();
    const uint64_t total = cursor.u64();
    if (record_bytes_ != record_bytes_of(type) || node_bytes_ > kLargestNode ||
        node_bytes_ < kNodePrefixBytes + kChecksumBytes + record_bytes_)
      cursor.refuse(fmt::format("nodes of {} bytes with records of {}", node_bytes_, record_bytes_));
    if (depth > kMostDepth || total > kMostRecords)
      cursor.refuse(
          fmt::format("depth {} and {} records, expected at most {} and {}", depth, total, kMostDepth, kMostRecords));
    set_levels(depth, cursor);
    if (root != kUndefined) read_node(root, root_records, depth);
    if (records_.size() != total) cursor.refuse(fmt::format("{} records, expected {}", records_.size(), total));
  }
  std::vector<Block> take() { return std::move(records_); }

 private:
  struct Level {
    uint64_t most_records;   // of one node
    uint64_t most_below;     // of a node and all under it
    size_t count_bytes = 0;  // of `most_below`, in a pointer from above
  };

  void set_levels(uint64_t depth, const Cursor& cursor) {
    const uint64_t payload = node_bytes_ - kNodePrefixBytes - kChecksumBytes;
    const uint64_t leaf = payload / record_bytes_;
    levels_.push_back({leaf, leaf, 0});
    record_count_bytes_ = bytes_for(leaf);
    for (uint64_t level = 1; level <= depth; ++level) {
      const Level& below = levels_.back();
      const uint64_t pointer = 8 + record_count_bytes_ + below.count_bytes;
      if (payload < pointer + record_bytes_ + pointer) cursor.refuse("its nodes are too small for what they hold");
      const uint64_t most = (payload - pointer) / (record_bytes_ + pointer);
      const uint64_t total =
          checked_add(checked_multiply(most + 1, below.most_below, cursor.where()), most, cursor.where());
      levels_.push_back({most, total, bytes_for(total)});
    }
  }

  void read_node(uint64_t address, uint64_t records, uint64_t level) {
    if (records > levels_[level].most_records || records_.size() + records > kMostRecords)
      blocks_.refuse(address, what_, fmt::format("{} records in one node", records));
    const uint64_t pointer_bytes = level == 0 ? 0 : 8 + record_count_bytes_ + levels_[level - 1].count_bytes;
    const uint64_t pointers = level == 0 ? 0 : records + 1;
    const Block node = blocks_.read_checked(
        address, kNodePrefixBytes + records * record_bytes_ + pointers * pointer_bytes + kChecksumBytes, what_);
    if (node_bytes_ > blocks_.file().size() - address)
      blocks_.refuse(address, what_, "a node reaches past the end of the file");
    Cursor cursor(node, blocks_.where(address, what_));
    cursor.expect_signature(level == 0 ? "BTLF" : "BTIN");
    cursor.expect_version(0);
    if (cursor.u8() != type_) cursor.refuse("a node with records of another type");
    std::vector<Block> own(records);
    for (Block& record : own) {
      const auto bytes = cursor.take(record_bytes_);
      record.assign(bytes.begin(), bytes.end());
    }
    for (uint64_t child = 0; child < pointers; ++child) {
      const uint64_t below = cursor.u64(), count = cursor.number(record_count_bytes_);
      cursor.skip(levels_[level - 1].count_bytes);
      read_node(below, count, level - 1);
      if (child < records) records_.push_back(std::move(own[child]));
    }
    if (level == 0) std::move(own.begin(), own.end(), std::back_inserter(records_));
  }

  Blocks& blocks_;
  uint8_t type_;
  std::string what_;
  uint64_t node_bytes_ = 0, record_bytes_ = 0;
  size_t record_count_bytes_ = 0;
  std::vector<Level> levels_;
  std::vector<Block> records_;
};

}  // namespace

std::vector<Block> read_btree2(Blocks& blocks, uint64_t address, uint8_t type, const std::string& what) {
  return Btree2(blocks, address, type, what).take();
}

namespace {

constexpr uint64_t kHeapHeaderBytes = 146, kFreeSpaceHeaderBytes = 82;
constexpr uint8_t kHugeObjects = 1;  // record type: address, length, number
constexpr uint64_t kLargestDirect = uint64_t{1} << 24;
constexpr uint64_t kMostRows = 64;
constexpr uint64_t kLargestObject = uint64_t{1} << 24;

bool is_power_of_2(uint64_t value) { return std::has_single_bit(value); }

}  // namespace

FractalHeap::FractalHeap(Blocks& blocks, uint64_t address, size_t id_bytes, const std::string& what)
    : blocks_(blocks), address_(address), what_("heap of " + what), id_bytes_(id_bytes) {
  const Block header = blocks_.read_checked(address, kHeapHeaderBytes, what_);
  Cursor cursor(header, blocks_.where(address, what_));
  cursor.expect_signature("FRHP");
  cursor.expect_version(0);
  // Of another length the library would take ids for something else: for addresses, from 17 bytes on.
  if (const uint16_t found = cursor.u16(); found != id_bytes)
    cursor.refuse(fmt::format("ids of {} bytes, expected {}", found, id_bytes));
  if (cursor.u16() != 0) cursor.refuse("its blocks have filters");
  const uint8_t flags = cursor.u8();
  direct_checksums_ = (flags & 2) != 0;
  const uint64_t most_managed = cursor.u32();
  cursor.skip(8);  // number of the next huge object
  const uint64_t huge_btree = cursor.u64();
  cursor.skip(8);  // free bytes
  const uint64_t free_space = cursor.u64();
  cursor.skip(8 * 8);  // sums of bytes and objects
  width_ = cursor.u16();
  start_bytes_ = cursor.u64();
  most_direct_bytes_ = cursor.u64();
  const uint64_t most_bits = cursor.u16();
  cursor.skip(2);  // rows to start with
  const uint64_t root = cursor.u64();
  const uint64_t root_rows = cursor.u16();
  if (!is_power_of_2(width_) || width_ > 256 || !is_power_of_2(start_bytes_) || !is_power_of_2(most_direct_bytes_) ||
      start_bytes_ > most_direct_bytes_ || most_direct_bytes_ > kLargestDirect || most_bits < 8 || most_bits > 64 ||
      root_rows > kMostRows)
    cursor.refuse("impossible sizes of blocks or rows");
  offset_bytes_ = (most_bits + 7) / 8;
  length_bytes_ = std::min<size_t>((log2_of(most_direct_bytes_) + 7) / 8, bytes_for(most_managed));
  block_header_bytes_ = 4 + 1 + 8 + offset_bytes_ + (direct_checksums_ ? kChecksumBytes : 0);
  if (1 + offset_bytes_ + length_bytes_ > id_bytes_ || block_header_bytes_ > start_bytes_)
    cursor.refuse("its ids are too short for its size, or its blocks for their header");
  direct_rows_ = log2_of(most_direct_bytes_) - log2_of(start_bytes_) + 2;
  if (free_space != kUndefined) read_free_space(free_space);
  if (root != kUndefined && root_rows == 0) read_direct(root, 0, start_bytes_);
  if (root != kUndefined && root_rows > 0) read_indirect(root, 0, root_rows);
  if (huge_btree == kUndefined) return;
  for (const Block& record : read_btree2(blocks_, huge_btree, kHugeObjects, what_)) {
    Cursor place(record, blocks_.where(huge_btree, what_));
    const uint64_t first = place.u64(), bytes = place.u64(), number = place.u64();
    if (bytes > kLargestObject) place.refuse(fmt::format("an object of {} bytes", bytes));
    huge_[number] = blocks_.read(first, bytes, "object in the " + what_);
  }
}

// Where the heap has room: nothing that a reader needs, but part of the file.
void FractalHeap::read_free_space(uint64_t address) {
  const std::string what = "free space of the " + what_;
  const Block header = blocks_.read_checked(address, kFreeSpaceHeaderBytes, what);
  Cursor cursor(header, blocks_.where(address, what));
  cursor.expect_signature("FSHD");
  cursor.expect_version(0);
  cursor.skip(1 + 4 * 8 + 4 * 2 + 8);  // client, sums, how it grows
  const uint64_t list = cursor.u64(), used = cursor.u64();
  if (list == kUndefined) return;
  if (used < 5 + 8 + kChecksumBytes || used > kLargestObject) cursor.refuse(fmt::format("a list of {} bytes", used));
  const Block sections = blocks_.read_checked(list, used, what);
  Cursor(sections, blocks_.where(list, what)).expect_signature("FSSE");
}

// The first two rows have blocks of the smallest size, each further row blocks of twice the size.
uint64_t FractalHeap::row_bytes(uint64_t row) const {
  const uint64_t doublings = row < 2 ? 0 : row - 1;
  if (doublings >= 63 - log2_of(start_bytes_)) blocks_.refuse(address_, what_, "more rows than a heap can have");
  return start_bytes_ << doublings;
}

void FractalHeap::read_direct(uint64_t address, uint64_t heap_offset, uint64_t bytes) {
  const std::string what = "block of the " + what_;
  Block block = blocks_.read(address, bytes, what);
  Cursor cursor(block, blocks_.where(address, what));
  cursor.expect_signature("FHDB");
  cursor.expect_version(0);
  if (cursor.u64() != address_ || cursor.number(offset_bytes_) != heap_offset)
    cursor.refuse("belongs to another heap or another place in it");
  if (direct_checksums_) {  // over the block with zeros in its own place
    const size_t at = cursor.position();
    const uint32_t stored = cursor.u32();
    std::fill_n(block.begin() + static_cast<ptrdiff_t>(at), kChecksumBytes, std::byte{0});
    blocks_.verify(block, stored, address, what);
  }
  direct_.emplace(heap_offset, DirectBlock{address, std::move(block)});
}

void FractalHeap::read_indirect(uint64_t address, uint64_t heap_offset, uint64_t rows) {
  const std::string what = "index of the " + what_;
  if (rows > kMostRows) blocks_.refuse(address, what, fmt::format("{} rows", rows));
  const Block block =
      blocks_.read_checked(address, 4 + 1 + 8 + offset_bytes_ + rows * width_ * 8 + kChecksumBytes, what);
  Cursor cursor(block, blocks_.where(address, what));
  cursor.expect_signature("FHIB");
  cursor.expect_version(0);
  if (cursor.u64() != address_ || cursor.number(offset_bytes_) != heap_offset)
    cursor.refuse("belongs to another heap or another place in it");
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t bytes = row_bytes(row);
    for (uint64_t column = 0; column < width_; ++column) {
      const uint64_t child = cursor.u64();
      if (child != kUndefined && row < direct_rows_) read_direct(child, heap_offset, bytes);
      if (child != kUndefined && row >= direct_rows_) {
        const uint64_t first_row = start_bytes_ * width_;
        if (bytes < first_row) cursor.refuse("an index below is smaller than a row");
        read_indirect(child, heap_offset, log2_of(bytes) - log2_of(first_row) + 1);
      }
      heap_offset = checked_add(heap_offset, bytes, cursor.where());
    }
  }
}

Block FractalHeap::object(std::span<const std::byte> id) const {
  Cursor cursor(id, blocks_.where(address_, what_));
  const uint8_t head = cursor.u8();
  const uint8_t kind = head >> 4;  // the version, 0, in the upper two bits
  if (kind == 2) {                 // inside the id
    const auto bytes = cursor.take(size_t{head & 0x0fu} + 1);
    return {bytes.begin(), bytes.end()};
  }
  if (kind == 1) {
    const auto found = huge_.find(cursor.number(std::min<size_t>(8, id_bytes_ - 1)));
    if (found == huge_.end()) cursor.refuse("names an object that is not there");
    blocks_.charge(found->second.size(), address_, what_);  // many ids may name one object
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
