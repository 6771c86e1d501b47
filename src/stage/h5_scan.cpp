// Superblock, object headers, groups and messages of the HDF5 File Format Specification 3.0, sections II, III and IV.
#include "stage/h5_scan.h"

#include <algorithm>
#include <array>

#include "stage/h5_blocks.h"

namespace lfm2::h5 {

namespace {

constexpr uint64_t kLargestHeader = uint64_t{1} << 24;  // of one object
constexpr size_t kMostMessages = size_t{1} << 17;       // of one object
constexpr size_t kMostLinks = size_t{1} << 20;
constexpr size_t kMostAttributes = size_t{1} << 16;
constexpr size_t kLongestName = 4096;
constexpr size_t kLongestText = size_t{1} << 20;  // of an attribute
constexpr size_t kLargestRank = 32;
constexpr uint64_t kMostTreeLevels = 16;

enum Message : uint16_t {
  kNil = 0x00,
  kDataspace = 0x01,
  kLinkInfo = 0x02,
  kDatatype = 0x03,
  kOldFillValue = 0x04,
  kFillValue = 0x05,
  kLink = 0x06,
  kExternalFiles = 0x07,
  kLayout = 0x08,
  kGroupInfo = 0x0a,
  kFilters = 0x0b,
  kAttribute = 0x0c,
  kComment = 0x0d,
  kOldTime = 0x0e,
  kSharedTable = 0x0f,
  kContinuation = 0x10,
  kSymbolTable = 0x11,
  kTime = 0x12,
  kBtreeK = 0x13,
  kDriver = 0x14,
  kAttributeInfo = 0x15,
  kReferenceCount = 0x16,
  kFileSpace = 0x17,
};

std::string message_text(uint16_t type) {
  switch (type) {
    case kExternalFiles:
      return "external files";
    case kComment:
      return "a comment";
    case kSharedTable:
      return "a table of shared messages";
    case kBtreeK:
      return "B-tree parameters";
    case kDriver:
      return "driver information";
    case kFileSpace:
      return "file space information";
    default:
      return fmt::format("a message of unknown type {}", type);
  }
}

struct RawMessage {
  uint16_t type = 0;
  bool shared = false;  // stands elsewhere: a committed type, for example
  Block data;
};

struct ObjectHeader {
  uint64_t address = 0;
  std::string what;
  std::vector<RawMessage> messages;
};

using Links = std::map<std::string, uint64_t>;  // name -> address of the object's header

class Scanner {
 public:
  Scanner(const CheckedFile& file, const ScanRules& rules) : blocks_(file), rules_(rules) {}
  Scan run();

 private:
  uint64_t read_superblock();
  uint64_t read_superblock_0(Cursor& cursor, uint8_t version);

  ObjectHeader read_header(uint64_t address, const std::string& what);
  void read_header_1(ObjectHeader& header, const Block& start);
  void read_header_2(ObjectHeader& header, const Block& start);
  void take_message(Cursor& cursor, RawMessage message, size_t bytes, ObjectHeader& header,
                    std::vector<std::pair<uint64_t, uint64_t>>& chunks) const;

  Links read_links(const ObjectHeader& group);
  void read_link(const Block& message, const std::string& where, Links& links) const;
  void add_link(const std::string& name, uint64_t address, const std::string& where, Links& links) const;
  void read_symbol_table(const Block& message, const std::string& where, Links& links);
  void read_symbol_tree(uint64_t address, uint64_t level_limit, const Block& names, Links& links);
  void read_symbol_node(uint64_t address, const Block& names, Links& links);
  std::string name_in(const Block& heap, uint64_t at, const Cursor& from);

  ScannedAttributes read_attributes(const ObjectHeader& header);
  ScannedDataset read_dataset(const ObjectHeader& header);

  bool wanted(const std::string& name) const { return rules_.only.empty() || rules_.only.contains(name); }

  struct SymbolTable {
    uint64_t tree, heap;
    bool operator==(const SymbolTable&) const = default;
  };

