// One step of the tiled forward pass, compiled once per instruction set.
#pragma once

namespace fa3::cpu {

inline constexpr int tile_k = 64;  // keys of a block
// The weights of FP8 are rounded as multiples of 2^-8 of what they are: then they are at most 256, of the 448 that e4m3
// has room for, and the smallest that is not lost is 2^-18 of the largest one so far.
inline constexpr int e4m3_weight_log2 = 8;
inline constexpr int max_lanes = 16;  // floats in the widest vector; widths in memory are multiples of it

/// A tile of query rows and the block of keys it meets. Everything is f32 and dense; the memory starts at a multiple of
/// 64 bytes. The last four are the state of the online softmax and are updated.
struct KeyBlock {
  int rows;                   // query rows of the tile
  int d;                      // features of q and k
  int v_width;                // features of v and o, with zeros up to a multiple of max_lanes
  bool e4m3_weights;          // weights are rounded to e4m3 on their way into o, not into row_sum
  float scale_log2;           // >= 0: a weight is exp2((s - max) * scale_log2)
  const int* visible;         // [rows] keys of this block each row sees: 0..tile_k, not decreasing
  const float* q;             // [rows][d]
  const float* k_transposed;  // [d][tile_k]
  const float* v;             // [tile_k][v_width]
  float* s;                   // [rows][tile_k] scores, then weights; any content on entry
  float* o;                   // [rows][v_width] weighted sum of v
  float* row_max;             // [rows] largest score so far, unscaled; -inf at first
  float* row_sum;             // [rows][max_lanes] sum of the weights, spread over the lanes
};

}  // namespace fa3::cpu
