// Version 2 B-trees, as HDF5 File Format Specification 3.0, section III.A.2 describes them.
#include <algorithm>

#include "stage/hdf5/h5_heap.h"

namespace lfm2::h5 {

namespace {

// Limit for the links of a group and for the attributes of an object.
constexpr uint64_t kMaxRecords = uint64_t{1} << 20;
constexpr uint64_t kMaxNode = uint64_t{1} << 20;
constexpr uint64_t kMaxDepth = 16;
constexpr uint64_t kBtreeHeaderBytes = 38;
constexpr size_t kNodePrefixBytes = 6;  // signature, version, type

// The length of a record of this type; 0 for an unknown one. The library assumes these lengths whatever the file says.
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
    cursor.expect_signature("BTHD", 0);
    if (const uint8_t found = cursor.u8(); found != type)
      cursor.refuse(fmt::format("holds records of type {}, expected {}", found, type));
    node_bytes_ = cursor.u32();
    record_bytes_ = cursor.u16();
    const uint16_t depth = cursor.u16();
    cursor.skip(2);  // the percentages at which nodes split and merge
    const uint64_t root = cursor.u64();
    const uint16_t root_records = cursor.u16();
    const uint64_t total = cursor.u64();
    if (record_bytes_ != record_bytes_of(type) || node_bytes_ > kMaxNode ||
        node_bytes_ < kNodePrefixBytes + kChecksumBytes + record_bytes_)
      cursor.refuse(fmt::format("nodes of {} bytes with records of {}", node_bytes_, record_bytes_));
    if (depth > kMaxDepth || total > kMaxRecords)
      cursor.refuse(
          fmt::format("depth {} and {} records, expected at most {} and {}", depth, total, kMaxDepth, kMaxRecords));
    set_levels(depth, cursor);
    if (root != kUndefined) read_node(root, root_records, depth);
    if (records_.size() != total) cursor.refuse(fmt::format("{} records, expected {}", records_.size(), total));
  }
  std::vector<Block> take() { return std::move(records_); }

 private:
  struct Level {
    uint64_t max_records;    // limit of the records in one node of this level
    uint64_t max_below;      // limit of the records in a node of this level and all nodes below it
    size_t count_bytes = 0;  // width of the field that counts those records, in a pointer from the level above
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
          checked_add(checked_multiply(most + 1, below.max_below, cursor.where()), most, cursor.where());
      levels_.push_back({most, total, bytes_for(total)});
    }
  }

  void read_node(uint64_t address, uint64_t records, uint64_t level) {
    if (records > levels_[level].max_records || records_.size() + records > kMaxRecords)
      blocks_.refuse(address, what_, fmt::format("{} records in one node", records));
    const uint64_t pointer_bytes = level == 0 ? 0 : 8 + record_count_bytes_ + levels_[level - 1].count_bytes;
    const uint64_t pointers = level == 0 ? 0 : records + 1;
    const Block node = blocks_.read_checked(
        address, kNodePrefixBytes + records * record_bytes_ + pointers * pointer_bytes + kChecksumBytes, what_);
    if (node_bytes_ > blocks_.file().size() - address)
      blocks_.refuse(address, what_, "a node reaches past the end of the file");
    Cursor cursor(node, blocks_.where(address, what_));
    cursor.expect_signature(level == 0 ? "BTLF" : "BTIN", 0);
    if (cursor.u8() != type_) cursor.refuse("a node with records of another type");
    std::vector<Block> own(records);
    for (Block& record : own) {
      const auto bytes = cursor.read(record_bytes_);
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

}  // namespace lfm2::h5
