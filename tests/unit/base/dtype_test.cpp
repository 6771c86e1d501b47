// Conversions between fp32, bf16, fp16 and fp8 (src/base/dtype.h): every pattern, and rounding to nearest even.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"

namespace lfm2 {
namespace {

constexpr uint32_t kPatterns = 0x10000;

// The value of a 16-bit float, from the definition of the format.
double decode(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  const int exponent = static_cast<int>((bits & 0x7fffu) >> mantissa_bits);
  const double fraction = std::ldexp(bits & ((1u << mantissa_bits) - 1), -mantissa_bits);
  if (exponent == (1 << exponent_bits) - 1) return fraction == 0 ? sign * HUGE_VAL : NAN;
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1 + fraction, exponent - bias);
}

template <class T>
void check_every_pattern(int exponent_bits, int mantissa_bits) {
  for (uint32_t bits = 0; bits < kPatterns; ++bits) {
    const T x{static_cast<uint16_t>(bits)};
    const double value = decode(bits, exponent_bits, mantissa_bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(x))) << std::hex << bits;
      EXPECT_TRUE(std::isnan(to_float(from_float<T>(to_float(x))))) << std::hex << bits;
      continue;
    }
    EXPECT_EQ(static_cast<double>(to_float(x)), value) << std::hex << bits;
    EXPECT_EQ(from_float<T>(to_float(x)).bits, bits) << std::hex << bits;
  }
}

// Between two neighbours of the type, the middle rounds to the even one, and anything beside it to the nearer one.
template <class T>
void check_rounding(uint16_t infinity) {
  for (uint16_t low = 0; low < infinity; ++low) {
    const uint16_t high = static_cast<uint16_t>(low + 1);
    const float below = to_float(T{low});
    // The upper neighbour of the largest finite value is where infinity begins: one more step of the same size.
    const float above =
        high == infinity ? below + (below - to_float(T{static_cast<uint16_t>(low - 1)})) : to_float(T{high});
    const double middle = (static_cast<double>(below) + static_cast<double>(above)) / 2;
    const auto tie = static_cast<float>(middle);
    const uint16_t even = (low & 1u) == 0 ? low : high;
    if (std::isinf(above) || static_cast<double>(tie) != middle) continue;  // the middle is no fp32 value
    for (const bool negative : {false, true}) {
      const float sign = negative ? -1.0f : 1.0f;
      const uint32_t bit = negative ? 0x8000u : 0;
      ASSERT_EQ(from_float<T>(sign * tie).bits, even | bit) << low;
      ASSERT_EQ(from_float<T>(sign * std::nextafter(tie, 0.0f)).bits, low | bit) << low;
      ASSERT_EQ(from_float<T>(sign * std::nextafter(tie, HUGE_VALF)).bits, high | bit) << low;
    }
  }
}

TEST(DTypeTest, EveryBf16PatternHasItsValueAndComesBack) { check_every_pattern<Bf16>(8, 7); }
TEST(DTypeTest, EveryF16PatternHasItsValueAndComesBack) { check_every_pattern<F16>(5, 10); }
TEST(DTypeTest, Bf16RoundsToNearestEven) { check_rounding<Bf16>(0x7f80); }
TEST(DTypeTest, F16RoundsToNearestEven) { check_rounding<F16>(0x7c00); }

// From the definition in "OCP 8-bit Floating Point Specification", E4M3: no infinities, one NaN of each sign.
double decode_f8(uint32_t bits) {
  const double sign = (bits & 0x80u) != 0 ? -1 : 1, fraction = static_cast<double>(bits & 7u) / 8;
  const int exponent = static_cast<int>(bits >> 3 & 15u);
  if ((bits & 0x7fu) == 0x7f) return NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7));
}

TEST(DTypeTest, EveryF8PatternHasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const F8 x{static_cast<uint8_t>(bits)};
    if (std::isnan(decode_f8(bits))) {
      EXPECT_TRUE(std::isnan(to_float(x))) << bits;
    } else {
      EXPECT_EQ(static_cast<double>(to_float(x)), decode_f8(bits)) << bits;
      EXPECT_EQ(std::signbit(to_float(x)), bits >= 128) << bits;
    }
    EXPECT_EQ(from_float<F8>(to_float(x)).bits, bits);
  }
}

TEST(DTypeTest, F8RoundsToNearestEvenAndSaturates) {
  for (uint32_t low = 0; low < 0x7e; ++low) {
    const auto tie = static_cast<float>((decode_f8(low) + decode_f8(low + 1)) / 2);  // exact
    EXPECT_EQ(from_float<F8>(tie).bits, low % 2 == 0 ? low : low + 1) << low;
    EXPECT_EQ(from_float<F8>(std::nextafter(tie, 0.0f)).bits, low) << low;
    EXPECT_EQ(from_float<F8>(std::nextafter(tie, 1000.0f)).bits, low + 1) << low;
    EXPECT_EQ(from_float<F8>(-tie).bits, 0x80 + (low % 2 == 0 ? low : low + 1)) << low;
  }
  for (const float large : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, HUGE_VALF}) {
    EXPECT_EQ(from_float<F8>(large).bits, 0x7e) << large;
    EXPECT_EQ(from_float<F8>(-large).bits, 0xfe) << large;
  }
  EXPECT_EQ(from_float<F8>(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(from_float<F8>(-std::numeric_limits<float>::min()).bits, 0x80);
}

TEST(DTypeTest, LargeValuesBecomeInfinity) {
  EXPECT_EQ(from_float<F16>(65519.0f).bits, 0x7bff);
  EXPECT_EQ(from_float<F16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(from_float<F16>(-1e30f).bits, 0xfc00);
  EXPECT_EQ(from_float<Bf16>(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(from_float<Bf16>(-HUGE_VALF).bits, 0xff80);
}

TEST(DTypeTest, ConvertCoversEveryPair) {
  const std::vector<float> values = {0.0f, -0.0f, 1.0f, -2.5f, 0.15625f, 1024.0f};  // exact in all three types
  for (const DType from : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const DType to : {DType::kF32, DType::kBf16, DType::kF16}) {
      std::vector<float> source(values.size()), target(values.size()), back(values.size());
      convert(DType::kF32, values.data(), from, source.data(), values.size());
      convert(from, source.data(), to, target.data(), values.size());
      convert(to, target.data(), DType::kF32, back.data(), values.size());
      EXPECT_EQ(std::memcmp(back.data(), values.data(), values.size() * sizeof(float)), 0)
          << name(from) << " to " << name(to);
    }
  }
  float x = 0;
  EXPECT_THROW(convert(DType::kI32, &x, DType::kF32, &x, 1), Error);
  EXPECT_THROW(convert(DType::kF8, &x, DType::kF32, &x, 1), Error);
  EXPECT_THROW(convert(DType::kF32, &x, DType::kF8, &x, 1), Error);
}

TEST(DTypeTest, NamesParseBack) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  EXPECT_EQ(parse_dtype("int32"), std::nullopt);
  EXPECT_EQ(parse_dtype("FP32"), std::nullopt);
}

}  // namespace
}  // namespace lfm2
