#include "cpu/backward.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/float_arrays.hpp"
#include "cpu/threads.hpp"
#include "dtype.hpp"

namespace fa3::cpu {
namespace {

constexpr int tile_rows = 128;  // queries or keys of a tile

/// What one thread works in; see GradientBlock. The features behind d and d_v are never written: zeros.
struct Scratch {
  Scratch(std::int64_t d, std::int64_t d_v)
      : memory({{&a, tile_rows * d},
                {&a_v, tile_rows * d_v},
                {&b_transposed, d * tile_k},
                {&b_v_transposed, d_v * tile_k},
                {&b, tile_k * round_up(d, max_lanes)},
                {&b_v, tile_k * round_up(d_v, max_lanes)},
                {&p, tile_rows * tile_k},
                {&ds, tile_rows * tile_k},
                {&sums, tile_rows * round_up(d, max_lanes)},
                {&sums_v, tile_rows * round_up(d_v, max_lanes)}}) {}
  std::size_t bytes() const { return memory.bytes() + sizeof(*this); }

  float *a, *a_v, *b_transposed, *b_v_transposed, *b, *b_v, *p, *ds, *sums, *sums_v;
  std::array<int, tile_rows> begin, end;
  FloatArrays memory;
};

/// Two passes over the scores. The first has tiles of queries, meets all keys and gives dQ; the second has tiles of
/// keys, meets all queries and gives dK and dV. Why twice: S and dP are computed again, 7 products in place of 5, but
/// no tile adds to what another one writes, so all tiles run at once and in any order without a bit changing.
///
/// As in the forward pass the heads of a group are interleaved: packed row r is row r / group of head r % group.
template <class T>
class Backward {
 public:
  Backward(const BackwardProblem& problem, const Simd& simd)
      : p_(problem),
        simd_(simd),
        packed_rows_(p_.seqlen_q * p_.group()),
        // The kernel reads whole blocks.
        lse_(static_cast<std::size_t>(p_.batch * p_.kv_heads * packed_rows_ + tile_k)),
        delta_(lse_.size()) {}

  std::int64_t query_tiles() const { return p_.batch * p_.kv_heads * tiles_of(packed_rows_); }
  std::int64_t key_tiles() const { return p_.batch * p_.kv_heads * tiles_of(p_.seqlen_k); }

  /// dQ of one tile, and LSE and D of its rows for the second pass.
  void query_tile(std::int64_t index, Scratch& scratch) {
    // Within a head the last tile comes first: with a causal mask it is the longest.
    const std::int64_t tiles = tiles_of(packed_rows_), first_row = (tiles - 1 - index % tiles) * tile_rows;
    const std::int64_t kv_head = index / tiles % p_.kv_heads, batch = index / tiles / p_.kv_heads;
    const int rows = int(std::min<std::int64_t>(tile_rows, packed_rows_ - first_row));
    GradientBlock block = block_in(scratch, rows);
    block.lse = lse_.data() + packed_index(batch, kv_head, first_row);
    block.delta = delta_.data() + packed_index(batch, kv_head, first_row);

    std::array<std::int64_t, tile_rows> visible;
    for (int r = 0; r < rows; ++r) {
      const std::int64_t row = (first_row + r) / p_.group(), h = head(kv_head, first_row + r);
      load(p_.q, batch, row, h, scratch.a + r * p_.d);
      load(p_.d_o, batch, row, h, scratch.a_v + r * p_.d_v);
      visible[r] = p_.visible_keys(row);
      const std::int64_t at = packed_index(batch, kv_head, first_row + r);
      lse_[at] = p_.lse[batch * p_.lse_stride[0] + h * p_.lse_stride[1] + row * p_.lse_stride[2]];
      if (visible[r] == 0 || std::isinf(lse_[at])) {
        visible[r] = 0;
        lse_[at] = std::numeric_limits<float>::infinity();
      }
    }
    for (int first = 0; first < rows; first += tile_k) {  // D
      const int n = std::min(tile_k, rows - first);
      for (int r = 0; r < n; ++r) {
        const std::int64_t row = first_row + first + r;
        load(p_.o, batch, row / p_.group(), head(kv_head, row), scratch.b_v + r * block.v_width);
      }
      transpose(scratch.b_v, block.v_width, block.d_v, scratch.b_v_transposed);
      simd_.dot_rows(scratch.a_v + first * block.d_v, scratch.b_v_transposed, n, block.d_v, scratch.p,
                     delta_.data() + packed_index(batch, kv_head, first_row + first));
    }
    clear(block);

    const std::int64_t keys = *std::max_element(visible.begin(), visible.begin() + rows);
    for (std::int64_t first_key = 0; first_key < keys; first_key += tile_k) {
      for (int r = 0; r < rows; ++r) {
        scratch.begin[r] = 0;
        scratch.end[r] = int(std::clamp<std::int64_t>(visible[r] - first_key, 0, tile_k));
      }
      const int columns = int(std::min<std::int64_t>(tile_k, keys - first_key));
      for (int j = 0; j < columns; ++j) {
        load(p_.k, batch, first_key + j, kv_head, scratch.b + j * block.d_width);
        load(p_.v, batch, first_key + j, kv_head, scratch.b_v + j * block.v_width);
      }
      transpose(block, scratch);
      simd_.differentiate_queries(block);
    }
    for (int r = 0; r < rows; ++r) {
      const std::int64_t row = (first_row + r) / p_.group();
      store(block.sums + r * block.d_width, p_.softmax_scale, p_.dq, batch, row, head(kv_head, first_row + r));
    }
  }