  Blocks blocks_;
  const ScanRules& rules_;
  uint64_t most_in_node_ = 8,
           most_children_ = 32;              // of symbol tables; a superblock of version 0 or 1 may say otherwise
  std::optional<SymbolTable> cached_table_;  // the root group's, as the superblock repeats it
  Scan scan_;
};

constexpr std::array<std::byte, 8> kSignature = {std::byte{0x89}, std::byte{'H'},  std::byte{'D'},  std::byte{'F'},
                                                 std::byte{'\r'}, std::byte{'\n'}, std::byte{0x1a}, std::byte{'\n'}};

uint64_t Scanner::read_superblock() {
  const std::string what = "superblock", path = blocks_.file().path().string();
  std::array<std::byte, kSignature.size()> found{};
  if (blocks_.file().size() >= found.size()) blocks_.file().read(0, found);
  if (found != kSignature)
    throw Error(ExitCode::kData, fmt::format("{}: cannot be opened as HDF5: its signature is not at the start", path));
  const Block start = blocks_.peek(0, 100, what);
  Cursor cursor(start, blocks_.where(0, what));
  cursor.skip(kSignature.size());
  const uint8_t version = cursor.u8();
  if (version <= 1) return read_superblock_0(cursor, version);
  if (version > 3) cursor.refuse(fmt::format("version {}, expected 0 to 3", version));
  constexpr uint64_t kBytes = 48;
  blocks_.read_checked(0, kBytes, what);
  const uint8_t offset_bytes = cursor.u8(), length_bytes = cursor.u8(), flags = cursor.u8();
  const uint64_t base = cursor.u64(), extension = cursor.u64(), end = cursor.u64(), root = cursor.u64();
  if (offset_bytes != 8 || length_bytes != 8)
    cursor.refuse(fmt::format("offsets of {} and lengths of {} bytes, expected 8", offset_bytes, length_bytes));
  if (flags != 0) cursor.refuse("the file was not closed by its writer");
  if (base != 0) cursor.refuse(fmt::format("the base address is {}, expected 0", base));
  if (extension != kUndefined) cursor.refuse("has an extension, expected none");
  if (end > blocks_.file().size())
    cursor.refuse(fmt::format("truncated file: it has {} bytes, expected {}", blocks_.file().size(), end));
  return root;
}

uint64_t Scanner::read_superblock_0(Cursor& cursor, uint8_t version) {
  cursor.skip(4);  // versions of parts
  const uint8_t offset_bytes = cursor.u8(), length_bytes = cursor.u8();
  cursor.skip(1);
  most_in_node_ = 2 * uint64_t{cursor.u16()};
  most_children_ = 2 * uint64_t{cursor.u16()};
  cursor.skip(4);  // flags
  if (version == 1) cursor.skip(4);
  const uint64_t base = cursor.u64();
  cursor.skip(8);  // free space
  const uint64_t end = cursor.u64(), driver = cursor.u64();
  cursor.skip(8);  // the root group's name
  const uint64_t root = cursor.u64();
  const uint32_t cached = cursor.u32();  // whether the addresses that follow are those in the root group's header
  cursor.skip(4);
  const SymbolTable table{cursor.u64(), cursor.u64()};
  if (cached > 1) cursor.refuse(fmt::format("the root group's entry is of type {}", cached));
  if (cached == 1) cached_table_ = table;
  if (offset_bytes != 8 || length_bytes != 8)
    cursor.refuse(fmt::format("offsets of {} and lengths of {} bytes, expected 8", offset_bytes, length_bytes));
  if (base != 0) cursor.refuse(fmt::format("the base address is {}, expected 0", base));
  if (driver != kUndefined) cursor.refuse("has driver information, expected none");
  if (end > blocks_.file().size())
    cursor.refuse(fmt::format("truncated file: it has {} bytes, expected {}", blocks_.file().size(), end));
  blocks_.claim(0, cursor.position(), "superblock");
  return root;
}

ObjectHeader Scanner::read_header(uint64_t address, const std::string& what) {
  ObjectHeader header{address, what, {}};
  const Block start = blocks_.peek(address, 34, what);  // the longest prefix
  if (static_cast<uint8_t>(start[0]) == 1)
    read_header_1(header, start);
  else
    read_header_2(header, start);
  return header;
}

// Takes a message's body from `cursor`; continuations go to `chunks`.
void Scanner::take_message(Cursor& cursor, RawMessage message, size_t bytes, ObjectHeader& header,
                           std::vector<std::pair<uint64_t, uint64_t>>& chunks) const {
  const auto body = cursor.take(bytes);
  switch (message.type) {
    case kNil:
    case kOldTime:
    case kTime:
    case kReferenceCount:
    case kGroupInfo:
      if (message.shared) cursor.refuse("has a shared message");
      return;
    case kContinuation: {
      Cursor place(body, cursor.where());
      const uint64_t first = place.u64(), length = place.u64();
      chunks.emplace_back(first, length);
      return;
    }
    case kDataspace:
    case kLinkInfo:
    case kDatatype:
    case kOldFillValue:
    case kFillValue:
    case kLink:
    case kLayout:
    case kFilters:
    case kAttribute:
    case kSymbolTable:
    case kAttributeInfo:
      if (header.messages.size() >= kMostMessages)
        cursor.refuse(fmt::format("has more than {} messages", kMostMessages));
      message.data.assign(body.begin(), body.end());
      header.messages.push_back(std::move(message));
      return;
    default:
      cursor.refuse(fmt::format("has {}, which is not accepted here", message_text(message.type)));
  }
}

void Scanner::read_header_1(ObjectHeader& header, const Block& start) {
  Cursor prefix(start, blocks_.where(header.address, header.what));
  prefix.expect_version(1);
  prefix.skip(1);
  const size_t expected = prefix.u16();
  prefix.skip(4);  // reference count
  const uint64_t first_bytes = prefix.u32();
  constexpr uint64_t kPrefixBytes = 16, kMessageHeader = 8;
  std::vector<std::pair<uint64_t, uint64_t>> chunks = {{header.address + kPrefixBytes, first_bytes}};
  blocks_.claim(header.address, kPrefixBytes, header.what);
  size_t count = 0;  // the library reads each chunk to its end, whatever the prefix says
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto [address, bytes] = chunks[i];
    if (bytes < kMessageHeader || bytes > kLargestHeader)
      prefix.refuse(fmt::format("a part of its header has {} bytes", bytes));
    const Block chunk = blocks_.read(address, bytes, header.what);
    Cursor cursor(chunk, blocks_.where(address, header.what));
    for (; cursor.left() >= kMessageHeader; ++count) {
      RawMessage message;
      message.type = cursor.u16();
      const uint16_t size = cursor.u16();
      message.shared = (cursor.u8() & 2) != 0;
      cursor.skip(3);
      take_message(cursor, std::move(message), size, header, chunks);
    }
  }
  if (count != expected) prefix.refuse(fmt::format("its header has {} messages, expected {}", count, expected));
}

void Scanner::read_header_2(ObjectHeader& header, const Block& start) {
  Cursor prefix(start, blocks_.where(header.address, header.what));
  prefix.expect_signature("OHDR");
  prefix.expect_version(2);
  const uint8_t flags = prefix.u8();
  const bool ordered = (flags & 0x04) != 0;
  if ((flags & 0x20) != 0) prefix.skip(16);  // times
  if ((flags & 0x10) != 0) prefix.skip(4);   // when attributes move to a heap
  const uint64_t first_bytes = prefix.number(size_t{1} << (flags & 3));
  const size_t message_header = ordered ? 6 : 4;
  std::vector<std::pair<uint64_t, uint64_t>> chunks;
  const auto read_messages = [&](uint64_t address, const Block& chunk, size_t skipped) {
    Cursor cursor(std::span<const std::byte>(chunk).first(chunk.size() - kChecksumBytes),
                  blocks_.where(address, header.what));
    cursor.skip(skipped);
    if (cursor.left() > 0 && cursor.left() < message_header)
      cursor.refuse(fmt::format("{} bytes of messages", cursor.left()));
    while (cursor.left() >= message_header) {
      RawMessage message;
      message.type = cursor.u8();
      const uint16_t size = cursor.u16();
      message.shared = (cursor.u8() & 2) != 0;
      if (ordered) cursor.skip(2);
      take_message(cursor, std::move(message), size, header, chunks);
    }
  };
  if (first_bytes > kLargestHeader) prefix.refuse(fmt::format("a header of {} bytes", first_bytes));
  read_messages(header.address,
                blocks_.read_checked(header.address, prefix.position() + first_bytes + kChecksumBytes, header.what),
                prefix.position());
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto [address, bytes] = chunks[i];
    if (bytes < 4 + kChecksumBytes || bytes > kLargestHeader)
      prefix.refuse(fmt::format("a continuation of {} bytes", bytes));
    const Block chunk = blocks_.read_checked(address, bytes, header.what);
    Cursor(chunk, blocks_.where(address, header.what)).expect_signature("OCHK");
    read_messages(address, chunk, 4);
  }
}

