// The walk over a file: its superblock (HDF5 File Format Specification 3.0, section II), the root group, the datasets,
// and the gaps between them.
#include "stage/hdf5/h5_scan.h"

#include <algorithm>
#include <array>

#include "base/file_kind.h"
#include "stage/hdf5/h5_blocks.h"
#include "stage/hdf5/h5_scan_header.h"

namespace lfm2::h5 {

namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 20;  // limit of a text attribute
constexpr std::array<std::byte, 8> kSignature = {std::byte{0x89}, std::byte{'H'},  std::byte{'D'},  std::byte{'F'},
                                                 std::byte{'\r'}, std::byte{'\n'}, std::byte{0x1a}, std::byte{'\n'}};

struct Superblock {
  uint64_t root = kUndefined;  // address of the root group's object header
  SymbolTableFacts tables;
};

class SuperblockReader {
 public:
  explicit SuperblockReader(Blocks& blocks) : blocks_(blocks) {}
  Superblock read();

 private:
  Superblock read_0(Cursor& cursor, uint8_t version);
  Superblock read_2(Cursor& cursor);
  void check_number_sizes(uint8_t offset_bytes, uint8_t length_bytes, const Cursor& cursor) const;
  void check_addresses(uint64_t base, uint64_t none, const char* none_what, uint64_t end, const Cursor& cursor) const;

  Blocks& blocks_;
  const std::string what_ = "superblock";
};

Superblock SuperblockReader::read() {
  std::array<std::byte, kSignature.size()> found{};
  if (blocks_.file().size() >= found.size()) blocks_.file().read(0, found);
  if (blocks_.file().size() == 0) blocks_.file().refuse("is empty, expected an HDF5 file");
  if (found != kSignature) refuse_other_kind(blocks_.file());
  if (found != kSignature)
    throw Error(ExitCode::kData, fmt::format("{}: cannot be opened as HDF5: its signature is not at the start",
                                             blocks_.file().path().string()));
  const Block start = blocks_.peek(0, 100, what_);
  Cursor cursor(start, blocks_.where(0, what_));
  cursor.skip(kSignature.size());
  const uint8_t version = cursor.u8();
  if (version > 3) cursor.refuse(fmt::format("version {}, expected 0 to 3", version));
  return version <= 1 ? read_0(cursor, version) : read_2(cursor);
}

void SuperblockReader::check_number_sizes(uint8_t offset_bytes, uint8_t length_bytes, const Cursor& cursor) const {
  if (offset_bytes != 8 || length_bytes != 8)
    cursor.refuse(fmt::format("offsets of {} and lengths of {} bytes, expected 8", offset_bytes, length_bytes));
}

// `none` is the address of a structure (`none_what`) that the files of this project never have.
void SuperblockReader::check_addresses(uint64_t base, uint64_t none, const char* none_what, uint64_t end,
                                       const Cursor& cursor) const {
  if (base != 0) cursor.refuse(fmt::format("the base address is {}, expected 0", base));
  if (none != kUndefined) cursor.refuse(fmt::format("has {}, expected none", none_what));
  if (end > blocks_.file().size())
    cursor.refuse(fmt::format("truncated file: it has {} bytes, expected {}", blocks_.file().size(), end));
}

Superblock SuperblockReader::read_2(Cursor& cursor) {
  constexpr uint64_t kBytes = 48;
  blocks_.read_checked(0, kBytes, what_);
  const uint8_t offset_bytes = cursor.u8(), length_bytes = cursor.u8(), flags = cursor.u8();
  const uint64_t base = cursor.u64(), extension = cursor.u64(), end = cursor.u64(), root = cursor.u64();
  check_number_sizes(offset_bytes, length_bytes, cursor);
  if (flags != 0) cursor.refuse("the file was not closed by its writer");
  check_addresses(base, extension, "an extension", end, cursor);
  return {root, {}};
}

Superblock SuperblockReader::read_0(Cursor& cursor, uint8_t version) {
  Superblock superblock;
  SymbolTableFacts& tables = superblock.tables;
  cursor.skip(4);  // versions of the parts of the format
  const uint8_t offset_bytes = cursor.u8(), length_bytes = cursor.u8();
  cursor.skip(1);
  tables.max_in_node = 2 * uint64_t{cursor.u16()};
  tables.max_children = 2 * uint64_t{cursor.u16()};
  cursor.skip(4);  // flags
  if (version == 1) cursor.skip(4);
  const uint64_t base = cursor.u64();
  cursor.skip(8);  // free space
  const uint64_t end = cursor.u64(), driver = cursor.u64();
  cursor.skip(8);  // the root group's name, which is empty
  superblock.root = cursor.u64();
  // 1: the addresses that follow repeat the symbol table of the root group.
  const uint32_t cached = cursor.u32();
  cursor.skip(4);
  const SymbolTable table{cursor.u64(), cursor.u64()};
  if (cached > 1) cursor.refuse(fmt::format("the root group's entry is of type {}", cached));
  if (cached == 1) tables.cached = table;
  check_number_sizes(offset_bytes, length_bytes, cursor);
  check_addresses(base, driver, "driver information", end, cursor);
  blocks_.claim(0, cursor.position(), what_);
  return superblock;
}

const ScannedAttribute& find(const ScannedAttributes& attributes, const std::string& name, const std::string& where) {
  const auto at = attributes.find(name);
  if (at == attributes.end()) throw Error(ExitCode::kData, fmt::format("{}: attribute {} is missing", where, name));
  return at->second;
}

}  // namespace

