#include "dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <type_traits>

namespace fa3 {
namespace {

/// A 16-bit float of `mantissa_bits` and the exponent bits left, decoded by its definition.
double decode(std::uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/// Round to nearest even by comparing with both neighbours among the magnitudes, which are ordered like their bits.
std::uint16_t encode(float x, int mantissa_bits) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const std::uint16_t infinity = std::uint16_t(0x7fff >> mantissa_bits << mantissa_bits);
  const double magnitude = std::abs(double(x));
  std::uint16_t below = 0, above = infinity;  // below <= x < above, unless x is Inf
  while (above - below > 1) {
    const std::uint16_t middle = std::uint16_t((below + above) / 2);
    (decode(middle, mantissa_bits) <= magnitude ? below : above) = middle;
  }
  // The step to Inf counts as long as the one before it.
  const double low = decode(below, mantissa_bits);
  const double high =
      above == infinity ? low + (low - decode(std::uint16_t(below - 1), mantissa_bits)) : decode(above, mantissa_bits);
  const bool up = magnitude - low > high - magnitude || (magnitude - low == high - magnitude && below % 2 == 1);
  return sign | (up ? above : below);
}

template <class T>
struct DtypeTest : testing::Test {};
using Types = testing::Types<Half, Bfloat16>;
TYPED_TEST_SUITE(DtypeTest, Types);

template <class T>
constexpr int mantissa_bits = std::is_same_v<T, Half> ? 10 : 7;

TYPED_TEST(DtypeTest, EveryValueIsExactAndComesBack) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const TypeParam x{std::uint16_t(bits)};
    const double expected = decode(x.bits, mantissa_bits<TypeParam>);
    const float value = to_float(x);
    const TypeParam back = from_float<TypeParam>(value);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
      ASSERT_TRUE(std::isnan(to_float(back))) << std::hex << bits;
    } else {
      ASSERT_EQ(double(value), expected) << std::hex << bits;
      ASSERT_EQ(back.bits, x.bits);
    }
  }
}

TYPED_TEST(DtypeTest, RoundsAnyFloatToNearestEven) {
  const auto check = [](float x) {
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(to_float(from_float<TypeParam>(x))));
    } else {
      ASSERT_EQ(from_float<TypeParam>(x).bits, encode(x, mantissa_bits<TypeParam>)) << std::hexfloat << x;
    }
  };
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) check(std::bit_cast<float>(std::uint32_t(random())));
  // Random bits seldom fall into f16's range: random magnitudes around it.
  std::uniform_real_distribution<float> exponent(-27, 17);
  for (int i = 0; i < 200000; ++i) check((random() % 2 ? 1.0f : -1.0f) * std::exp2(exponent(random)));
}

TYPED_TEST(DtypeTest, TiesAndTheirNeighbours) {
  for (unsigned bits = 0; decode(std::uint16_t(bits), mantissa_bits<TypeParam>) < HUGE_VAL; ++bits) {
    const double low = decode(std::uint16_t(bits), mantissa_bits<TypeParam>);
    const double next = decode(std::uint16_t(bits + 1), mantissa_bits<TypeParam>);
    const double high = next < HUGE_VAL ? next : 2 * low - decode(std::uint16_t(bits - 1), mantissa_bits<TypeParam>);
    const float tie = float(low / 2 + high / 2);
    const unsigned even = bits + bits % 2;
    ASSERT_EQ(from_float<TypeParam>(tie).bits, even) << std::hexfloat << tie;
    ASSERT_EQ(from_float<TypeParam>(-tie).bits, even | 0x8000u) << std::hexfloat << tie;
    ASSERT_EQ(from_float<TypeParam>(std::nextafter(tie, 0.0f)).bits, bits) << std::hexfloat << tie;
    ASSERT_EQ(from_float<TypeParam>(std::nextafter(tie, HUGE_VALF)).bits, bits + 1) << std::hexfloat << tie;
  }
}

}  // namespace
}  // namespace fa3