void Scanner::add_link(const std::string& name, uint64_t address, const std::string& where, Links& links) const {
  if (name.empty() || name.size() > kLongestName || name.find('\0') != std::string::npos ||
      name.find('/') != std::string::npos)
    throw Error(ExitCode::kData,
                fmt::format("{}: an object's name has {} bytes or characters that no name has", where, name.size()));
  if (links.size() >= kMostLinks)
    throw Error(ExitCode::kData, fmt::format("{}: more than {} objects", where, kMostLinks));
  if (!links.emplace(name, address).second)
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\" stands twice", where, name));
}

void Scanner::read_link(const Block& message, const std::string& where, Links& links) const {
  Cursor cursor(message, where);
  cursor.expect_version(1);
  const uint8_t flags = cursor.u8();
  const uint8_t type = (flags & 0x08) != 0 ? cursor.u8() : 0;
  if ((flags & 0x04) != 0) cursor.skip(8);  // order of creation
  if ((flags & 0x10) != 0) cursor.skip(1);  // character set
  const uint64_t length = cursor.number(size_t{1} << (flags & 3));
  if (length > kLongestName) cursor.refuse(fmt::format("an object's name of {} bytes", length));
  const std::string name = cursor.text(length);
  if (type != 0 && wanted(name))
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is a soft or external link, expected only datasets",
                                             blocks_.file().path().string(), name));
  if (type == 0) add_link(name, cursor.u64(), where, links);
}

