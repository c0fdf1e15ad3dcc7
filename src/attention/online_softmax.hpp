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

/// Of this thread's scores in row r.
template <int columns>
HOPPER_FUNCTION float largest_of(const hopper::Accumulator<columns>& s, int r) {
  float largest = s.value[2 * r];
  HOPPER_UNROLL
  for (int j = 0; j < columns / 8; ++j) {
    largest = hopper::maximum(largest, s.value[4 * j + 2 * r]);
    largest = hopper::maximum(largest, s.value[4 * j + 2 * r + 1]);
  }
  return largest;
}

/// Running state of rows r = 0, 1 of this thread: the reference m and the sum l of P over the blocks seen.
///
/// m lags behind the row's maximum: a block is exponentiated against the m of earlier blocks, and only if its sum shows
/// that P left the range in which 16 bits represent it well is m raised to the maximum and the block done again. So the
/// usual block needs no maximum, no exchange between threads and no rescaling of O (the maxima of Algorithm 1, line 10,
/// are a rare path), and the result is as exact: P keeps its relative precision and O = P V / l does not depend on m.
///
/// P = 2^(S * scale - m) is one FFMA and one EX2 per element if m is the rounded product max * scale. Its rounding
/// error is common to the row and cancels in O = P V / l, unless m is so large that the error itself leaves the range
/// of exp2 (m > 2^27: an ulp is 16). There S has lost everything but its order, and the row uses a power of two as
/// scale: products are exact, the largest element gets weight 1 and the others, at least an ulp away, next to nothing.
class OnlineSoftmax {
 public:
  HOPPER_FUNCTION explicit OnlineSoftmax(const Scale& scale) : scale_(scale) {}
  OnlineSoftmax(const Scale&&) = delete;  // it is kept by reference

  /// P = 2^(S * scale - m) in 16 bits, as the A operand of P V (an accumulator's layout is already that of the
  /// operand), and its sums. True if a row outgrew its m: then P is void, and the warp has to raise() and call again.
  template <hopper::Element element, int columns>
  HOPPER_FUNCTION bool exponentiate(hopper::OperandA<columns>& p, const hopper::Accumulator<columns>& s) {
    float scale[2];
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      scale[r] = row_scale(m_[r]);
      sum_[r] = 0;
    }
    HOPPER_UNROLL
    for (int i = 0; i < columns / 4; ++i) {
      const int r = i % 2;
      const float a = hopper::exp2(hopper::fma(s.value[2 * i], scale[r], -m_[r]));
      const float b = hopper::exp2(hopper::fma(s.value[2 * i + 1], scale[r], -m_[r]));
      sum_[r] += a;
      sum_[r] += b;
      p.value[i] = hopper::pack2<element>(a, b);
    }
    return sum_[0] > largest_sum || sum_[1] > largest_sum;
  }

  /// Takes the block of the last exponentiate() into l.
  HOPPER_FUNCTION void accept() {
    l_[0] += sum_[0];
    l_[1] += sum_[1];
  }

  /// A first m, from a quarter of the block's scores. Whatever is larger is within P's range or outgrows it.
  template <int columns>
  HOPPER_FUNCTION void begin(const hopper::Accumulator<columns>& s) {
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      float largest = s.value[2 * r];
      HOPPER_UNROLL
      for (int j = 2; j < columns / 8; j += 2) largest = hopper::maximum(largest, s.value[4 * j + 2 * r]);
      m_[r] = hopper::maximum(scaled(hopper::quad_max(largest)), unseen);
    }
  }

  /// m becomes the maximum of S in the rows that outgrew it; the others keep theirs, and their factor is exactly 1, so
  /// that no row's bits depend on another's. l is rescaled here, O by the factors returned. By the whole warp.
  template <int columns>
  HOPPER_FUNCTION Rescale raise(const hopper::Accumulator<columns>& s) {
    Rescale rescale;
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float largest = largest_of(s, r);
      const bool outgrown = hopper::quad_max(sum_[r]) > largest_sum;
      const float candidate = scaled(hopper::quad_max(largest));
      const float m = outgrown && candidate > m_[r] ? candidate : m_[r];
      rescale.factor[r] = m == m_[r] ? 1.0f : hopper::exp2(m_[r] - m);
      m_[r] = m;
      l_[r] *= rescale.factor[r];
    }
    return rescale;
  }

  /// m becomes the maximum of the blocks up to this one, in every row (Maximum::before). l is rescaled here, O by the
  /// factors of rescale(). By the whole warp.
  template <int columns>
  HOPPER_FUNCTION void follow(const hopper::Accumulator<columns>& s) {
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float candidate = scaled(hopper::quad_max(largest_of(s, r)));
      const float m = candidate > m_[r] ? candidate : m_[r];
      rescale_.factor[r] = hopper::exp2(m_[r] - m);
      m_[r] = m;
      l_[r] *= rescale_.factor[r];
    }
  }
  HOPPER_FUNCTION const Rescale& rescale() const { return rescale_; }

  /// After the last block; of no use for a row that has seen no key. l summed over the quad, the factor that normalises
  /// O, the LSE.
  struct Row {
    float normalise, lse;
  };
  HOPPER_FUNCTION Row finish(int r) const {
    constexpr float ln_2 = 0.693147180559945f;
    const float l = hopper::quad_sum(l_[r]);
    const float true_m = saturates(m_[r]) ? m_[r] * scale_.ratio : m_[r];
    return {hopper::reciprocal(l), (true_m + hopper::log2(l)) * ln_2};
  }
  /// Whether row r has had no score above -inf.
  HOPPER_FUNCTION bool nothing_seen(int r) const { return m_[r] == unseen; }

 private:
  // m of a row that has seen no key: P of any finite score is infinite and so outgrows it, that of a masked one (-inf)
  // is 0.
  static constexpr float unseen = -0x1.fffffep127f;
  // Of one thread's share of a row in one block. P is at most this: far from the end of f16, and P V from that of f32
  // unless V itself is near it (bf16; docs/numerics.md, Limits). More than 2^9, because right after raise() rounding of
  // m may still leave each of 32 P at 2^4.
  static constexpr float largest_sum = 0x1p10f;

  HOPPER_FUNCTION static bool saturates(float m) { return m > 0x1p27f || m < -0x1p27f; }
  HOPPER_FUNCTION float scaled(float s) const {
    const float m = s * scale_.scale_log2;
    return saturates(m) ? s * scale_.power_of_two : m;
  }
  HOPPER_FUNCTION float row_scale(float m) const { return saturates(m) ? scale_.power_of_two : scale_.scale_log2; }

  const Scale& scale_;
  float m_[2] = {unseen, unseen};
  float l_[2] = {0.0f, 0.0f};
  float sum_[2];     // of P, this thread's share of the block
  Rescale rescale_;  // of the last follow()
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

/// In the place of an O that a product is still being added to: what it is to be rescaled by afterwards.
struct PostponedRescale {
  Rescale rescale{1.0f, 1.0f};
  bool wanted = false;
};
HOPPER_FUNCTION void rescale_rows(PostponedRescale& o, const Rescale& rescale) {
  o.rescale.factor[0] *= rescale.factor[0];
  o.rescale.factor[1] *= rescale.factor[1];
  o.wanted = true;
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
