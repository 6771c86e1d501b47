// Signed numbers as indices of vectors. Used by the tests of operators, whose shapes are signed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lfm2::test {

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

}  // namespace lfm2::test
