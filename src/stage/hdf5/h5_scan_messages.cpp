// Messages that describe a dataset or an attribute: datatype, dataspace, attribute, filter pipeline, fill value and
// data layout (HDF5 File Format Specification 3.0, section IV.A.2).
#include <array>
#include <optional>

#include "stage/hdf5/h5_scan_header.h"

namespace lfm2::h5 {

namespace {

using enum MessageType;

constexpr size_t kMaxAttributes = size_t{1} << 16;
constexpr size_t kMaxRank = 32;

void parse_integer(Cursor& cursor, const std::array<uint8_t, 3>& bits, bool of_our_size, ScannedType& type) {
  const uint16_t first = cursor.u16(), precision = cursor.u16();
  const bool whole = type.bytes > 0 && of_our_size && first == 0 && precision == type.bytes * 8;
  if (whole) type.kind = ScannedType::Class::kInteger;
  type.little_endian = (bits[0] & 1) == 0;
  type.is_signed = (bits[0] & 8) != 0;
  if (whole && type.bytes == 4 && bits[0] == 8 && bits[1] == 0 && bits[2] == 0) type.dtype = DType::kI32;
}

void parse_float(Cursor& cursor, const std::array<uint8_t, 3>& bits, bool of_our_size, ScannedType& type) {
  type.little_endian = (bits[0] & 0x41) == 0;
  const uint16_t first = cursor.u16(), precision = cursor.u16();
  const uint8_t exponent_at = cursor.u8(), exponent = cursor.u8(), mantissa_at = cursor.u8(), mantissa = cursor.u8();
  const uint32_t bias = cursor.u32();
  // Mantissa, exponent and sign must fill the value without gaps, because the library's conversion trusts these
  // numbers.
  const bool whole = of_our_size && first == 0 && precision == type.bytes * 8 && mantissa_at == 0 && mantissa > 0 &&
                     exponent > 0 && exponent_at == mantissa && mantissa + exponent + 1 == precision &&
                     bits[1] == precision - 1;
  if (whole) type.kind = ScannedType::Class::kFloat;
  // Only little-endian floats with an implied leading bit have a type here.
  if (!whole || bits[0] != 0x20 || bits[2] != 0) return;
  const auto is = [&](uint32_t bytes, uint8_t exponent_bits, uint8_t mantissa_bits, uint32_t with_bias) {
    return type.bytes == bytes && exponent == exponent_bits && mantissa == mantissa_bits && bias == with_bias;
  };
  if (is(4, 8, 23, 127)) type.dtype = DType::kF32;
  if (is(2, 8, 7, 127)) type.dtype = DType::kBf16;
  if (is(2, 5, 10, 15)) type.dtype = DType::kF16;
}

ScannedType parse_type(Cursor cursor) {
  constexpr uint32_t kMaxNumber = 8;
  ScannedType type;
  const uint8_t head = cursor.u8();
  const uint8_t version = head >> 4, kind = head & 0x0f;
  const std::array<uint8_t, 3> bits = {cursor.u8(), cursor.u8(), cursor.u8()};
  type.bytes = cursor.u32();
  if (version < 1 || version > 4) cursor.refuse(fmt::format("a type of version {}", version));
  if (kind == 0) parse_integer(cursor, bits, type.bytes <= kMaxNumber, type);
  if (kind == 1) parse_float(cursor, bits, type.bytes <= kMaxNumber, type);
  if (kind == 3 && (bits[0] & 0x0f) <= 2) {
    type.kind = ScannedType::Class::kText;
    type.padding = static_cast<ScannedType::Padding>(bits[0] & 0x0f);
  }
  if (kind == 9 && (bits[0] & 0x0f) == 1) type.kind = ScannedType::Class::kVariableText;
  return type;
}

// The extents of a simple dataspace, none of a scalar one; nothing for the null dataspace.
std::optional<std::vector<uint64_t>> parse_space(Cursor cursor) {
  const uint8_t version = cursor.u8(), rank = cursor.u8(), flags = cursor.u8();
  uint8_t type = rank > 0 ? 1 : 0;
  if (version == 1)
    cursor.skip(5);
  else if (version == 2)
    type = cursor.u8();
  else
    cursor.refuse(fmt::format("a dataspace of version {}", version));
  if (type > 2 || rank > kMaxRank || (flags & ~1) != 0 || (type != 1 && rank != 0))
    cursor.refuse(fmt::format("a dataspace of type {} and rank {}", type, rank));
  if (type == 2) return std::nullopt;
  std::vector<uint64_t> dims(rank);
  for (uint64_t& extent : dims) extent = cursor.u64();
  if ((flags & 1) != 0) cursor.skip(size_t{rank} * 8);  // the extents that the dataset may grow to
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
    const auto taken = cursor.read(bytes);
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
  const auto data = cursor.read(bytes);
  attribute.data.assign(data.begin(), data.end());
  return {name, std::move(attribute)};
}

// Only these three filters are accepted: any other number may stand for a plugin, which is foreign code.
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
    if (version < 3) cursor.skip(2);  // times at which space is allocated and filled
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

// The body of the only message of this type. Error(kData) if there is none or more than one.
Cursor only(const ObjectHeader& header, MessageType type, const char* what) {
  const RawMessage* found = nullptr;
  for (const RawMessage& message : header.messages) {
    if (message.type != type) continue;
    if (found != nullptr) header.refuse(fmt::format("has two {}s", what));
    if (message.shared) header.refuse(fmt::format("has a {} that is committed or shared", what));
    found = &message;
  }
  if (found == nullptr) header.refuse(fmt::format("has no {}: it is no dataset", what));
  return Cursor(found->data, header.where);
}

class DatasetReader {
 public:
  DatasetReader(Blocks& blocks, const ObjectHeader& header) : blocks_(blocks), header_(header) {}
  ScannedDataset read();

