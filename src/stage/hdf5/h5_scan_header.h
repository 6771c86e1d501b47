// Object headers of an HDF5 file: the messages that describe one group or dataset, each still as bytes. Used by the
// scan alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "stage/hdf5/h5_heap.h"
#include "stage/hdf5/h5_scan.h"

namespace lfm2::h5 {

enum class MessageType : uint16_t {
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

struct RawMessage {
  MessageType type = MessageType::kNil;
  bool shared = false;  // stands elsewhere: a committed type, for example
  Block data;
};

struct ObjectHeader {
  std::string what, where;  // "dataset x"; the same with file and address, for messages
  std::vector<RawMessage> messages;

  bool has(MessageType type) const;
  [[noreturn]] void refuse(const std::string& message) const;
};

// Of version 1 or 2, with all its parts; holds only messages of types that a reader of it looks at.
ObjectHeader read_header(Blocks& blocks, uint64_t address, const std::string& what);

// How links or attributes stand that are too many for a header: in a heap, below an index.
struct DenseStorage {
  size_t order_bytes;               // of the largest number in order of creation
  size_t id_bytes;                  // of an object in the heap
  uint8_t by_name;                  // type of the records of the index by name; that of the index by order comes next
  std::string what, what_by_order;  // the index by name and that by order, for messages
};

// Calls `each` with every record of the index that the message (link info or attribute info) of the header names.
void read_dense(Blocks& blocks, const ObjectHeader& header, const RawMessage& message, const DenseStorage& storage,
                const std::function<void(const FractalHeap&, Cursor)>& each);

}  // namespace lfm2::h5
