// A hash table of the indices of values that are stored elsewhere, so that equal values get equal indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lfm2::grammar {

// Spreads a number over 64 bits (the finalizer of MurmurHash3).
constexpr uint64_t mix_bits(uint64_t value) {
  value = (value ^ value >> 33) * 0xff51afd7ed558ccdULL;
  value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return value ^ value >> 33;
}

class IndexTable {
 public:
  // The index of the value with this hash for which `same(index)` is true; else `next`, which is then in the table.
  template <class Same>
  uint32_t find_or_add(uint64_t hash, uint32_t next, const Same& same) {
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    for (; slots_[at].index != kFree; at = (at + 1) & mask)
      if (slots_[at].hash == hash && same(slots_[at].index)) return slots_[at].index;
    slots_[at] = {hash, next};
    if (++used_ * 2 > slots_.size()) grow();
    return next;
  }
  // Whether find_or_add() would find it.
  template <class Same>
  bool has(uint64_t hash, const Same& same) const {
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash & mask; slots_[at].index != kFree; at = (at + 1) & mask)
      if (slots_[at].hash == hash && same(slots_[at].index)) return true;
    return false;
  }
  void clear() {
    if (used_ == 0) return;
    slots_.assign(kFirstSlots, {});
    used_ = 0;
  }
  size_t memory() const { return slots_.size() * sizeof(Slot); }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  static constexpr size_t kFirstSlots = 64;  // a power of two, as all sizes
  struct Slot {
    uint64_t hash = 0;
    uint32_t index = kFree;
  };
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    const size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.index == kFree) continue;
      size_t at = slot.hash & mask;
      while (slots_[at].index != kFree) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }
  std::vector<Slot> slots_ = std::vector<Slot>(kFirstSlots);
  size_t used_ = 0;
};

}  // namespace lfm2::grammar