 private:
  void read_type_and_shape();
  void read_layout();
  void read_contiguous(Cursor& layout, bool filtered);
  void read_chunked(Cursor& layout, uint8_t version);
  void check_chunks(Cursor& layout, size_t rank, size_t extent_bytes) const;
  void expect_allocated(uint64_t address, const Cursor& layout) const;

  Blocks& blocks_;
  const ObjectHeader& header_;
  uint64_t bytes_ = 0;  // size that the type and the shape require
  ScannedDataset dataset_;
};

ScannedDataset DatasetReader::read() {
  read_type_and_shape();
  read_layout();
  dataset_.attributes = read_attributes(blocks_, header_);
  return std::move(dataset_);
}

void DatasetReader::read_type_and_shape() {
  dataset_.type = parse_type(only(header_, kDatatype, "type"));
  const auto dims = parse_space(only(header_, kDataspace, "shape"));
  if (!dims) header_.refuse("has no simple shape");
  dataset_.dims = *dims;
  for (const RawMessage& message : header_.messages)
    if (message.type == kOldFillValue || message.type == kFillValue)
      check_fill_value(message, dataset_.type.bytes, header_.where);
  bytes_ = checked_multiply(product(dataset_.dims, header_.what), dataset_.type.bytes, header_.what);
}

void DatasetReader::read_layout() {
  Cursor layout = only(header_, kLayout, "layout");
  const uint8_t version = layout.u8(), kind = layout.u8();
  if (version < 3 || version > 4) layout.refuse(fmt::format("a layout of version {}, expected 3 or 4", version));
  const bool filtered = header_.has(kFilters);
  if (filtered) check_filters(only(header_, kFilters, "filter pipeline"));
  switch (kind) {
    case 0:
      dataset_.storage = ScannedDataset::Storage::kCompact;
      if (layout.u16() != bytes_ || layout.left() < bytes_)
        layout.refuse("compact data of another size than the shape");
      break;
    case 1:
      read_contiguous(layout, filtered);
      break;
    case 2:
      read_chunked(layout, version);
      break;
    case 3:
      layout.refuse("a virtual dataset: its data are in other files");
    default:
      layout.refuse(fmt::format("a layout of class {}", kind));
  }
}

void DatasetReader::expect_allocated(uint64_t address, const Cursor& layout) const {
  if (address == kUndefined && bytes_ > 0) layout.refuse("has no space allocated: nothing was written to it");
}

void DatasetReader::read_contiguous(Cursor& layout, bool filtered) {
  const uint64_t address = layout.u64(), stored = layout.u64();
  if (filtered) layout.refuse("filters without chunks");
  expect_allocated(address, layout);
  if (address == kUndefined) return;
  if (stored != bytes_) layout.refuse(fmt::format("{} bytes stored, its shape needs {}", stored, bytes_));
  dataset_.storage = ScannedDataset::Storage::kContiguous;
  dataset_.offset = address;
  dataset_.bytes = stored;
  blocks_.claim(address, stored, "the data of " + header_.what);
}

void DatasetReader::read_chunked(Cursor& layout, uint8_t version) {
  dataset_.storage = ScannedDataset::Storage::kChunked;
  const uint8_t flags = version == 4 ? layout.u8() : 0, rank = layout.u8();
  const size_t extent_bytes = version == 4 ? layout.u8() : 4;
  uint64_t index = version == 3 ? layout.u64() : kUndefined;
  if (rank != dataset_.dims.size() + 1 || flags > 3 || extent_bytes < 1 || extent_bytes > 8)
    layout.refuse(fmt::format("chunks of rank {} for a shape of rank {}", rank, dataset_.dims.size()));
  check_chunks(layout, rank, extent_bytes);
  if (version == 4) {
    const uint8_t index_type = layout.u8();
    if (index_type < 1 || index_type > 5) layout.refuse(fmt::format("an index of type {}", index_type));
    constexpr std::array<size_t, 6> kFacts = {0, 0, 0, 1, 5, 6};  // bytes that describe an index, by its type
    const bool filtered_chunk = index_type == 1 && (flags & 2) != 0;
    layout.skip(filtered_chunk ? 8 + 4 : kFacts[index_type]);
    index = layout.u64();
  }
  expect_allocated(index, layout);
}

void DatasetReader::check_chunks(Cursor& layout, size_t rank, size_t extent_bytes) const {
  constexpr uint64_t kMaxChunk = uint64_t{1} << 32;
  // The limit of expansion: bytes for each stored byte. Deflate reaches 1032.
  constexpr uint64_t kMaxDeflated = 1100;
  std::vector<uint64_t> chunk(rank);
  for (uint64_t& extent : chunk) extent = layout.number(extent_bytes);
  if (chunk.back() != dataset_.type.bytes) layout.refuse("chunks of another type");
  const uint64_t chunk_bytes = product(chunk, layout.where());
  if (chunk_bytes == 0 || chunk_bytes >= kMaxChunk) layout.refuse(fmt::format("chunks of {} bytes", chunk_bytes));
  if (bytes_ / kMaxDeflated > blocks_.file().size())
    layout.refuse(fmt::format("{} bytes of data, which no file of {} bytes can hold", bytes_, blocks_.file().size()));
}

}  // namespace

ScannedAttributes read_attributes(Blocks& blocks, const ObjectHeader& header) {
  ScannedAttributes attributes;
  const auto add = [&](const Block& message) {
    auto [name, attribute] = parse_attribute(message, header.where);
    if (attributes.size() >= kMaxAttributes) header.refuse("too many attributes");
    if (!attributes.emplace(name, std::move(attribute)).second)
      header.refuse(fmt::format("attribute {} stands twice", name));
  };
  const std::string what = "attributes of " + header.what;
  const DenseStorage storage{.order_bytes = 2, .id_bytes = 8, .by_name = 8, .what = what, .what_by_order = what};
  for (const RawMessage& message : header.messages) {
    if (message.type != kAttribute && message.type != kAttributeInfo) continue;
    if (message.shared) header.refuse("a shared attribute");
    if (message.type == kAttribute) {
      add(message.data);
      continue;
    }
    read_dense(blocks, header, message, storage, [&](const FractalHeap& heap, Cursor entry) {
      const auto id = entry.read(storage.id_bytes);
      if ((entry.u8() & 2) != 0) entry.refuse("a shared attribute");
      add(heap.object(id));
    });
  }
  return attributes;
}

ScannedDataset read_dataset(Blocks& blocks, const ObjectHeader& header) { return DatasetReader(blocks, header).read(); }

}  // namespace lfm2::h5
