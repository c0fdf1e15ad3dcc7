// One step of the tiled backward pass, compiled once per instruction set.
#pragma once

#include "cpu/key_block.hpp"

namespace fa3::cpu {

/// A tile of rows and the block of tile_k columns it meets: rows are queries and columns keys, for dQ, or the other way
/// round, for dK and dV. Everything is f32 and dense; the memory starts at a multiple of 64 bytes.
///
///   S = a b^T, dP = a_v b_v^T, P = exp(scale * S - LSE), dS = P * (dP - D); sums += dS b, for keys sums_v += P b_v
struct GradientBlock {
  int rows;
  int d, d_v;                   // features of a and b, of a_v and b_v
  int d_width, v_width;         // the same with zeros up to a multiple of max_lanes
  float scale;                  // softmax_scale
  const int *begin, *end;       // [rows] the columns that belong to each row; the others may hold anything
  const float *lse, *delta;     // of the queries, be they rows or columns: LSE, +inf for one without gradient, and D
  const float* a;               // [rows][d]: Q or K
  const float* a_v;             // [rows][d_v]: dO or V
  const float* b_transposed;    // [d][tile_k]: K or Q
  const float* b_v_transposed;  // [d_v][tile_k]: V or dO
  const float* b;               // [tile_k][d_width]: K or Q
  const float* b_v;             // [tile_k][v_width]: dO; not used for queries
  float* p;                     // [rows][tile_k] any content on entry
  float* ds;                    // [rows][tile_k] the same
  float* sums;                  // [rows][d_width] dQ or dK, without the factor softmax_scale
  float* sums_v;                // [rows][v_width] dV; not used for queries
};

}  // namespace fa3::cpu
