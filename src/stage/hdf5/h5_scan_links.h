// The links of an HDF5 group in any of its three forms: a symbol table, messages in the header, messages in a heap.
// Used by the scan alone.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "stage/hdf5/h5_scan_header.h"

namespace lfm2::h5 {

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

}  // namespace lfm2::h5