// Charged for, and sought no further than a name may be long: many entries may share one.
std::string Scanner::name_in(const Block& heap, uint64_t at, const Cursor& from) {
  if (at >= heap.size()) from.refuse(fmt::format("a name at byte {} of {}", at, heap.size()));
  const auto first = heap.begin() + static_cast<ptrdiff_t>(at);
  const auto last = first + static_cast<ptrdiff_t>(std::min<uint64_t>(kLongestName + 1, heap.size() - at));
  const auto end = std::find(first, last, std::byte{0});
  if (end == last) from.refuse(fmt::format("an object's name without an end in {} bytes", last - first));
  const auto bytes = static_cast<uint64_t>(end - first);
  blocks_.charge(bytes, at, "name in the heap of the group");
  return {reinterpret_cast<const char*>(heap.data()) + at, bytes};
}

void Scanner::read_symbol_node(uint64_t address, const Block& names, Links& links) {
  const std::string what = "symbol table node";
  constexpr uint64_t kPrefixBytes = 8, kEntryBytes = 40;
  const Block start = blocks_.peek(address, kPrefixBytes, what);
  Cursor prefix(start, blocks_.where(address, what));
  prefix.expect_signature("SNOD");
  prefix.expect_version(1);
  prefix.skip(1);
  const uint64_t count = prefix.u16();
  if (count > most_in_node_) prefix.refuse(fmt::format("{} entries, expected at most {}", count, most_in_node_));
  const Block node = blocks_.read(address, kPrefixBytes + count * kEntryBytes, what);
  Cursor cursor(node, blocks_.where(address, what));
  cursor.skip(kPrefixBytes);
  for (uint64_t entry = 0; entry < count; ++entry) {
    const uint64_t name_at = cursor.u64(), object = cursor.u64();
    const uint32_t kind = cursor.u32();
    cursor.skip(4 + 16);
    const std::string name = name_in(names, name_at, cursor);
    if (kind > 1 && wanted(name))
      throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is a soft or external link, expected only datasets",
                                               blocks_.file().path().string(), name));
    if (kind <= 1) add_link(name, object, cursor.where(), links);
  }
}

void Scanner::read_symbol_tree(uint64_t address, uint64_t level_limit, const Block& names, Links& links) {
  const std::string what = "B-tree of the group";
  constexpr uint64_t kPrefixBytes = 24;
  const Block start = blocks_.peek(address, kPrefixBytes, what);
  Cursor prefix(start, blocks_.where(address, what));
  prefix.expect_signature("TREE");
  const uint8_t type = prefix.u8(), level = prefix.u8();
  const uint64_t count = prefix.u16();
  if (type != 0 || level >= level_limit) prefix.refuse(fmt::format("type {} and level {}", type, level));
  if (count > most_children_) prefix.refuse(fmt::format("{} children, expected at most {}", count, most_children_));
  const Block node = blocks_.read(address, kPrefixBytes + count * 16 + 8, what);
  Cursor cursor(node, blocks_.where(address, what));
  cursor.skip(kPrefixBytes);
  for (uint64_t child = 0; child < count; ++child) {
    name_in(names, cursor.u64(), cursor);  // a key
    const uint64_t below = cursor.u64();
    if (level == 0)
      read_symbol_node(below, names, links);
    else
      read_symbol_tree(below, level, names, links);
  }
  name_in(names, cursor.u64(), cursor);
}

void Scanner::read_symbol_table(const Block& message, const std::string& where, Links& links) {
  Cursor cursor(message, where);
  const uint64_t tree = cursor.u64(), heap = cursor.u64();
  if (cached_table_ && *cached_table_ != SymbolTable{tree, heap})
    cursor.refuse("the superblock names another symbol table");
  const std::string what = "name heap of the group";
  const Block header = blocks_.read(heap, 32, what);
  Cursor names(header, blocks_.where(heap, what));
  names.expect_signature("HEAP");
  names.expect_version(0);
  names.skip(3);
  const uint64_t bytes = names.u64();
  names.skip(8);  // free list
  const uint64_t first = names.u64();
  if (bytes > kLargestHeader) names.refuse(fmt::format("{} bytes of names", bytes));
  read_symbol_tree(tree, kMostTreeLevels, blocks_.read(first, bytes, what), links);
}

Links Scanner::read_links(const ObjectHeader& group) {
  constexpr uint8_t kByName = 5;
  constexpr size_t kIdBytes = 7;
  Links links;
  const std::string where = blocks_.where(group.address, group.what);
  for (const RawMessage& message : group.messages) {
    if (message.shared && message.type != kAttribute) blocks_.refuse(group.address, group.what, "a shared message");
    if (message.type == kLink) read_link(message.data, where, links);
    if (message.type == kSymbolTable) read_symbol_table(message.data, where, links);
    if (message.type != kLinkInfo) continue;
    Cursor cursor(message.data, where);
    cursor.expect_version(0);
    const uint8_t flags = cursor.u8();
    if ((flags & 1) != 0) cursor.skip(8);  // largest order of creation
    const uint64_t heap_address = cursor.u64(), by_name = cursor.u64();
    const uint64_t by_order = (flags & 2) != 0 ? cursor.u64() : kUndefined;
    if (heap_address == kUndefined) continue;
    const FractalHeap heap(blocks_, heap_address, kIdBytes, "links");
    for (const Block& record : read_btree2(blocks_, by_name, kByName, "links")) {
      Cursor entry(record, where);
      entry.skip(4);  // hash of the name
      read_link(heap.object(entry.take(kIdBytes)), where, links);
    }
    if (by_order != kUndefined) read_btree2(blocks_, by_order, kByName + 1, "links in order of creation");
  }
  return links;
}