  /// dK and dV of one tile, after query_tile() of all.
  void key_tile(std::int64_t index, Scratch& scratch) const {
    // The first tile comes first: with a causal mask most rows see it.
    const std::int64_t tiles = tiles_of(p_.seqlen_k), first_key = index % tiles * tile_rows;
    const std::int64_t kv_head = index / tiles % p_.kv_heads, batch = index / tiles / p_.kv_heads;
    const int keys = int(std::min<std::int64_t>(tile_rows, p_.seqlen_k - first_key));
    GradientBlock block = block_in(scratch, keys);
    clear(block);
    for (int j = 0; j < keys; ++j) {
      load(p_.k, batch, first_key + j, kv_head, scratch.a + j * p_.d);
      load(p_.v, batch, first_key + j, kv_head, scratch.a_v + j * p_.d_v);
    }

    for (std::int64_t first_row = first_seeing(first_key) / tile_k * tile_k; first_row < packed_rows_;
         first_row += tile_k) {
      const int columns = int(std::min<std::int64_t>(tile_k, packed_rows_ - first_row));
      for (int j = 0; j < keys; ++j) {
        scratch.begin[j] = int(std::clamp<std::int64_t>(first_seeing(first_key + j) - first_row, 0, columns));
        scratch.end[j] = columns;
      }
      block.lse = lse_.data() + packed_index(batch, kv_head, first_row);
      block.delta = delta_.data() + packed_index(batch, kv_head, first_row);
      for (int r = 0; r < columns; ++r) {
        float *q = scratch.b + r * block.d_width, *d_o = scratch.b_v + r * block.v_width;
        if (std::isinf(block.lse[r])) {  // it has no part in this: 0 times what it holds might be NaN
          std::fill_n(q, p_.d, 0.0f);
          std::fill_n(d_o, p_.d_v, 0.0f);
          continue;
        }
        const std::int64_t row = (first_row + r) / p_.group(), h = head(kv_head, first_row + r);
        load(p_.q, batch, row, h, q);
        load(p_.d_o, batch, row, h, d_o);
      }
      transpose(block, scratch);
      simd_.differentiate_keys(block);
    }
    for (int j = 0; j < keys; ++j) {
      store(block.sums + j * block.d_width, p_.softmax_scale, p_.dk, batch, first_key + j, kv_head);
      store(block.sums_v + j * block.v_width, 1, p_.dv, batch, first_key + j, kv_head);
    }
  }

 private:
  static std::int64_t tiles_of(std::int64_t rows) { return (rows + tile_rows - 1) / tile_rows; }
  std::int64_t head(std::int64_t kv_head, std::int64_t packed_row) const {
    return kv_head * p_.group() + packed_row % p_.group();
  }
  std::int64_t packed_index(std::int64_t batch, std::int64_t kv_head, std::int64_t packed_row) const {
    return (batch * p_.kv_heads + kv_head) * packed_rows_ + packed_row;
  }
  /// The first packed row that sees `key`; those behind it do, too.
  std::int64_t first_seeing(std::int64_t key) const {
    return p_.causal ? p_.group() * std::max<std::int64_t>(0, key - (p_.seqlen_k - p_.seqlen_q)) : 0;
  }

