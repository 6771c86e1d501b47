// Partitions of the 256 bytes: two bytes are in one class where an expression has the same derivative by both (Owens,
// Reppy, Turon 2009, section 4.2). So derivatives are computed by class: ten times for most expressions, not 256 times.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lfm2::grammar {

using ByteSet = std::bitset<256>;

// A number of a partition in its ByteClasses.
using PartitionId = uint32_t;

class ByteClasses {
 public:
  static constexpr PartitionId kWhole = 0;  // all bytes in one class

  ByteClasses();

  // The class of each byte, numbered from 0 in the order of the bytes.
  const std::array<uint8_t, 256>& classes(PartitionId id) const { return partitions_[id].class_of; }
  // A byte of each class.
  std::span<const uint8_t> representatives(PartitionId id) const { return partitions_[id].representatives; }

  // The set and its complement.
  PartitionId of(const ByteSet& set);
  // Two bytes stay together where they are together in both.
  PartitionId meet(PartitionId first, PartitionId second);

  // Memory in bytes, about.
  size_t memory() const { return partitions_.size() * (sizeof(Partition) + 128) + meets_.size() * 32; }

 private:
  struct Partition {
    std::array<uint8_t, 256> class_of;
    std::vector<uint8_t> representatives;
  };

  PartitionId intern(const std::array<uint8_t, 256>& class_of, std::vector<uint8_t> representatives);

  std::vector<Partition> partitions_;
  std::map<std::array<uint8_t, 256>, PartitionId> ids_;
  std::unordered_map<uint64_t, PartitionId> meets_;
};

}  // namespace lfm2::grammar