std::string ScannedType::text() const {
  if (kind == Class::kFloat) return fmt::format("{}-bit float", uint64_t{bytes} * 8);
  if (kind == Class::kInteger) return fmt::format("{}-bit integer", uint64_t{bytes} * 8);
  return kind == Class::kOther ? "another type" : "string";
}

std::string text_of(const ScannedAttributes& attributes, const std::string& name, const std::string& where) {
  const ScannedAttribute& attribute = find(attributes, name, where);
  if (attribute.type.kind != ScannedType::Class::kText || attribute.elements != 1)
    throw Error(ExitCode::kData, fmt::format("{}: attribute {} is no fixed-length text", where, name));
  if (attribute.data.size() > kMaxTextBytes)
    throw Error(ExitCode::kData, fmt::format("{}: attribute {} has {} bytes, expected at most {}", where, name,
                                             attribute.data.size(), kMaxTextBytes));
  std::string text(reinterpret_cast<const char*>(attribute.data.data()), attribute.data.size());
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

int64_t integer_of(const ScannedAttributes& attributes, const std::string& name, const std::string& where) {
  const ScannedAttribute& attribute = find(attributes, name, where);
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
  // An alignment for each tensor's data and one for its metadata.
  constexpr uint64_t kMaxBytes = uint64_t{1} << 26, kAlignment = 8192;
  constexpr size_t kPieceBytes = size_t{1} << 16;
  uint64_t left = kMaxBytes + kAlignment * scan.datasets.size();
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

Scan scan(const CheckedFile& file, const ScanRules& rules) {
  Blocks blocks(file);
  const Superblock superblock = SuperblockReader(blocks).read();
  const ObjectHeader root = read_header(blocks, superblock.root, "the root group");
  const Links links = read_links(blocks, root, superblock.tables, rules);
  Scan scan;
  if (rules.only.empty()) scan.attributes = read_attributes(blocks, root);
  if (rules.check_root) rules.check_root(scan.attributes);
  scan.complete = rules.only.empty();
  for (const auto& [name, address] : links) {
    if (!rules.wants(name)) continue;
    const ObjectHeader header = read_header(blocks, address, "dataset " + name);
    if (header.has(MessageType::kLinkInfo) || header.has(MessageType::kSymbolTable) || header.has(MessageType::kLink))
      throw Error(ExitCode::kData,
                  fmt::format("{}: \"{}\" is a group, expected only datasets", file.path().string(), name));
    const auto& dataset = scan.datasets.emplace(name, read_dataset(blocks, header)).first->second;
    if (dataset.storage == ScannedDataset::Storage::kChunked) scan.complete = false;
  }
  scan.extents = blocks.extents();
  return scan;
}

}  // namespace lfm2::h5
