// The vector kernels of the backward pass: P from LSE, dS, and the products with them, for one block of rows and
// columns. See multiply.hpp for how it is compiled.
#include "cpu/gradient_block.hpp"
#include "cpu/multiply.hpp"

namespace fa3::cpu {
namespace {

constexpr float plus_infinity = __builtin_inff();

/// `sums` += the product of a row group's entries with the columns that each row sees; others may hold NaN.
template <int rows>
void add_product(const int* begin, const int* end, bool alike, const float* entries, const float* columns, int width,
                 float* sums) {
  if (alike) {
    multiply<rows>(entries + *begin, tile_k, columns + *begin * width, width, *end - *begin, sums, width, width, true);
    return;
  }
  for (int r = 0; r < rows; ++r) {
    if (begin[r] >= end[r]) continue;
    multiply<1>(entries + r * tile_k + begin[r], tile_k, columns + begin[r] * width, width, end[r] - begin[r],
                sums + r * width, width, width, true);
  }
}

/// From S and dP of a row: P = exp(scale * S - LSE) over S, and dS = P * (dP - D) over dP. `lse` and `delta` are one
/// value for the row, or `by_column` one for each column.
template <bool by_column>
void differentiate_row(float* s, float* dp, float scale, const float* lse, const float* delta) {
  for (int j = 0; j < tile_k; j += lanes) {
    const Batch l = by_column ? Batch::load_unaligned(lse + j) : Batch(*lse);
    const Batch d = by_column ? Batch::load_unaligned(delta + j) : Batch(*delta);
    // No score is above LSE but for rounding, which at scores of 1e9 could make an infinity of it. NaN stays: the
    // second operand is returned then.
    const Batch exponent = xsimd::min(Batch(0.0f), xsimd::fma(Batch::load_unaligned(s + j), Batch(scale), -l));
    Batch p = xsimd::exp2(exponent * Batch(1.44269504088896341f));
    Batch ds = p * (Batch::load_unaligned(dp + j) - d);
    if constexpr (by_column) {  // a query row without gradient, whatever it holds
      const auto without = l == Batch(plus_infinity);
      p = xsimd::select(without, Batch(0.0f), p);
      ds = xsimd::select(without, Batch(0.0f), ds);
    }
    p.store_unaligned(s + j);
    ds.store_unaligned(dp + j);
  }
}

template <int rows, bool by_column>
void differentiate_rows(const GradientBlock& block, int first) {
  const int *begin = block.begin + first, *end = block.end + first;
  bool alike = true, any = false;
  for (int r = 0; r < rows; ++r) {
    alike = alike && begin[r] == begin[0] && end[r] == end[0];
    any = any || begin[r] < end[r];
  }
  if (!any) return;
  float *p = block.p + first * tile_k, *ds = block.ds + first * tile_k;
  multiply_scores<rows>(block.a + first * block.d, block.d, block.b_transposed, p);
  multiply_scores<rows>(block.a_v + first * block.d_v, block.d_v, block.b_v_transposed, ds);
  for (int r = 0; r < rows; ++r) {
    const int at = by_column ? 0 : first + r;
    differentiate_row<by_column>(p + r * tile_k, ds + r * tile_k, block.scale, block.lse + at, block.delta + at);
  }
  add_product<rows>(begin, end, alike, ds, block.b, block.d_width, block.sums + first * block.d_width);
  if constexpr (by_column) {
    add_product<rows>(begin, end, alike, p, block.b_v, block.v_width, block.sums_v + first * block.v_width);
  }
}

template <bool by_column>
void differentiate_block(const GradientBlock& block) {
  int row = 0;
  for (; row + row_tile <= block.rows; row += row_tile) differentiate_rows<row_tile, by_column>(block, row);
  for (; row < block.rows; ++row) differentiate_rows<1, by_column>(block, row);
}

}  // namespace

namespace FA3_SIMD {

// The diagonal of a b: more than is needed, but each sum is rounded exactly as one of dP is.
void dot_rows(const float* a, const float* b, int rows, int width, float* products, float* dots) {
  int row = 0;
  for (; row + row_tile <= rows; row += row_tile) {
    multiply_scores<row_tile>(a + row * width, width, b, products + row * tile_k);
  }
  for (; row < rows; ++row) multiply_scores<1>(a + row * width, width, b, products + row * tile_k);
  for (row = 0; row < rows; ++row) dots[row] = products[row * tile_k + row];
}

void differentiate_queries(const GradientBlock& block) { differentiate_block<false>(block); }
void differentiate_keys(const GradientBlock& block) { differentiate_block<true>(block); }

}  // namespace FA3_SIMD
}  // namespace fa3::cpu
