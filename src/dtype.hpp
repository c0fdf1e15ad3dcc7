// Element types of 16 and 8 bits on the host: storage, and exact conversion to and from float (round to nearest even).
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
/// FP8: sign, four bits of exponent (bias 7), three of mantissa; 0x7f is NaN, there is no infinity. OCP 8-bit
/// floating point specification, E4M3.
struct E4m3 {
  std::uint8_t bits;
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

inline float to_float(E4m3 x) {
  const std::uint32_t sign = std::uint32_t(x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
  // As for Half: the exponent is short by 120.
  const float scaled = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  const std::uint32_t nan = magnitude == 0x7fu ? 0x7fc00000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | nan | sign);
}

/// Saturates: what would round above 448, and infinity, becomes 448 (PTX: cvt.rn.satfinite.e4m3x2.f32).
template <>
inline E4m3 from_float<E4m3>(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint8_t sign = std::uint8_t((bits >> 24) & 0x80u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7f};
  if (magnitude >= 0x43e00000u) return {std::uint8_t(sign | 0x7eu)};  // 448
  if (magnitude < 0x3c800000u) {  // below 2^-6, subnormal: let the adder round at 2^-9
    const float rounded = std::bit_cast<float>(magnitude) + 0x1p14f;
    return {std::uint8_t(sign | (std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(0x1p14f)))};
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return {std::uint8_t(sign | ((rounded - 0x3c000000u) >> 20))};
}

/// Calls f with a value of the storage type of `dtype`, which is not e4m3: with_dtype(dtype, [&]<class T>(T) { ... }).
template <class F>
decltype(auto) with_dtype(fa3_dtype dtype, F&& f) {
  switch (dtype) {
    case FA3_F16: return f(Half{});
    case FA3_BF16: return f(Bfloat16{});
    default: return f(float{});
  }
}

/// The same for types of inputs of the forward pass: with e4m3.
template <class F>
decltype(auto) with_input_dtype(fa3_dtype dtype, F&& f) {
  return dtype == FA3_E4M3 ? f(E4m3{}) : with_dtype(dtype, f);
}

constexpr const char* dtype_name(fa3_dtype dtype) {
  switch (dtype) {
    case FA3_F16: return "f16";
    case FA3_BF16: return "bf16";
    case FA3_E4M3: return "e4m3";
    case FA3_F32: return "f32";
  }
  return "unknown";
}

}  // namespace fa3
