// Which elements are not finite, or would not be in another type.
#include "kernels/element_range.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/simd/simd.h"

namespace lfm2 {
namespace {

TEST(ElementRangeTest, AgreesWithTheConversion) {
  const auto agrees = [](DType from, DType to, const void* element) {
    float before = 0, after = 0;
    std::array<std::byte, 4> converted{};
    convert(from, element, DType::kF32, &before, 1);
    convert(from, element, to, converted.data(), 1);
    convert(to, converted.data(), DType::kF32, &after, 1);
    const auto* bytes = static_cast<const std::byte*>(element);
    return (count_in(overflow_range(from, to), from, bytes, 1) == 1) == (std::isfinite(before) && std::isinf(after)) &&
           (count_in(non_finite_range(from), from, bytes, 1) == 0) == std::isfinite(before);
  };
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    for (const DType to : {DType::kF16, DType::kF32}) EXPECT_TRUE(agrees(DType::kBf16, to, &half)) << bits;
    for (const DType to : {DType::kBf16, DType::kF32}) EXPECT_TRUE(agrees(DType::kF16, to, &half)) << bits;
    for (const uint32_t near : {0u, 0xfffu, 0x7fffu, 0x8000u, 0xf000u, 0xefffu}) {
      const uint32_t single = bits << 16 | near;
      for (const DType to : {DType::kBf16, DType::kF16}) EXPECT_TRUE(agrees(DType::kF32, to, &single)) << single;
    }
  }
}

// Whole blocks, ends of blocks and single elements, at any address.
TEST(ElementRangeTest, EveryTableCountsAlike) {
  std::mt19937 random(5);
  std::vector<std::byte> bytes(4 * 5000 + 1);
  for (std::byte& byte : bytes) byte = random() % 8 == 0 ? std::byte{0x7f} : static_cast<std::byte>(random());
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16})
    for (const size_t offset : {0, 1})
      for (const size_t count : {0, 1, 7, 1023, 1024, 1025, 5000}) {
        const ElementRange range = non_finite_range(dtype);
        size_t expected = 0;
        for (size_t i = 0; i < count; ++i) {
          float value = 0;
          convert(dtype, bytes.data() + offset + i * size_bytes(dtype), DType::kF32, &value, 1);
          expected += std::isfinite(value) ? 0 : 1;
        }
        EXPECT_TRUE(count < 5000 || expected > 10) << name(dtype);
        for (const Simd* simd : available_simd())
          EXPECT_EQ(simd->count_magnitudes(bytes.data() + offset, size_bytes(dtype), count, range.begin, range.end),
                    expected)
              << simd->name << ' ' << name(dtype) << ' ' << count;
      }
}

TEST(ElementRangeTest, CountsNaNsOfFp8) {
  std::mt19937 random(6);
  std::vector<std::byte> bytes(5000);
  for (std::byte& byte : bytes) byte = random() % 8 == 0 ? std::byte{0x7f} : static_cast<std::byte>(random());
  for (int bits = 0; bits < 256; ++bits) bytes[static_cast<size_t>(bits)] = static_cast<std::byte>(bits);
  const ElementRange range = non_finite_range(DType::kF8);
  for (const size_t offset : {0, 1, 120})
    for (const size_t count : {0, 1, 7, 8, 9, 256, 1023, 4800}) {
      size_t expected = 0;
      for (size_t i = 0; i < count; ++i)
        expected += std::isnan(to_float(F8{std::to_integer<uint8_t>(bytes[offset + i])})) ? 1 : 0;
      EXPECT_EQ(count_in(range, DType::kF8, bytes.data() + offset, count), expected) << offset << ' ' << count;
    }
  EXPECT_EQ(first_in(range, DType::kF8, bytes.data()), 0x7fu);
}

}  // namespace
}  // namespace lfm2
