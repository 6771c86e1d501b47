// The angles of the rotary embedding: position / theta^(2i / head_dim).
#include "kernels/cpu/rope_table.h"

#include <cmath>

namespace lfm2 {

RopeTable::RopeTable(const Rope& rope, int64_t head_dim) : rope_(rope), half_(head_dim / 2) {
  for (int64_t i = 0; i < half_; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const auto power = static_cast<float>(std::pow(static_cast<double>(rope.theta), static_cast<double>(exponent)));
    const bool turns = rope.pairs == 0 || i < rope.pairs;
    inverse_frequencies_.push_back(turns ? 1.0f / power / rope.factor : 0.0f);
  }
}

void RopeTable::extend(int64_t positions) {
  if (positions <= positions_) return;
  cosines_.reserve(static_cast<size_t>(positions * half_));
  sines_.reserve(static_cast<size_t>(positions * half_));
  for (; positions_ < positions; ++positions_) {
    for (const float frequency : inverse_frequencies_) {
      const float angle = static_cast<float>(positions_) * frequency;
      cosines_.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
      sines_.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
}

}  // namespace lfm2
