// Online softmax of the two accumulator rows a thread holds (FlashAttention-3, Algorithm 1, lines for m and l), in
// base 2.
#pragma once

#include "attention/arguments.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// What O and l of earlier blocks have to be multiplied by, per row.
struct Rescale {
  float factor[2];
};

/// Running state of rows r = 0, 1 of this thread: the reference m and the sum l of P over the blocks seen. m is the
/// row's maximum when it was last raised; it may lag behind by a factor of 2^threshold in P, which saves nearly all
/// rescaling of O.
///
/// P = 2^(S * scale - m) is one FFMA and one EX2 per element if m is the rounded product max * scale. Its rounding
/// error is common to the row and cancels in O = P V / l, unless m is so large that the error itself leaves the range
/// of exp2 (m > 2^27: an ulp is 16). There S has lost everything but its order, and the row uses a power of two as
/// scale: products are exact, the largest element gets weight 1 and the others, at least an ulp away, next to nothing.
class OnlineSoftmax {
 public:
  HOPPER_FUNCTION explicit OnlineSoftmax(const Scale& scale) : scale_(scale) {}
  OnlineSoftmax(const Scale&&) = delete;  // it is kept by reference

  /// Takes the maxima of this thread's scores. True if one outgrows its row's m by more than the threshold: then the
  /// warp has to call raise(). Needs no exchange between threads.
  template <int columns>
  HOPPER_FUNCTION bool observe(const hopper::Accumulator<columns>& s) {
    bool outgrown = false;
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      float largest = s.value[2 * r];
      HOPPER_UNROLL
      for (int j = 0; j < columns / 8; ++j) {
        largest = hopper::maximum(largest, s.value[4 * j + 2 * r]);
        largest = hopper::maximum(largest, s.value[4 * j + 2 * r + 1]);
      }
      largest_[r] = largest;
      outgrown |= scaled(largest) > m_[r] + threshold;
    }
    return outgrown;
  }

  /// A new m for the rows that need one, decided per row; the others keep theirs, and their factor is exactly 1, so
  /// that no row's bits depend on another's. l is rescaled here, O by the factors returned. By the whole warp.
  HOPPER_FUNCTION Rescale raise() {
    Rescale rescale;
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float candidate = scaled(hopper::quad_max(largest_[r]));
      const float m = candidate > m_[r] + threshold ? candidate : m_[r];
      rescale.factor[r] = m == m_[r] ? 1.0f : hopper::exp2(m_[r] - m);
      m_[r] = m;
      l_[r] *= rescale.factor[r];
    }
    return rescale;
  }

  /// S [64 x columns] becomes P = 2^(S * scale - m) (still f32), at most 2^threshold; l takes the block in.
  template <int columns>
  HOPPER_FUNCTION void exponentiate(hopper::Accumulator<columns>& s) {
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float scale = row_scale(m_[r]);
      // A row that has seen no key yet (m = -inf) must give P = 0, not exp2(-inf + inf).
      const float finite_m = m_[r] == minus_infinity ? 0.0f : m_[r];
      float sum = 0;
      HOPPER_UNROLL
      for (int j = 0; j < columns / 8; ++j) {
        HOPPER_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& x = s.value[4 * j + 2 * r + e];
          x = hopper::exp2(hopper::fma(x, scale, -finite_m));
          sum += x;
        }
      }
      l_[r] += sum;
    }
  }

  /// After the last block, for a row that has seen a key: l summed over the quad, the factor that normalises O, the
  /// LSE.
  struct Row {
    float normalise, lse;
  };
  HOPPER_FUNCTION Row finish(int r) const {
    constexpr float ln_2 = 0.693147180559945f;
    const float l = hopper::quad_sum(l_[r]);
    const float true_m = m_[r] * (scale_.scale_log2 / row_scale(m_[r]));
    return {1.0f / l, (true_m + hopper::log2(l)) * ln_2};
  }

 private:
  static constexpr float minus_infinity = -__builtin_inff();
  // P up to 2^8 keeps its relative precision in 16 bits, and P V stays far from the end of f32.
  static constexpr float threshold = 8;

  HOPPER_FUNCTION static bool saturates(float m) { return m > 0x1p27f || m < -0x1p27f; }
  HOPPER_FUNCTION float scaled(float s) const {
    const float m = s * scale_.scale_log2;
    return saturates(m) ? s * scale_.power_of_two : m;
  }
  HOPPER_FUNCTION float row_scale(float m) const {
    return saturates(m) && m != minus_infinity ? scale_.power_of_two : scale_.scale_log2;
  }

  const Scale& scale_;
  float m_[2] = {minus_infinity, minus_infinity};
  float l_[2] = {0.0f, 0.0f};
  float largest_[2];  // of this thread's scores, from observe() to raise()
};

/// O *= factor, row by row.
template <int columns>
HOPPER_FUNCTION void rescale_rows(hopper::Accumulator<columns>& o, const Rescale& rescale) {
  HOPPER_UNROLL
  for (int j = 0; j < columns / 8; ++j) {
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      o.value[4 * j + 2 * r] *= rescale.factor[r];
      o.value[4 * j + 2 * r + 1] *= rescale.factor[r];
    }
  }
}

/// P in 16 bits, as the A operand of P V: an accumulator's layout is already that of the operand.
template <hopper::Element element, int columns>
HOPPER_FUNCTION void convert(hopper::OperandA<columns>& p, const hopper::Accumulator<columns>& s) {
  HOPPER_UNROLL
  for (int i = 0; i < columns / 4; ++i) p.value[i] = hopper::pack2<element>(s.value[2 * i], s.value[2 * i + 1]);
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
