// Parses object headers of an HDF5 file, whose messages describe a group or dataset. Used only by the scan.
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
  bool shared = false;  // the body is stored elsewhere, as for a committed type
  Block data;
};

struct ObjectHeader {
  std::string what, where;  // `what` is "dataset x"; `where` adds file and address, for messages
  std::vector<RawMessage> messages;

  bool has(MessageType type) const;
  [[noreturn]] void refuse(const std::string& message) const;
};

// Reads a header of version 1 or 2 with all its parts. Keeps only messages that describe a group or dataset.
ObjectHeader read_header(Blocks& blocks, uint64_t address, const std::string& what);

// The dense storage of links or attributes that do not fit into a header: a heap, indexed by B-trees.
struct DenseStorage {
  size_t order_bytes;  // width of the field for the largest creation order
  size_t id_bytes;     // width of an object's heap id
  // Type of the B-tree records that index by name; the records that index by order have the next type.
  uint8_t by_name;
  std::string what, what_by_order;  // names of the two indexes, for messages
};

// Calls `each` with every record of the name index that `message` (link info or attribute info) points to.
void read_dense(Blocks& blocks, const ObjectHeader& header, const RawMessage& message, const DenseStorage& storage,
                const std::function<void(const FractalHeap&, Cursor)>& each);

// A group stores its links in one of three forms: a symbol table, messages in the header, or messages in a heap.
struct SymbolTable {
  uint64_t tree, heap;
  bool operator==(const SymbolTable&) const = default;
};

// The parameters of symbol tables in superblocks 0 and 1. Later versions have none, and the defaults apply.
struct SymbolTableFacts {
  uint64_t max_in_node = 8, max_children = 32;
  std::optional<SymbolTable> cached;  // the root group's symbol table, which the superblock may repeat
};

using Links = std::map<std::string, uint64_t>;  // name to address of the object's header

// All hard links of the group. Error(kData) for a link of another kind whose name the rules ask for.
Links read_links(Blocks& blocks, const ObjectHeader& group, const SymbolTableFacts& facts, const ScanRules& rules);

// Reads the attributes from the messages of a header.
ScannedAttributes read_attributes(Blocks& blocks, const ObjectHeader& header);

// Reads type, shape, filters, place and attributes of a dataset, and claims the extent of contiguous data.
ScannedDataset read_dataset(Blocks& blocks, const ObjectHeader& header);

}  // namespace lfm2::h5
