// Object headers (HDF5 File Format Specification 3.0, section IV.A.1), and the storage in heaps that the messages link
// info and attribute info share (IV.A.2).
#include "stage/hdf5/h5_scan_header.h"

#include <algorithm>

namespace lfm2::h5 {

namespace {

using enum MessageType;

constexpr uint64_t kMaxHeader = uint64_t{1} << 24;  // limit for one part of an object's header, in bytes
constexpr size_t kMaxMessages = size_t{1} << 17;    // limit for one object

std::string message_text(MessageType type) {
  constexpr std::pair<MessageType, const char*> kNames[] = {
      {kExternalFiles, "external files"}, {kComment, "a comment"},         {kSharedTable, "a table of shared messages"},
      {kBtreeK, "B-tree parameters"},     {kDriver, "driver information"}, {kFileSpace, "file space information"}};
  for (const auto& [known, name] : kNames)
    if (known == type) return name;
  return fmt::format("a message of unknown type {}", static_cast<uint16_t>(type));
}

class HeaderReader {
 public:
  HeaderReader(Blocks& blocks, uint64_t address, const std::string& what)
      : blocks_(blocks), address_(address), header_{what, blocks.where(address, what), {}} {}

  ObjectHeader read() {
    const Block start = blocks_.peek(address_, 34, header_.what);  // the longest prefix that a header may have
    if (static_cast<uint8_t>(start[0]) == 1)
      read_1(Cursor(start, header_.where));
    else
      read_2(Cursor(start, header_.where));
    return std::move(header_);
  }

 private:
  struct Chunk {
    uint64_t address, bytes;
  };

  void read_1(Cursor prefix);
  void read_2(Cursor prefix);
  void read_messages_2(uint64_t address, const Block& chunk, size_t skipped, bool ordered);
  void read_message(Cursor& cursor, RawMessage message, size_t bytes);

  Blocks& blocks_;
  uint64_t address_;
  ObjectHeader header_;
  std::vector<Chunk> chunks_;  // parts of the header that continuation messages point to
};

// Reads the body of a message from `cursor`, and keeps it if a reader of the header needs its type.
void HeaderReader::read_message(Cursor& cursor, RawMessage message, size_t bytes) {
  const auto body = cursor.read(bytes);
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
      chunks_.push_back({first, length});
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
      if (header_.messages.size() >= kMaxMessages)
        cursor.refuse(fmt::format("has more than {} messages", kMaxMessages));
      message.data.assign(body.begin(), body.end());
      header_.messages.push_back(std::move(message));
      return;
    default:
      cursor.refuse(fmt::format("has {}, which is not accepted here", message_text(message.type)));
  }
}

void HeaderReader::read_1(Cursor prefix) {
  prefix.expect_version(1);
  prefix.skip(1);
  const size_t expected = prefix.u16();
  prefix.skip(4);  // reference count
  const uint64_t first_bytes = prefix.u32();
  constexpr uint64_t kPrefixBytes = 16, kMessageHeader = 8;
  chunks_ = {{address_ + kPrefixBytes, first_bytes}};
  blocks_.claim(address_, kPrefixBytes, header_.what);
  // Counts all messages, because the library reads each chunk to its end whatever the prefix says.
  size_t count = 0;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const auto [address, bytes] = chunks_[i];
    if (bytes < kMessageHeader || bytes > kMaxHeader)
      prefix.refuse(fmt::format("a part of its header has {} bytes", bytes));
    const Block chunk = blocks_.read(address, bytes, header_.what);
    Cursor cursor(chunk, blocks_.where(address, header_.what));
    for (; cursor.left() >= kMessageHeader; ++count) {
      RawMessage message;
      message.type = static_cast<MessageType>(cursor.u16());
      const uint16_t size = cursor.u16();
      message.shared = (cursor.u8() & 2) != 0;
      cursor.skip(3);
      read_message(cursor, std::move(message), size);
    }
  }
  if (count != expected) prefix.refuse(fmt::format("its header has {} messages, expected {}", count, expected));
}

void HeaderReader::read_messages_2(uint64_t address, const Block& chunk, size_t skipped, bool ordered) {
  const size_t message_header = ordered ? 6 : 4;
  Cursor cursor(std::span<const std::byte>(chunk).first(chunk.size() - kChecksumBytes),
                blocks_.where(address, header_.what));
  cursor.skip(skipped);
  if (cursor.left() > 0 && cursor.left() < message_header)
    cursor.refuse(fmt::format("{} bytes of messages", cursor.left()));
  while (cursor.left() >= message_header) {
    RawMessage message;
    message.type = static_cast<MessageType>(cursor.u8());
    const uint16_t size = cursor.u16();
    message.shared = (cursor.u8() & 2) != 0;
    if (ordered) cursor.skip(2);
    read_message(cursor, std::move(message), size);
  }
}

void HeaderReader::read_2(Cursor prefix) {
  prefix.expect_signature("OHDR", 2);
  const uint8_t flags = prefix.u8();
  const bool ordered = (flags & 0x04) != 0;
  if ((flags & 0x20) != 0) prefix.skip(16);  // times of access, change and birth
  if ((flags & 0x10) != 0) prefix.skip(4);   // limits at which attributes move to a heap
  const uint64_t first_bytes = prefix.number(size_t{1} << (flags & 3));
  if (first_bytes > kMaxHeader) prefix.refuse(fmt::format("a header of {} bytes", first_bytes));
  read_messages_2(address_,
                  blocks_.read_checked(address_, prefix.position() + first_bytes + kChecksumBytes, header_.what),
                  prefix.position(), ordered);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const auto [address, bytes] = chunks_[i];
    if (bytes < 4 + kChecksumBytes || bytes > kMaxHeader)
      prefix.refuse(fmt::format("a continuation of {} bytes", bytes));
    const Block chunk = blocks_.read_checked(address, bytes, header_.what);
    Cursor(chunk, blocks_.where(address, header_.what)).expect_signature("OCHK");
    read_messages_2(address, chunk, 4, ordered);
  }
}

}  // namespace

bool ObjectHeader::has(MessageType type) const {
  return std::any_of(messages.begin(), messages.end(), [&](const RawMessage& message) { return message.type == type; });
}

void ObjectHeader::refuse(const std::string& message) const {
  throw Error(ExitCode::kData, fmt::format("{}: {}", where, message));
}

ObjectHeader read_header(Blocks& blocks, uint64_t address, const std::string& what) {
  return HeaderReader(blocks, address, what).read();
}

void read_dense(Blocks& blocks, const ObjectHeader& header, const RawMessage& message, const DenseStorage& storage,
                const std::function<void(const FractalHeap&, Cursor)>& each) {
  Cursor cursor(message.data, header.where);
  cursor.expect_version(0);
  const uint8_t flags = cursor.u8();
  if ((flags & 1) != 0) cursor.skip(storage.order_bytes);
  const uint64_t heap_address = cursor.u64(), by_name = cursor.u64();
  const uint64_t by_order = (flags & 2) != 0 ? cursor.u64() : kUndefined;
  if (heap_address == kUndefined) return;
  const FractalHeap heap(blocks, heap_address, storage.id_bytes, storage.what);
  for (const Block& record : read_btree2(blocks, by_name, storage.by_name, storage.what))
    each(heap, Cursor(record, header.where));
  // The index by order is not needed here, but it is checked because the library may read it.
  if (by_order != kUndefined) read_btree2(blocks, by_order, storage.by_name + 1, storage.what_by_order);
}

}  // namespace lfm2::h5
