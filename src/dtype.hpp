// 16-bit element types on the host: storage, and exact conversion to and from float (round to nearest even).
#pragma once

#include <bit>
#include <cstdint>

#include "fa3/fa3.h"

namespace fa3 {

struct Half {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(Bfloat16 x) { return std::bit_cast<float>(std::uint32_t(x.bits) << 16); }

inline float to_float(Half x) {
  const std::uint32_t sign = std::uint32_t(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  // Shifted into place the exponent is short by 112; a multiplication adds that and normalises subnormals exactly.
  // Without a branch, so that loops over it vectorise: Inf and NaN get the full exponent by an or.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

template <class T>
T from_float(float x);

template <>
inline float from_float<float>(float x) {
  return x;
}

template <>
inline Bfloat16 from_float<Bfloat16>(float x) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {std::uint16_t((bits >> 16) | 0x40u)};  // NaN stays NaN
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {std::uint16_t(bits >> 16)};
}

template <>
inline Half from_float<Half>(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint16_t sign = std::uint16_t((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {std::uint16_t(sign | 0x7e00u)};   // NaN
  if (magnitude >= 0x477ff000u) return {std::uint16_t(sign | 0x7c00u)};  // 65520 and above round to Inf
  if (magnitude < 0x38800000u) {                                         // subnormal: let the adder round at 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return {std::uint16_t(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {std::uint16_t(sign | ((rounded - 0x38000000u) >> 13))};
}

/// Calls f with a value of the storage type of `dtype`: with_dtype(dtype, [&]<class T>(T) { ... }).
template <class F>
decltype(auto) with_dtype(fa3_dtype dtype, F&& f) {
  switch (dtype) {
    case FA3_F16: return f(Half{});
    case FA3_BF16: return f(Bfloat16{});
    default: return f(float{});
  }
}

constexpr const char* dtype_name(fa3_dtype dtype) {
  return dtype == FA3_F16 ? "f16" : dtype == FA3_BF16 ? "bf16" : dtype == FA3_F32 ? "f32" : "unknown";
}

}  // namespace fa3