ScannedType parse_type(Cursor cursor) {
  constexpr uint32_t kLargestNumber = 8;
  ScannedType type;
  const uint8_t head = cursor.u8();
  const uint8_t version = head >> 4, kind = head & 0x0f;
  const std::array<uint8_t, 3> bits = {cursor.u8(), cursor.u8(), cursor.u8()};
  type.bytes = cursor.u32();
  if (version < 1 || version > 4) cursor.refuse(fmt::format("a type of version {}", version));
  if (kind == 3) type.kind = ScannedType::Class::kText;
  if (kind == 0) {
    const uint16_t first = cursor.u16(), precision = cursor.u16();
    const bool whole = type.bytes > 0 && type.bytes <= kLargestNumber && first == 0 && precision == type.bytes * 8;
    if (whole) type.kind = ScannedType::Class::kInteger;
    type.little_endian = (bits[0] & 1) == 0;
    type.is_signed = (bits[0] & 8) != 0;
    if (whole && type.bytes == 4 && bits[0] == 8 && bits[1] == 0 && bits[2] == 0) type.dtype = DType::kI32;
  }
  if (kind == 1) {
    type.little_endian = (bits[0] & 0x41) == 0;
    const uint16_t first = cursor.u16(), precision = cursor.u16();
    const uint8_t exponent_at = cursor.u8(), exponent = cursor.u8(), mantissa_at = cursor.u8(), mantissa = cursor.u8();
    const uint32_t bias = cursor.u32();
    // Mantissa, exponent, sign, and nothing between: the library's conversion trusts these numbers.
    const bool whole = type.bytes <= kLargestNumber && first == 0 && precision == type.bytes * 8 && mantissa_at == 0 &&
                       mantissa > 0 && exponent > 0 && exponent_at == mantissa &&
                       mantissa + exponent + 1 == precision && bits[1] == precision - 1;
    if (whole) type.kind = ScannedType::Class::kFloat;
    const auto is = [&](uint32_t bytes, uint8_t exponent_bits, uint8_t mantissa_bits, uint32_t with_bias) {
      return type.bytes == bytes && exponent == exponent_bits && mantissa == mantissa_bits && bias == with_bias;
    };
    if (whole && bits[0] == 0x20 && bits[2] == 0) {  // little-endian, implied leading bit
      if (is(4, 8, 23, 127)) type.dtype = DType::kF32;
      if (is(2, 8, 7, 127)) type.dtype = DType::kBf16;
      if (is(2, 5, 10, 15)) type.dtype = DType::kF16;
    }
  }
  return type;
}

// Nothing for the null dataspace.
std::optional<std::vector<uint64_t>> parse_space(Cursor cursor) {
  const uint8_t version = cursor.u8(), rank = cursor.u8(), flags = cursor.u8();
  uint8_t type = rank > 0 ? 1 : 0;
  if (version == 1)
    cursor.skip(5);
  else if (version == 2)
    type = cursor.u8();
  else
    cursor.refuse(fmt::format("a dataspace of version {}", version));
  if (type > 2 || rank > kLargestRank || (flags & ~1) != 0 || (type != 1 && rank != 0))
    cursor.refuse(fmt::format("a dataspace of type {} and rank {}", type, rank));
  if (type == 2) return std::nullopt;
  std::vector<uint64_t> dims(rank);
  for (uint64_t& extent : dims) extent = cursor.u64();
  if ((flags & 1) != 0) cursor.skip(size_t{rank} * 8);  // how large they may grow
  return dims;
}

uint64_t product(const std::vector<uint64_t>& dims, const std::string& what) {
  uint64_t count = 1;
  for (uint64_t extent : dims) count = checked_multiply(count, extent, what + ": shape");
  return count;
}

