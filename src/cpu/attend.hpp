// The vector kernel of the forward pass: FlashAttention's inner step S = Q K^T, online softmax, O += P V on one block
// of keys. See multiply.hpp for how it is compiled.
#include "cpu/multiply.hpp"

namespace fa3::cpu {
namespace {

constexpr float minus_infinity = -__builtin_inff();

float largest_lane(Batch x) {
  alignas(64) float lane[lanes];
  x.store_aligned(lane);
  float largest = lane[0];
  for (int i = 1; i < lanes; ++i) largest = lane[i] > largest ? lane[i] : largest;
  return largest;
}

/// A weight, at most 1, rounded to what e4m3 holds of 2^e4m3_weight_log2 times it. NaN stays NaN.
Batch round_to_e4m3(Batch weight) {
  constexpr float smallest_normal = 0x1p-6f / (1 << e4m3_weight_log2);
  // The power of two at or below the weight; adding 2^20 of it leaves three bits behind the leading one.
  const Batch power = xsimd::max(weight & Batch(__builtin_inff()), Batch(smallest_normal));
  const Batch adder = power * Batch(0x1p20f);
  return (weight + adder) - adder;
}

/// Turns the first `visible` (> 0) scores of a row into weights and adds those to row_sum; the rest up to a full vector
/// gets weight 0. Returns the factor that brings what was summed under the old maximum to the new one. `round`: after
/// they are added the weights are rounded to e4m3.
template <bool round>
float softmax_row(float* s, int visible, float scale_log2, float& row_max, float* row_sum) {
  const int end = (visible + lanes - 1) / lanes * lanes;
  for (int j = visible; j < end; ++j) s[j] = s[visible - 1];  // a repeated score changes no maximum

  Batch block_max(minus_infinity);
  for (int j = 0; j < end; j += lanes) block_max = xsimd::max(block_max, Batch::load_unaligned(s + j));
  const float old_max = row_max;
  if (xsimd::any(block_max > Batch(old_max))) {
    const float largest = largest_lane(block_max);
    if (largest > old_max) row_max = largest;
  }
  // Why not row_max itself: infinite inputs can make every score so far -inf, and -inf - -inf is not a weight of 0.
  const float shift = row_max == minus_infinity ? 0.0f : row_max;

  // The difference is taken before it is scaled: for scores of 1e11 a scaled score would have lost its last digits, and
  // the largest weight would not be exactly 1.
  const auto weight = [&](Batch score) { return xsimd::exp2((score - Batch(shift)) * Batch(scale_log2)); };
  for (int j = 0; j < end; j += lanes) weight(Batch::load_unaligned(s + j)).store_unaligned(s + j);
  for (int j = visible; j < end; ++j) s[j] = 0.0f;

  float rescale = 1.0f;
  if (row_max != old_max) rescale = old_max == minus_infinity ? 0.0f : largest_lane(weight(Batch(old_max)));
  Batch sum = Batch::load_unaligned(row_sum) * Batch(rescale);
  for (int j = 0; j < end; j += lanes) {
    const Batch weights = Batch::load_unaligned(s + j);
    sum = sum + weights;
    if constexpr (round) round_to_e4m3(weights).store_unaligned(s + j);
  }
  sum.store_unaligned(row_sum);
  return rescale;
}

/// One group of rows, at most row_tile.
template <int rows, bool round>
void attend_rows(const KeyBlock& block, int first) {
  const int* visible = block.visible + first;
  if (visible[rows - 1] == 0) return;
  const float* q = block.q + first * block.d;
  float* s = block.s + first * tile_k;
  float* o = block.o + first * block.v_width;

  multiply_scores<rows>(q, block.d, block.k_transposed, s);

  for (int r = 0; r < rows; ++r) {
    if (visible[r] == 0) continue;
    const int row = first + r;
    const float rescale = softmax_row<round>(s + r * tile_k, visible[r], block.scale_log2, block.row_max[row],
                                             block.row_sum + row * max_lanes);
    if (rescale == 1.0f) continue;
    float* o_row = o + r * block.v_width;
    for (int c = 0; c < block.v_width; c += lanes) {
      (Batch::load_unaligned(o_row + c) * Batch(rescale)).store_unaligned(o_row + c);
    }
  }

  // A key that a row does not see is left out rather than given weight 0: its value may be NaN, or not exist.
  if (visible[0] == visible[rows - 1]) {
    multiply<rows>(s, tile_k, block.v, block.v_width, visible[0], o, block.v_width, block.v_width, true);
  } else {
    for (int r = 0; r < rows; ++r) {
      float* o_row = o + r * block.v_width;
      multiply<1>(s + r * tile_k, tile_k, block.v, block.v_width, visible[r], o_row, block.v_width, block.v_width,
                  true);
    }
  }
}

template <bool round>
void attend_tile(const KeyBlock& block) {
  int row = 0;
  for (; row + row_tile <= block.rows; row += row_tile) attend_rows<row_tile, round>(block, row);
  for (; row < block.rows; ++row) attend_rows<1, round>(block, row);
}

}  // namespace

namespace FA3_SIMD {

void attend(const KeyBlock& block) { block.e4m3_weights ? attend_tile<true>(block) : attend_tile<false>(block); }

}  // namespace FA3_SIMD
}  // namespace fa3::cpu