  /// Everything but the queries' LSE and D.
  GradientBlock block_in(Scratch& scratch, int rows) const {
    return GradientBlock{.rows = rows,
                         .d = int(p_.d),
                         .d_v = int(p_.d_v),
                         .d_width = int(round_up(p_.d, max_lanes)),
                         .v_width = int(round_up(p_.d_v, max_lanes)),
                         .scale = p_.softmax_scale,
                         .begin = scratch.begin.data(),
                         .end = scratch.end.data(),
                         .lse = nullptr,
                         .delta = nullptr,
                         .a = scratch.a,
                         .a_v = scratch.a_v,
                         .b_transposed = scratch.b_transposed,
                         .b_v_transposed = scratch.b_v_transposed,
                         .b = scratch.b,
                         .b_v = scratch.b_v,
                         .p = scratch.p,
                         .ds = scratch.ds,
                         .sums = scratch.sums,
                         .sums_v = scratch.sums_v};
  }
  static void clear(const GradientBlock& block) {
    std::fill_n(block.sums, block.rows * block.d_width, 0.0f);
    std::fill_n(block.sums_v, block.rows * block.v_width, 0.0f);
  }

  static void load(const TensorRef& tensor, std::int64_t batch, std::int64_t token, std::int64_t head, float* to) {
    const T* from = features<const T>(tensor, batch, token, head);
    const std::int64_t width = tensor.shape[3], stride = tensor.stride[3];
    if (stride == 1) {
      for (std::int64_t c = 0; c < width; ++c) to[c] = to_float(from[c]);
    } else {
      for (std::int64_t c = 0; c < width; ++c) to[c] = to_float(from[c * stride]);
    }
  }

  static void store(const float* sums, float factor, const TensorRef& tensor, std::int64_t batch, std::int64_t token,
                    std::int64_t head) {
    T* to = features<T>(tensor, batch, token, head);
    for (std::int64_t c = 0; c < tensor.shape[3]; ++c) to[c] = from_float<T>(factor * sums[c]);
  }

  static void transpose(const GradientBlock& block, Scratch& scratch) {
    transpose(scratch.b, block.d_width, block.d, scratch.b_transposed);
    transpose(scratch.b_v, block.v_width, block.d_v, scratch.b_v_transposed);
  }
  static void transpose(const float* from, int width, int features, float* to) {
    for (int c = 0; c < features; ++c)
      for (int j = 0; j < tile_k; ++j) to[c * tile_k + j] = from[j * width + c];
  }

  const BackwardProblem& p_;
  const Simd& simd_;
  std::int64_t packed_rows_;
  std::vector<float> lse_, delta_;  // [batch, kv_heads, packed row]; an LSE of +inf: a row without gradient
};

}  // namespace

std::size_t gradient_scratch_bytes(std::int64_t d, std::int64_t d_v) { return Scratch(d, d_v).bytes(); }

void backward(const BackwardProblem& problem) {
  backward(problem, usable_simds().front(), useful_threads(problem.flops()));
}

void backward(const BackwardProblem& problem, const Simd& simd, int threads) {
  if (problem.batch == 0) return;
  with_dtype(problem.dtype, [&]<class T>(T) {
    Backward<T> backward(problem, simd);
    threads = int(std::min<std::int64_t>(threads, std::max(backward.query_tiles(), backward.key_tiles())));
    if (threads == 0) return;
    std::vector<Scratch> scratch;
    scratch.reserve(static_cast<std::size_t>(threads));
    for (int t = 0; t < threads; ++t) scratch.emplace_back(problem.d, problem.d_v);
    parallel_for(backward.query_tiles(), threads, [&](std::int64_t i, int t) { backward.query_tile(i, scratch[t]); });
    parallel_for(backward.key_tiles(), threads, [&](std::int64_t i, int t) { backward.key_tile(i, scratch[t]); });
  });
}

}  // namespace fa3::cpu