std::pair<std::string, ScannedAttribute> parse_attribute(const Block& message, const std::string& where) {
  Cursor cursor(message, where);
  const uint8_t version = cursor.u8(), flags = cursor.u8();
  if (version < 1 || version > 3) cursor.refuse(fmt::format("an attribute of version {}", version));
  if (version > 1 && flags != 0) cursor.refuse("an attribute of a committed type or a shared shape");
  const size_t name_bytes = cursor.u16(), type_bytes = cursor.u16(), space_bytes = cursor.u16();
  if (version == 3) cursor.skip(1);  // character set
  const auto part = [&](size_t bytes) {
    const auto taken = cursor.take(bytes);
    if (version == 1) cursor.skip((8 - bytes % 8) % 8);
    return taken;
  };
  const auto name_part = part(name_bytes);
  std::string name(reinterpret_cast<const char*>(name_part.data()), name_part.size());
  if (name.empty() || name.back() != '\0' || name.find('\0') != name.size() - 1)
    cursor.refuse("an attribute's name is not one text");
  name.pop_back();
  ScannedAttribute attribute;
  attribute.type = parse_type(Cursor(part(type_bytes), where));
  const auto dims = parse_space(Cursor(part(space_bytes), where));
  attribute.elements = dims ? product(*dims, where) : 0;
  const uint64_t bytes = checked_multiply(attribute.elements, attribute.type.bytes, where);
  if (bytes > cursor.left())
    cursor.refuse(fmt::format("attribute {} needs {} bytes of {}", name, bytes, cursor.left()));
  const auto data = cursor.take(bytes);
  attribute.data.assign(data.begin(), data.end());
  return {name, std::move(attribute)};
}

ScannedAttributes Scanner::read_attributes(const ObjectHeader& header) {
  constexpr uint8_t kByName = 8;
  constexpr size_t kIdBytes = 8;
  ScannedAttributes attributes;
  const std::string where = blocks_.where(header.address, header.what);
  const auto add = [&](const Block& message) {
    auto [name, attribute] = parse_attribute(message, where);
    if (attributes.size() >= kMostAttributes) blocks_.refuse(header.address, header.what, "too many attributes");
    if (!attributes.emplace(name, std::move(attribute)).second)
      blocks_.refuse(header.address, header.what, fmt::format("attribute {} stands twice", name));
  };
  for (const RawMessage& message : header.messages) {
    if (message.type != kAttribute && message.type != kAttributeInfo) continue;
    if (message.shared) blocks_.refuse(header.address, header.what, "a shared attribute");
    if (message.type == kAttribute) {
      add(message.data);
      continue;
    }
    Cursor cursor(message.data, where);
    cursor.expect_version(0);
    const uint8_t flags = cursor.u8();
    if ((flags & 1) != 0) cursor.skip(2);
    const uint64_t heap_address = cursor.u64(), by_name = cursor.u64();
    const uint64_t by_order = (flags & 2) != 0 ? cursor.u64() : kUndefined;
    if (heap_address == kUndefined) continue;
    const std::string what = "attributes of " + header.what;
    const FractalHeap heap(blocks_, heap_address, kIdBytes, what);
    for (const Block& record : read_btree2(blocks_, by_name, kByName, what)) {
      Cursor entry(record, where);
      const auto id = entry.take(kIdBytes);
      if ((entry.u8() & 2) != 0) entry.refuse("a shared attribute");
      add(heap.object(id));
    }
    if (by_order != kUndefined) read_btree2(blocks_, by_order, kByName + 1, what);
  }
  return attributes;
}

// Code that others wrote may stand behind any number but these.
void check_filters(Cursor cursor) {
  constexpr uint16_t kDeflate = 1, kShuffle = 2, kFletcher32 = 3, kFirstNamed = 256;
  const uint8_t version = cursor.u8(), count = cursor.u8();
  if (version < 1 || version > 2) cursor.refuse(fmt::format("filters of version {}", version));
  if (version == 1) cursor.skip(6);
  for (uint8_t i = 0; i < count; ++i) {
    const uint16_t filter = cursor.u16();
    size_t name_bytes = version == 1 || filter >= kFirstNamed ? cursor.u16() : 0;
    cursor.skip(2);
    const size_t values = cursor.u16();
    if (version == 1) name_bytes = (name_bytes + 7) / 8 * 8;
    cursor.skip(name_bytes);
    cursor.skip(4 * values + (version == 1 && values % 2 == 1 ? 4 : 0));
    if (filter != kDeflate && filter != kShuffle && filter != kFletcher32)
      cursor.refuse(fmt::format("filter {} is foreign, expected deflate, shuffle or fletcher32", filter));
  }
}

void check_fill_value(const RawMessage& message, uint64_t type_bytes, const std::string& where) {
  constexpr uint32_t kNoValue = ~uint32_t{0};
  Cursor cursor(message.data, where);
  bool present = true;
  if (message.type == kFillValue) {
    const uint8_t version = cursor.u8();
    if (version < 1 || version > 3) cursor.refuse(fmt::format("a fill value of version {}", version));
    if (version < 3) cursor.skip(2);  // when space is allocated and filled
    const uint8_t flags = cursor.u8();
    if (version == 2) present = flags != 0;
    if (version == 3) present = (flags & 0x20) != 0;
  }
  if (message.shared) cursor.refuse("has a fill value that is shared");
  const uint32_t bytes = present ? cursor.u32() : 0;
  if (bytes == kNoValue) return;
  if (bytes != 0 && bytes != type_bytes) cursor.refuse(fmt::format("a fill value of {} bytes", bytes));
  cursor.skip(bytes);
}

