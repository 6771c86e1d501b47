// The links of an HDF5 group in any of its three forms: symbol table, messages in the header, messages in a heap. Used
// by the scan alone.
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

// What the superblock says of symbol tables; in versions 2 and 3, nothing.
struct SymbolTableFacts {
  uint64_t most_in_node = 8, most_children = 32;
  std::optional<SymbolTable> cached;  // the root group's, as the superblock repeats it
};

using Links = std::map<std::string, uint64_t>;  // name -> address of the object's header

// All hard links. Others are refused where the rules want their name.
Links read_links(Blocks& blocks, const ObjectHeader& group, const SymbolTableFacts& facts, const ScanRules& rules);

}  // namespace lfm2::h5
