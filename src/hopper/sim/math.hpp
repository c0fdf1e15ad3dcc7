#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "dtype.hpp"
#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline float exp2(float x) {
  simulator::Cluster::current().account_exp2();
  return std::exp2(x);
}

inline float log2(float x) { return std::log2(x); }

inline float reciprocal(float x) { return 1.0f / x; }

inline float fma(float a, float b, float c) { return std::fma(a, b, c); }

inline float maximum(float a, float b) {
  simulator::Cluster::current().account_alu(2, "max");
  if (std::isnan(a)) return b;  // std::fmax would give a NaN if this is a signalling one
  if (std::isnan(b)) return a;
  return std::fmax(a, b);
}

inline float maximum_from_0(float a, float b, float c) {
  simulator::Cluster::current().account_alu(2, "max");
  const auto bits = [](float x) { return std::bit_cast<std::int32_t>(x); };
  return std::bit_cast<float>(std::max({bits(a), bits(b), bits(c)}));
}

inline bool warp_any(bool x) { return simulator::Cluster::current().warp_any(x); }
inline float quad_max(float x) { return simulator::Cluster::current().quad_reduce(x, true); }
inline float quad_sum(float x) { return simulator::Cluster::current().quad_reduce(x, false); }
inline std::uint32_t from_neighbour(std::uint32_t x) { return simulator::Cluster::current().quad_exchange(x); }

inline float from_lane_xor(float x, int mask) {
  return std::bit_cast<float>(simulator::Cluster::current().lane_exchange(std::bit_cast<std::uint32_t>(x), mask));
}
inline std::uint32_t warp_max(std::uint32_t x) { return simulator::Cluster::current().warp_max(x); }

template <Element element>
inline std::uint32_t pack2(float low, float high) {
  simulator::Cluster::current().account_alu(2, "convert");
  if constexpr (element == Element::f16) {
    return from_float<Half>(low).bits | std::uint32_t(from_float<Half>(high).bits) << 16;
  } else {
    return from_float<Bfloat16>(low).bits | std::uint32_t(from_float<Bfloat16>(high).bits) << 16;
  }
}

template <Element element>
inline void unpack2(std::uint32_t pair, float& low, float& high) {
  const auto value = [](std::uint32_t bits) {
    if constexpr (element == Element::f16) {
      return to_float(Half{std::uint16_t(bits)});
    } else {
      return to_float(Bfloat16{std::uint16_t(bits)});
    }
  };
  low = value(pair & 0xffff);
  high = value(pair >> 16);
}

inline std::uint32_t pack4_e4m3(float a, float b, float c, float d) {
  simulator::Cluster::current().account_alu(4, "convert");
  return from_float<E4m3>(a).bits | std::uint32_t(from_float<E4m3>(b).bits) << 8 |
         std::uint32_t(from_float<E4m3>(c).bits) << 16 | std::uint32_t(from_float<E4m3>(d).bits) << 24;
}

/// f of the values of each half, in double, rounded once: by way of f32 rounded to odd, which has twice the bits of
/// f16. The hardware knows one NaN.
template <class... Pairs>
inline std::uint32_t by_halves(const auto& f, Pairs... pairs) {
  const auto half = [&](int shift) -> std::uint32_t {
    const double exact = f(double(to_float(Half{std::uint16_t(pairs >> shift)}))...);
    if (std::isnan(exact)) return 0x7fff;
    float x = float(exact);
    if (std::abs(double(x)) > std::abs(exact)) x = std::nextafter(x, 0.0f);
    if (double(x) != exact) x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) | 1u);
    return from_float<Half>(x).bits;
  };
  return half(0) | half(16) << 16;
}

inline std::uint32_t pair_fma(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return by_halves([](double x, double y, double z) { return x * y + z; }, a, b, c);
}

inline std::uint32_t pair_sum(std::uint32_t a, std::uint32_t b) {
  return by_halves([](double x, double y) { return x + y; }, a, b);
}

inline std::uint32_t pair_maximum(std::uint32_t a, std::uint32_t b) {
  simulator::Cluster::current().account_alu(2, "max");
  return by_halves([](double x, double y) { return std::fmax(x, y); }, a, b);
}

inline std::uint32_t pair_clamp(std::uint32_t x, std::uint32_t low, std::uint32_t high) {
  simulator::Cluster::current().account_alu(4, "max");
  return by_halves([](double y, double least, double most) { return std::clamp(y, least, most); }, x, low, high);
}

inline std::uint32_t pair_exp2(std::uint32_t x) {
  simulator::Cluster::current().account_exp2();
  simulator::Cluster::current().account_exp2();
  return by_halves([](double y) { return std::exp2(y); }, x);
}

inline std::uint32_t pack4_e4m3(std::uint32_t a, std::uint32_t b) {
  float value[4];
  unpack2<Element::f16>(a, value[0], value[1]);
  unpack2<Element::f16>(b, value[2], value[3]);
  return pack4_e4m3(value[0], value[1], value[2], value[3]);
}

inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  const std::uint64_t both = std::uint64_t(high) << 32 | low;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= std::uint32_t(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}

inline unsigned atomic_add(unsigned* address, unsigned value) { return std::exchange(*address, *address + value); }
inline unsigned atomic_max(unsigned* address, unsigned value) {
  return std::exchange(*address, std::max(*address, value));
}

}  // namespace fa3::hopper::inline sim
