// Object headers of an HDF5 file, the messages that describe one group or dataset, and what they say. Used by the scan
// alone.
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
  bool shared = false;  // the body is kept elsewhere, as that of a committed type is
  Block data;
};

struct ObjectHeader {
  std::string what, where;  // `what` is "dataset x"; `where` adds file and address, for messages
  std::vector<RawMessage> messages;

  bool has(MessageType type) const;
  [[noreturn]] void refuse(const std::string& message) const;
};

// Reads a header of version 1 or 2 with all its parts. Keeps only messages of types that describe a group or dataset.
ObjectHeader read_header(Blocks& blocks, uint64_t address, const std::string& what);

// How links or attributes are stored that are too many for a header: in a heap, found through B-trees.
struct DenseStorage {
  size_t order_bytes;  // width of a field for the largest number in order of creation
  size_t id_bytes;     // width of an object's id in the heap
  // Type of the B-tree records that index by name; the records that index by order have the next type.
  uint8_t by_name;
  std::string what, what_by_order;  // names of the two indexes, for messages
};

// Calls `each` with every record of the index by name that `message` (link info or attribute info) points to.
void read_dense(Blocks& blocks, const ObjectHeader& header, const RawMessage& message, const DenseStorage& storage,
                const std::function<void(const FractalHeap&, Cursor)>& each);

// The links of a group in any of its three forms: a symbol table, messages in the header, messages in a heap.
struct SymbolTable {
  uint64_t tree, heap;
  bool operator==(const SymbolTable&) const = default;
};

// What superblocks 0 and 1 say of symbol tables. Later versions say nothing, and the defaults hold.
struct SymbolTableFacts {
  uint64_t max_in_node = 8, max_children = 32;
  std::optional<SymbolTable> cached;  // the root group's symbol table, which the superblock may repeat
};

using Links = std::map<std::string, uint64_t>;  // name to address of the object's header

// All hard links of the group. Error(kData) for a link of another kind whose name the rules want.
Links read_links(Blocks& blocks, const ObjectHeader& group, const SymbolTableFacts& facts, const ScanRules& rules);

// What the messages of a header say: its attributes, and the type, shape, filters and place of a dataset.
ScannedAttributes read_attributes(Blocks& blocks, const ObjectHeader& header);

// Reads a dataset with its attributes, and claims the extent of its data where they are contiguous.
ScannedDataset read_dataset(Blocks& blocks, const ObjectHeader& header);

}  // namespace lfm2::h5
