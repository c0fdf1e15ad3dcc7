// What the quantiser's definition (docs/numerics.md, FP8: the quantiser) gives to both devices. Plain C++.
#pragma once

#include <cstdint>

#include "fa3/fa3.h"

namespace fa3 {

/// x' = (x D) H of d features: D random signs, H of `segments` Hadamard matrices of `order`, d = segments * order,
/// mixed by a reflection.
struct Rotation {
  int order = 1;     // the largest power of two that divides d
  int segments = 1;  // odd
  float norm = 1;    // order^(-1/2), which the butterflies leave out
  float mix = 0;     // -2 / segments
  // Bit i % 32 of signs[i / 32]: feature i is negated.
  std::uint32_t signs[8] = {};
};

/// The rotation of d features, a multiple of 16 up to 256.
inline Rotation make_rotation(std::int64_t d, std::uint64_t seed) {
  Rotation rotation;
  rotation.order = int(d & -d);
  rotation.segments = int(d) / rotation.order;
  for (int order = rotation.order; order >= 4; order /= 4) rotation.norm /= 2;
  if ((rotation.order & 0x55555555) == 0) rotation.norm *= 0x1.6a09e6p-1f;  // an odd power of two: 2^(-1/2)
  rotation.mix = -2.0f / float(rotation.segments);
  for (std::uint64_t word = 0; word < 4; ++word) {
    // splitmix64 at position word + 1 of the sequence that begins with the seed.
    std::uint64_t z = seed + (word + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    rotation.signs[2 * word] = std::uint32_t(z);
    rotation.signs[2 * word + 1] = std::uint32_t(z >> 32);
  }
  return rotation;
}

/// The scale of values up to `amax`, which is finite, where that becomes `largest`. Not below the normal numbers, so
/// that its inverse is finite, too.
constexpr float scale_of(float amax, float largest) {
  const float scale = amax / largest;
  return amax == 0.0f ? 1.0f : scale < 0x1p-126f ? 0x1p-126f : scale;
}

/// y, but no larger than `largest` in size; NaN remains.
constexpr float limited(float y, float largest) { return y > largest ? largest : y < -largest ? -largest : y; }

}  // namespace fa3