ScannedDataset Scanner::read_dataset(const ObjectHeader& header) {
  constexpr uint64_t kLargestChunk = uint64_t{1} << 32;
  constexpr const char* kNothingWritten = "has no space allocated: nothing was written to it";
  constexpr uint64_t kMostDeflated = 1100;  // bytes that one byte can unfold to: deflate stops at 1032
  const auto only = [&](uint16_t type, const char* what) {
    const RawMessage* found = nullptr;
    for (const RawMessage& message : header.messages) {
      if (message.type != type) continue;
      if (found != nullptr) blocks_.refuse(header.address, header.what, fmt::format("has two {}s", what));
      if (message.shared)
        blocks_.refuse(header.address, header.what, fmt::format("has a {} that is committed or shared", what));
      found = &message;
    }
    if (found == nullptr) blocks_.refuse(header.address, header.what, fmt::format("has no {}: it is no dataset", what));
    return Cursor(found->data, blocks_.where(header.address, header.what));
  };
  ScannedDataset dataset;
  dataset.type = parse_type(only(kDatatype, "type"));
  const auto dims = parse_space(only(kDataspace, "shape"));
  if (!dims) blocks_.refuse(header.address, header.what, "has no simple shape");
  dataset.dims = *dims;
  for (const RawMessage& message : header.messages)
    if (message.type == kOldFillValue || message.type == kFillValue)
      check_fill_value(message, dataset.type.bytes, blocks_.where(header.address, header.what));
  const uint64_t bytes = checked_multiply(product(dataset.dims, header.what), dataset.type.bytes, header.what);
  Cursor layout = only(kLayout, "layout");
  const uint8_t version = layout.u8(), kind = layout.u8();
  if (version < 3 || version > 4) layout.refuse(fmt::format("a layout of version {}, expected 3 or 4", version));
  const bool filtered = std::any_of(header.messages.begin(), header.messages.end(),
                                    [](const RawMessage& message) { return message.type == kFilters; });
  if (filtered) check_filters(only(kFilters, "filter pipeline"));
  switch (kind) {
    case 0:
      dataset.storage = ScannedDataset::Storage::kCompact;
      if (layout.u16() != bytes || layout.left() < bytes) layout.refuse("compact data of another size than the shape");
      break;
    case 1: {
      const uint64_t address = layout.u64(), stored = layout.u64();
      if (filtered) layout.refuse("filters without chunks");
      if (address == kUndefined && bytes > 0) layout.refuse(kNothingWritten);
      if (address == kUndefined) break;
      if (stored != bytes) layout.refuse(fmt::format("{} bytes stored, its shape needs {}", stored, bytes));
      dataset.storage = ScannedDataset::Storage::kContiguous;
      dataset.offset = address;
      dataset.bytes = stored;
      blocks_.claim(address, stored, "the data of " + header.what);
      break;
    }
    case 2: {
      dataset.storage = ScannedDataset::Storage::kChunked;
      const uint8_t flags = version == 4 ? layout.u8() : 0, rank = layout.u8();
      const size_t extent_bytes = version == 4 ? layout.u8() : 4;
      uint64_t index = version == 3 ? layout.u64() : kUndefined;
      if (rank != dataset.dims.size() + 1 || flags > 3 || extent_bytes < 1 || extent_bytes > 8)
        layout.refuse(fmt::format("chunks of rank {} for a shape of rank {}", rank, dataset.dims.size()));
      std::vector<uint64_t> chunk(rank);
      for (uint64_t& extent : chunk) extent = layout.number(extent_bytes);
      if (chunk.back() != dataset.type.bytes) layout.refuse("chunks of another type");
      const uint64_t chunk_bytes = product(chunk, layout.where());
      if (chunk_bytes == 0 || chunk_bytes >= kLargestChunk)
        layout.refuse(fmt::format("chunks of {} bytes", chunk_bytes));
      if (bytes / kMostDeflated > blocks_.file().size())
        layout.refuse(
            fmt::format("{} bytes of data, which no file of {} bytes can hold", bytes, blocks_.file().size()));
      if (version == 4) {
        const uint8_t index_type = layout.u8();
        if (index_type < 1 || index_type > 5) layout.refuse(fmt::format("an index of type {}", index_type));
        constexpr std::array<size_t, 6> kFacts = {0, 0, 0, 1, 5, 6};  // bytes that describe each
        const bool filtered_chunk = index_type == 1 && (flags & 2) != 0;
        layout.skip(filtered_chunk ? 8 + 4 : kFacts[index_type]);
        index = layout.u64();
      }
      if (index == kUndefined && bytes > 0) layout.refuse(kNothingWritten);
      scan_.complete = false;
      break;
    }
    case 3:
      layout.refuse("a virtual dataset: its data are in other files");
    default:
      layout.refuse(fmt::format("a layout of class {}", kind));
  }
  dataset.attributes = read_attributes(header);
  return dataset;
}

