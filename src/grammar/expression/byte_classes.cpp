#include "grammar/expression/byte_classes.h"

namespace lfm2::grammar {

ByteClasses::ByteClasses() { intern({}, {0}); }

PartitionId ByteClasses::intern(const std::array<uint8_t, 256>& class_of, std::vector<uint8_t> representatives) {
  const auto [place, is_new] = ids_.try_emplace(class_of, static_cast<PartitionId>(partitions_.size()));
  if (is_new) partitions_.push_back({class_of, std::move(representatives)});
  return place->second;
}

PartitionId ByteClasses::of(const ByteSet& set) {
  if (set.all() || set.none()) return kWhole;
  std::array<uint8_t, 256> class_of;
  size_t other = 0;  // the first byte that is not in the class of byte 0
  for (size_t byte = 0; byte < 256; ++byte) {
    class_of[byte] = set[byte] == set[0] ? 0 : 1;
    if (class_of[byte] == 1 && other == 0) other = byte;
  }
  return intern(class_of, {0, static_cast<uint8_t>(other)});
}

PartitionId ByteClasses::meet(PartitionId first, PartitionId second) {
  if (first == second || second == kWhole) return first;
  if (first == kWhole) return second;
  if (first > second) std::swap(first, second);
  const uint64_t key = uint64_t{first} << 32 | second;
  if (const auto known = meets_.find(key); known != meets_.end()) return known->second;
  const Partition &a = partitions_[first], &b = partitions_[second];
  constexpr uint16_t kNew = 256;
  const size_t columns = b.representatives.size();
  std::vector<uint16_t> numbers(a.representatives.size() * columns, kNew);
  std::array<uint8_t, 256> class_of;
  std::vector<uint8_t> representatives;
  for (size_t byte = 0; byte < 256; ++byte) {
    uint16_t& number = numbers[a.class_of[byte] * columns + b.class_of[byte]];
    if (number == kNew) {
      number = static_cast<uint16_t>(representatives.size());
      representatives.push_back(static_cast<uint8_t>(byte));
    }
    class_of[byte] = static_cast<uint8_t>(number);
  }
  const PartitionId met = intern(class_of, std::move(representatives));
  meets_.emplace(key, met);
  return met;
}

}  // namespace lfm2::grammar
