// Random numbers that depend only on a key and a number, so that any of them can be made without those before it.
#pragma once

#include <cstdint>

namespace lfm2 {

// Word `number` of SplitMix64's stream that begins with `key`.
constexpr uint64_t split_mix(uint64_t key, uint64_t number) {
  uint64_t x = key + number * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

}  // namespace lfm2