Scan Scanner::run() {
  const ObjectHeader root = read_header(read_superblock(), "the root group");
  const Links links = read_links(root);
  if (rules_.only.empty()) scan_.attributes = read_attributes(root);
  if (rules_.check_root) rules_.check_root(scan_.attributes);
  for (const auto& [name, address] : links) {
    if (!wanted(name)) continue;
    const ObjectHeader header = read_header(address, "dataset " + name);
    const bool group = std::any_of(header.messages.begin(), header.messages.end(), [](const RawMessage& message) {
      return message.type == kLinkInfo || message.type == kSymbolTable || message.type == kLink;
    });
    if (group)
      throw Error(ExitCode::kData,
                  fmt::format("{}: \"{}\" is a group, expected only datasets", blocks_.file().path().string(), name));
    scan_.datasets.emplace(name, read_dataset(header));
  }
  if (!rules_.only.empty()) scan_.complete = false;
  scan_.extents = blocks_.extents();
  return std::move(scan_);
}

}  // namespace

std::string ScannedType::text() const {
  switch (kind) {
    case Class::kFloat:
      return fmt::format("{}-bit float", uint64_t{bytes} * 8);
    case Class::kInteger:
      return fmt::format("{}-bit integer", uint64_t{bytes} * 8);
    case Class::kText:
      return "string";
    case Class::kOther:
      break;
  }
  return "another type";
}

std::string text_of(const ScannedAttributes& attributes, const std::string& name, const std::string& where) {
  const auto at = attributes.find(name);
  if (at == attributes.end()) throw Error(ExitCode::kData, fmt::format("{}: attribute {} is missing", where, name));
  const ScannedAttribute& attribute = at->second;
  if (attribute.type.kind != ScannedType::Class::kText || attribute.elements != 1)
    throw Error(ExitCode::kData, fmt::format("{}: attribute {} is no fixed-length text", where, name));
  if (attribute.data.size() > kLongestText)
    throw Error(ExitCode::kData, fmt::format("{}: attribute {} has {} bytes, expected at most {}", where, name,
                                             attribute.data.size(), kLongestText));
  std::string text(reinterpret_cast<const char*>(attribute.data.data()), attribute.data.size());
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

int64_t integer_of(const ScannedAttributes& attributes, const std::string& name, const std::string& where) {
  const auto at = attributes.find(name);
  if (at == attributes.end()) throw Error(ExitCode::kData, fmt::format("{}: attribute {} is missing", where, name));
  const ScannedAttribute& attribute = at->second;
  const size_t bytes = attribute.data.size();
  if (attribute.type.kind != ScannedType::Class::kInteger || !attribute.type.little_endian || attribute.elements != 1 ||
      bytes < 1 || bytes > 8)
    throw Error(ExitCode::kData, fmt::format("{}: attribute {} is no little-endian integer", where, name));
  const uint64_t value = Cursor(attribute.data, where).number(bytes);
  const int unused = 64 - 8 * static_cast<int>(bytes);
  return attribute.type.is_signed ? static_cast<int64_t>(value << unused) >> unused : static_cast<int64_t>(value);
}

std::vector<Extent> Scan::gaps(uint64_t file_bytes) const {
  std::vector<Extent> found;
  uint64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.first > end) found.push_back({end, extent.first - end, "gap"});
    end = extent.end();
  }
  if (end < file_bytes) found.push_back({end, file_bytes - end, "gap"});
  return found;
}

void expect_empty_gaps(const CheckedFile& file, const Scan& scan) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 26, kAlignment = 8192;  // a tensor's own and that of its metadata
  constexpr size_t kPieceBytes = size_t{1} << 16;
  uint64_t left = kMostBytes + kAlignment * scan.datasets.size();
  std::vector<std::byte> piece;
  for (const Extent& gap : scan.gaps(file.size())) {
    if (gap.bytes > left)
      throw Error(ExitCode::kData, fmt::format("{}: metadata: {} bytes from byte {} on belong to nothing",
                                               file.path().string(), gap.bytes, gap.first));
    left -= gap.bytes;
    for (uint64_t done = 0; done < gap.bytes; done += piece.size()) {
      piece.resize(std::min<uint64_t>(kPieceBytes, gap.bytes - done));
      file.read(gap.first + done, piece);
      const auto at = std::find_if(piece.begin(), piece.end(), [](std::byte b) { return b != std::byte{0}; });
      if (at != piece.end())
        throw Error(ExitCode::kData,
                    fmt::format("{}: metadata: damaged: byte {} belongs to nothing and is not 0", file.path().string(),
                                gap.first + done + static_cast<uint64_t>(at - piece.begin())));
    }
  }
}

Scan scan(const CheckedFile& file, const ScanRules& rules) { return Scanner(file, rules).run(); }

}  // namespace lfm2::h5
