// The products of the vector kernels, and what the build compiles once per instruction set.
//
// The build compiles the vector kernels (attend.hpp, differentiate.hpp) once per instruction set, with FA3_SIMD as its
// name (simd.cmake). Everything but attend() and differentiate() is internal to the translation unit, and nothing of
// the standard library is called: an inline function compiled here with, say, AVX-512 could otherwise be the copy that
// the linker keeps for the whole program.
#pragma once

#include <xsimd/xsimd.hpp>

#include "cpu/key_block.hpp"

namespace fa3::cpu {
namespace {

using Batch = xsimd::batch<float>;  // of the widest vector the flags of this compilation allow
constexpr int lanes = int(Batch::size);
static_assert(max_lanes % lanes == 0 && tile_k % max_lanes == 0);

// Register tile of the matrix products: row_tile x column_tile accumulators, which must fit the register file together
// with column_tile vectors of b and one broadcast of a.
constexpr int row_tile = 4;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int column_tile = 4;  // 32 registers
#else
constexpr int column_tile = 2;  // 16 registers
#endif

// A score is summed in pieces of this many features, which halves the rounding error of its f32 sum and more.
constexpr int depth_tile = 32;

/// c = a b, or c += a b if `add`, with a[rows][depth], b[depth][columns * lanes]. Each element of the product is summed
/// in the order of depth, starting from 0: the sizes of the register tile do not show in the result.
template <int rows, int columns>
void multiply_tile(const float* a, int a_stride, const float* b, int b_stride, int depth, float* c, int c_stride,
                   bool add) {
  Batch acc[rows][columns];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < columns; ++n) acc[r][n] = Batch(0.0f);
  }
  for (int i = 0; i < depth; ++i) {
    Batch b_row[columns];
#pragma GCC unroll 4
    for (int n = 0; n < columns; ++n) b_row[n] = Batch::load_unaligned(b + i * b_stride + n * lanes);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const Batch a_value(a[r * a_stride + i]);
#pragma GCC unroll 4
      for (int n = 0; n < columns; ++n) acc[r][n] = xsimd::fma(a_value, b_row[n], acc[r][n]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < columns; ++n) {
      float* to = c + r * c_stride + n * lanes;
      if (add) acc[r][n] = acc[r][n] + Batch::load_unaligned(to);
      acc[r][n].store_unaligned(to);
    }
  }
}

/// The same for `width` columns, a multiple of lanes.
template <int rows>
void multiply(const float* a, int a_stride, const float* b, int b_stride, int depth, float* c, int c_stride, int width,
              bool add) {
  int n = 0;
  for (; n + column_tile * lanes <= width; n += column_tile * lanes) {
    multiply_tile<rows, column_tile>(a, a_stride, b + n, b_stride, depth, c + n, c_stride, add);
  }
  for (; n < width; n += lanes) multiply_tile<rows, 1>(a, a_stride, b + n, b_stride, depth, c + n, c_stride, add);
}

/// c = a b for dots of `depth` features: b[depth][tile_k].
template <int rows>
void multiply_scores(const float* a, int depth, const float* b, float* c) {
  for (int i = 0; i < depth; i += depth_tile) {
    const int piece = depth - i < depth_tile ? depth - i : depth_tile;
    multiply<rows>(a + i, depth, b + i * tile_k, tile_k, piece, c, tile_k, tile_k, i > 0);
  }
}

}  // namespace
}  // namespace fa3::cpu
