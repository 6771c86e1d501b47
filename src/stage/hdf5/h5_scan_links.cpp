// Groups: the version 1 B-tree, symbol table nodes and local heap (HDF5 File Format Specification 3.0, sections III.A.1
// and III.B to III.D), and link messages (IV.A.2).
#include <algorithm>

#include "stage/hdf5/h5_scan_header.h"

namespace lfm2::h5 {

namespace {

constexpr size_t kMaxLinks = size_t{1} << 20;
constexpr size_t kMaxNameBytes = 4096;
constexpr uint64_t kMaxNames = uint64_t{1} << 24;  // limit for the names of a symbol table, in bytes
constexpr uint64_t kMaxTreeLevels = 16;

class LinkReader {
 public:
  LinkReader(Blocks& blocks, const ObjectHeader& group, const SymbolTableFacts& facts, const ScanRules& rules)
      : blocks_(blocks), group_(group), facts_(facts), rules_(rules) {}
  Links read();

 private:
  void read_link(const Block& message);
  void read_dense_links(const RawMessage& link_info);
  void read_symbol_table(const Block& message);
  void read_symbol_tree(uint64_t address, uint64_t level_limit, const Block& names);
  void read_symbol_node(uint64_t address, const Block& names);
  std::string name_in(const Block& heap, uint64_t at, const Cursor& from);
  void add_hard(const std::string& name, uint64_t address, const std::string& where);
  void pass_by(const std::string& name) const;

  Blocks& blocks_;
  const ObjectHeader& group_;
  const SymbolTableFacts& facts_;
  const ScanRules& rules_;
  Links links_;
};

Links LinkReader::read() {
  for (const RawMessage& message : group_.messages) {
    if (message.shared && message.type != MessageType::kAttribute) group_.refuse("a shared message");
    if (message.type == MessageType::kLink) read_link(message.data);
    if (message.type == MessageType::kSymbolTable) read_symbol_table(message.data);
    if (message.type == MessageType::kLinkInfo) read_dense_links(message);
  }
  return std::move(links_);
}

void LinkReader::add_hard(const std::string& name, uint64_t address, const std::string& where) {
  if (name.empty() || name.size() > kMaxNameBytes || name.find('\0') != std::string::npos ||
      name.find('/') != std::string::npos)
    throw Error(ExitCode::kData,
                fmt::format("{}: an object's name has {} bytes or characters that no name has", where, name.size()));
  if (links_.size() >= kMaxLinks)
    throw Error(ExitCode::kData, fmt::format("{}: more than {} objects", where, kMaxLinks));
  if (!links_.emplace(name, address).second)
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\" stands twice", where, name));
}

// Skips a link that is not hard. Error(kData) if the rules ask for its name.
void LinkReader::pass_by(const std::string& name) const {
  if (rules_.wants(name))
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is a soft or external link, expected only datasets",
                                             blocks_.file().path().string(), name));
}

void LinkReader::read_link(const Block& message) {
  Cursor cursor(message, group_.where);
  cursor.expect_version(1);
  const uint8_t flags = cursor.u8();
  const uint8_t type = (flags & 0x08) != 0 ? cursor.u8() : 0;
  if ((flags & 0x04) != 0) cursor.skip(8);  // order of creation
  if ((flags & 0x10) != 0) cursor.skip(1);  // character set
  const uint64_t length = cursor.number(size_t{1} << (flags & 3));
  if (length > kMaxNameBytes) cursor.refuse(fmt::format("an object's name of {} bytes", length));
  const std::string name = cursor.text(length);
  if (type == 0)
    add_hard(name, cursor.u64(), group_.where);
  else
    pass_by(name);
}

void LinkReader::read_dense_links(const RawMessage& link_info) {
  const DenseStorage storage{
      .order_bytes = 8, .id_bytes = 7, .by_name = 5, .what = "links", .what_by_order = "links in order of creation"};
  read_dense(blocks_, group_, link_info, storage, [&](const FractalHeap& heap, Cursor entry) {
    entry.skip(4);  // hash of the name
    read_link(heap.object(entry.read(storage.id_bytes)));
  });
}

