// Reads the metadata of an HDF5 file without the HDF5 library, which is not safe on untrusted files. This parser
// supports only what shards and inputs need, and names everything else that it refuses. It checks every length, address
// and checksum before it uses them. The library never opens a file that was refused here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/checked_file.h"
#include "base/dtype.h"
#include "stage/hdf5/h5_blocks.h"

namespace lfm2::h5 {

struct ScannedType {
  enum class Class : uint8_t { kInteger, kFloat, kText, kVariableText, kOther };
  enum class Padding : uint8_t { kNulAtEnd, kNuls, kSpaces };
  // An integer or float has at most 8 bytes and uses all bits; others count as kOther.
  Class kind = Class::kOther;
  uint32_t bytes = 0;
  bool is_signed = false, little_endian = false;
  Padding padding = Padding::kNulAtEnd;  // of kText
  std::optional<DType> dtype;            // empty if the type is not one of the project's
  std::string text() const;              // for messages, such as "64-bit float"
};

struct ScannedAttribute {
  ScannedType type;
  uint64_t elements = 0;
  std::vector<std::byte> data;  // elements of a fixed-length type, as stored
};
using ScannedAttributes = std::map<std::string, ScannedAttribute>;

// The value of an attribute: a fixed-length text up to its first NUL, or an integer of up to 64 bits. Error(kData),
// beginning with `where`, if the attribute is missing or has another type.
std::string text_of(const ScannedAttributes& attributes, const std::string& name, const std::string& where);
int64_t integer_of(const ScannedAttributes& attributes, const std::string& name, const std::string& where);

struct ScannedDataset {
  // kAbsent: no elements and no space in the file.
  enum class Storage : uint8_t { kContiguous, kChunked, kCompact, kAbsent };
  std::vector<uint64_t> dims;
  ScannedType type;
  Storage storage = Storage::kAbsent;
  uint64_t offset = 0, bytes = 0;  // place in the file of contiguous data; checked to lie inside the file
  ScannedAttributes attributes;
};

struct Scan {
  std::map<std::string, ScannedDataset> datasets;
  ScannedAttributes attributes;  // of the root group
  std::vector<Extent> extents;   // in the order of the file, without overlaps
  // Whether `extents` lists everything in the file. True if no dataset is chunked.
  bool complete = true;

  // The parts of a file of `file_bytes` bytes that belong to no structure.
  std::vector<Extent> gaps(uint64_t file_bytes) const;
};

struct ScanRules {
  // The datasets of the root group to scan; others are neither followed nor refused. Empty: all, and the root group may
  // contain nothing but datasets.
  std::set<std::string> only;
  bool wants(const std::string& name) const { return only.empty() || only.contains(name); }

  // Called with the root group's attributes before any dataset is scanned; throws if the file is of another kind.
  std::function<void(const ScannedAttributes&)> check_root = {};
};

// Error(kData), naming file, structure and place, for damage and for unsupported structures. Supported are superblocks
// 0 to 3, object headers 1 and 2, the three forms of groups, hard links, simple shapes, fixed-length types that are not
// shared, contiguous, compact and chunked layouts, and the filters deflate, shuffle and fletcher32.
Scan scan(const CheckedFile& file, const ScanRules& rules = {});

// Every byte outside all structures must be 0. Error(kData) naming the first byte that is not, or if there are more
// such bytes than the alignment of datasets explains.
void expect_empty_gaps(const CheckedFile& file, const Scan& scan);

// The checksum of HDF5's own metadata: Jenkins' lookup3.
uint32_t metadata_checksum(std::span<const std::byte> bytes);

}  // namespace lfm2::h5
