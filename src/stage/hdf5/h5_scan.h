// What an HDF5 file holds, found without the HDF5 library. That library is not made for files from strangers: here its
// format is parsed by a reader that knows only what a shard or an input needs, checks every length, address and
// checksum before it is used, and refuses the rest by name. Nothing that it refuses is ever opened by the library.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "stage/hdf5/h5_blocks.h"
#include "stage/support/checked_file.h"

namespace lfm2::h5 {

struct ScannedType {
  enum class Class : uint8_t { kInteger, kFloat, kText, kOther };
  Class kind = Class::kOther;  // integers and floats of up to 8 bytes, all bits used; otherwise other
  uint32_t bytes = 0;
  bool is_signed = false, little_endian = false;
  std::optional<DType> dtype;  // nothing where it is none of ours
  std::string text() const;    // for messages: "64-bit float"
};

struct ScannedAttribute {
  ScannedType type;
  uint64_t elements = 0;
  std::vector<std::byte> data;  // of fixed-length types
};
using ScannedAttributes = std::map<std::string, ScannedAttribute>;

// A fixed-length text up to its first NUL, and an integer of up to 64 bits. Error(kData), beginning with `where`, for
// one that is missing or of another type.
std::string text_of(const ScannedAttributes& attributes, const std::string& name, const std::string& where);
int64_t integer_of(const ScannedAttributes& attributes, const std::string& name, const std::string& where);

struct ScannedDataset {
  enum class Storage : uint8_t { kContiguous, kChunked, kCompact, kAbsent };  // absent: no elements, no space
  std::vector<uint64_t> dims;
  ScannedType type;
  Storage storage = Storage::kAbsent;
  uint64_t offset = 0, bytes = 0;  // in the file, where contiguous; checked to lie inside it
  ScannedAttributes attributes;
};

struct Scan {
  std::map<std::string, ScannedDataset> datasets;
  ScannedAttributes attributes;  // of the root group
  std::vector<Extent> extents;   // in order, none overlapping another
  bool complete = true;          // no chunked dataset: nothing but `extents` holds anything

  // The parts of the file that belong to no structure.
  std::vector<Extent> gaps(uint64_t file_bytes) const;
};

struct ScanRules {
  // The root group's datasets to look at; others are neither followed nor refused. Empty: all, and the root group may
  // hold nothing else.
  std::set<std::string> only;
  bool wants(const std::string& name) const { return only.empty() || only.contains(name); }

  // Called with the root group's attributes before any dataset is looked at; throws where this is another kind of file.
  std::function<void(const ScannedAttributes&)> check_root = {};
};

// Error(kData), naming file, structure and place, for damage and for everything outside the whitelist: superblock 0 to
// 3, object headers 1 and 2, groups in any of their three forms, hard links, simple shapes, fixed-length types that are
// not shared, contiguous, compact and chunked layouts, the filters deflate, shuffle and fletcher32.
Scan scan(const CheckedFile& file, const ScanRules& rules = {});

// Every byte that belongs to no structure must be 0. Error(kData) naming the first that is not; or more such bytes than
// the alignment of datasets explains.
void expect_empty_gaps(const CheckedFile& file, const Scan& scan);

// The checksum of HDF5's own metadata: Jenkins' lookup3.
uint32_t metadata_checksum(std::span<const std::byte> bytes);

}  // namespace lfm2::h5