// Reads the name at byte `at` of the heap. Its bytes are counted and its length is limited, for many entries may share
// one.
std::string LinkReader::name_in(const Block& heap, uint64_t at, const Cursor& from) {
  if (at >= heap.size()) from.refuse(fmt::format("a name at byte {} of {}", at, heap.size()));
  const auto first = heap.begin() + static_cast<ptrdiff_t>(at);
  const auto last = first + static_cast<ptrdiff_t>(std::min<uint64_t>(kMaxNameBytes + 1, heap.size() - at));
  const auto end = std::find(first, last, std::byte{0});
  if (end == last) from.refuse(fmt::format("an object's name without an end in {} bytes", last - first));
  const auto bytes = static_cast<uint64_t>(end - first);
  blocks_.charge(bytes, at, "name in the heap of the group");
  return {reinterpret_cast<const char*>(heap.data()) + at, bytes};
}

void LinkReader::read_symbol_node(uint64_t address, const Block& names) {
  const std::string what = "symbol table node";
  constexpr uint64_t kPrefixBytes = 8, kEntryBytes = 40;
  const Block start = blocks_.peek(address, kPrefixBytes, what);
  Cursor prefix(start, blocks_.where(address, what));
  prefix.expect_signature("SNOD", 1);
  prefix.skip(1);
  const uint64_t count = prefix.u16(), most = facts_.max_in_node;
  if (count > most) prefix.refuse(fmt::format("{} entries, expected at most {}", count, most));
  const Block node = blocks_.read(address, kPrefixBytes + count * kEntryBytes, what);
  Cursor cursor(node, blocks_.where(address, what));
  cursor.skip(kPrefixBytes);
  for (uint64_t entry = 0; entry < count; ++entry) {
    const uint64_t name_at = cursor.u64(), object = cursor.u64();
    const uint32_t kind = cursor.u32();
    cursor.skip(4 + 16);
    const std::string name = name_in(names, name_at, cursor);
    if (kind <= 1)
      add_hard(name, object, cursor.where());
    else
      pass_by(name);
  }
}

void LinkReader::read_symbol_tree(uint64_t address, uint64_t level_limit, const Block& names) {
  const std::string what = "B-tree of the group";
  constexpr uint64_t kPrefixBytes = 24;
  const Block start = blocks_.peek(address, kPrefixBytes, what);
  Cursor prefix(start, blocks_.where(address, what));
  prefix.expect_signature("TREE");
  const uint8_t type = prefix.u8(), level = prefix.u8();
  const uint64_t count = prefix.u16(), most = facts_.max_children;
  if (type != 0 || level >= level_limit) prefix.refuse(fmt::format("type {} and level {}", type, level));
  if (count > most) prefix.refuse(fmt::format("{} children, expected at most {}", count, most));
  const Block node = blocks_.read(address, kPrefixBytes + count * 16 + 8, what);
  Cursor cursor(node, blocks_.where(address, what));
  cursor.skip(kPrefixBytes);
  for (uint64_t child = 0; child < count; ++child) {
    name_in(names, cursor.u64(), cursor);  // a key: the first name of the child
    const uint64_t below = cursor.u64();
    if (level == 0)
      read_symbol_node(below, names);
    else
      read_symbol_tree(below, level, names);
  }
  name_in(names, cursor.u64(), cursor);
}

void LinkReader::read_symbol_table(const Block& message) {
  Cursor cursor(message, group_.where);
  const uint64_t tree = cursor.u64(), heap = cursor.u64();
  if (facts_.cached && *facts_.cached != SymbolTable{tree, heap})
    cursor.refuse("the superblock names another symbol table");
  const std::string what = "name heap of the group";
  const Block header = blocks_.read(heap, 32, what);
  Cursor names(header, blocks_.where(heap, what));
  names.expect_signature("HEAP", 0);
  names.skip(3);
  const uint64_t bytes = names.u64();
  names.skip(8);  // free list
  const uint64_t first = names.u64();
  if (bytes > kMaxNames) names.refuse(fmt::format("{} bytes of names", bytes));
  read_symbol_tree(tree, kMaxTreeLevels, blocks_.read(first, bytes, what));
}

}  // namespace

Links read_links(Blocks& blocks, const ObjectHeader& group, const SymbolTableFacts& facts, const ScanRules& rules) {
  return LinkReader(blocks, group, facts, rules).read();
}

}  // namespace lfm2::h5
