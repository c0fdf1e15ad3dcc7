#include "cpu/forward.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>
#include <vector>

#include "cpu/float_arrays.hpp"
#include "cpu/threads.hpp"
#include "dtype.hpp"

namespace fa3::cpu {
namespace {

constexpr int tile_q = 128;  // query rows of a tile

/// What one thread works in; see KeyBlock. The features between d_v and v_width are never written: zeros.
struct Scratch {
  Scratch(std::int64_t d, std::int64_t d_v)
      : memory({{&q, tile_q * d},
                {&k_row, d},
                {&k_transposed, d * tile_k},
                {&v, tile_k * round_up(d_v, max_lanes)},
                {&s, tile_q * tile_k},
                {&o, tile_q * round_up(d_v, max_lanes)},
                {&row_max, tile_q},
                {&row_sum, tile_q * max_lanes}}) {}
  std::size_t bytes() const { return memory.bytes() + sizeof(*this); }

  float *q, *k_row, *k_transposed, *v, *s, *o, *row_max, *row_sum;
  std::array<int, tile_q> visible;
  FloatArrays memory;
};

/// Tiles of the query rows that read one key/value head. The heads of a group are interleaved: packed row r is row
/// r / group of head r % group, so that a block of K and V is converted once for all of them.
/// T: the type of q, k and v, U: that of o. E4m3 values are multiplied by their scales as they are converted.
template <class T, class U>
class Forward {
 public:
  Forward(const ForwardProblem& problem, const Simd& simd)
      : p_(problem), simd_(simd), packed_rows_(p_.seqlen_q * p_.group()) {
    // A negative scale is a positive one with -q. The limit keeps 0 * scale_log2 from being NaN.
    const double scale_log2 = std::abs(double(p_.softmax_scale)) * std::numbers::log2e;
    scale_log2_ = float(std::min(scale_log2, double(std::numeric_limits<float>::max())));
  }

  std::int64_t tiles() const { return p_.batch * p_.kv_heads * tiles_per_head(); }

  /// All of O and LSE for one tile.
  void tile(std::int64_t index, Scratch& scratch) const {
    // Within a head the last tile comes first: with a causal mask it is the longest.
    const std::int64_t tile = tiles_per_head() - 1 - index % tiles_per_head();
    const std::int64_t kv_head = index / tiles_per_head() % p_.kv_heads, batch = index / tiles_per_head() / p_.kv_heads;
    const std::int64_t first_row = tile * tile_q;
    const int rows = int(std::min<std::int64_t>(tile_q, packed_rows_ - first_row));

    KeyBlock block{.rows = rows,
                   .d = int(p_.d),
                   .v_width = int(round_up(p_.d_v, max_lanes)),
                   .e4m3_weights = std::is_same_v<T, E4m3>,
                   .scale_log2 = scale_log2_,
                   .visible = scratch.visible.data(),
                   .q = scratch.q,
                   .k_transposed = scratch.k_transposed,
                   .v = scratch.v,
                   .s = scratch.s,
                   .o = scratch.o,
                   .row_max = scratch.row_max,
                   .row_sum = scratch.row_sum};
    load_q(batch, kv_head, first_row, rows, scratch.q);
    std::fill_n(block.o, rows * block.v_width, 0.0f);
    std::fill_n(block.row_max, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(block.row_sum, rows * max_lanes, 0.0f);

    const std::int64_t keys = visible_keys(first_row + rows - 1);
    const std::int64_t blocks = (keys + tile_k - 1) / tile_k;
    for (std::int64_t i = 0; i < blocks; ++i) {
      // From the last block to the first with e4m3, as on the GPU: the order shows in how weights are rounded.
      const std::int64_t first_key = (std::is_same_v<T, E4m3> ? blocks - 1 - i : i) * tile_k;
      for (int r = 0; r < rows; ++r) {
        scratch.visible[r] = int(std::clamp<std::int64_t>(visible_keys(first_row + r) - first_key, 0, tile_k));
      }
      load_kv(batch, kv_head, first_key, int(std::min<std::int64_t>(tile_k, keys - first_key)), block.v_width, scratch);
      simd_.attend(block);
    }
    for (int r = 0; r < rows; ++r) store_row(batch, kv_head, first_row + r, block, r);
  }

 private:
  std::int64_t tiles_per_head() const { return (packed_rows_ + tile_q - 1) / tile_q; }
  std::int64_t visible_keys(std::int64_t packed_row) const { return p_.visible_keys(packed_row / p_.group()); }
  std::int64_t head(std::int64_t kv_head, std::int64_t packed_row) const {
    return kv_head * p_.group() + packed_row % p_.group();
  }

  void load_q(std::int64_t batch, std::int64_t kv_head, std::int64_t first_row, int rows, float* q) const {
    const float sign = p_.softmax_scale < 0 ? -1.0f : 1.0f;
    for (int r = 0; r < rows; ++r) {
      const std::int64_t row = first_row + r;
      const T* from = features<const T>(p_.q, batch, row / p_.group(), head(kv_head, row));
      const float scale = sign * p_.q_scale.of(batch, head(kv_head, row), row / p_.group(), p_.group());
      for (std::int64_t c = 0; c < p_.d; ++c) q[r * p_.d + c] = scale * to_float(from[c]);
    }
  }

  void load_kv(std::int64_t batch, std::int64_t kv_head, std::int64_t first_key, int keys, int v_width,
               Scratch& scratch) const {
    for (int j = 0; j < keys; ++j) {
      const T* k = features<const T>(p_.k, batch, first_key + j, kv_head);
      const float k_scale = p_.k_scale.of(batch, kv_head, first_key + j, 1);
      for (std::int64_t c = 0; c < p_.d; ++c) scratch.k_row[c] = k_scale * to_float(k[c]);
      for (std::int64_t c = 0; c < p_.d; ++c) scratch.k_transposed[c * tile_k + j] = scratch.k_row[c];
      const T* v = features<const T>(p_.v, batch, first_key + j, kv_head);
      const float v_scale = p_.v_scale.of(batch, kv_head, first_key + j, 1);
      for (std::int64_t c = 0; c < p_.d_v; ++c) scratch.v[j * v_width + c] = v_scale * to_float(v[c * p_.v.stride[3]]);
    }
  }

  void store_row(std::int64_t batch, std::int64_t kv_head, std::int64_t packed_row, const KeyBlock& block,
                 int r) const {
    const std::int64_t row = packed_row / p_.group(), h = head(kv_head, packed_row);
    const bool blind = p_.visible_keys(row) == 0;
    float sum = 0;
    for (int lane = 0; lane < max_lanes; ++lane) sum += block.row_sum[r * max_lanes + lane];

    U* o = features<U>(p_.o, batch, row, h);
    for (std::int64_t c = 0; c < p_.d_v; ++c) o[c] = from_float<U>(blind ? 0.0f : block.o[r * block.v_width + c] / sum);
    if (p_.lse == nullptr) return;
    double lse = -std::numeric_limits<double>::infinity();
    if (!blind) {
      // Keys in sight, but infinite inputs left them no weight: 0 / 0, as in O.
      lse = sum == 0 ? std::numeric_limits<double>::quiet_NaN()
                     : double(block.row_max[r]) * std::abs(double(p_.softmax_scale)) + std::log(double(sum));
    }
    p_.lse[batch * p_.lse_stride[0] + h * p_.lse_stride[1] + row * p_.lse_stride[2]] = float(lse);
  }

  const ForwardProblem& p_;
  const Simd& simd_;
  std::int64_t packed_rows_;
  float scale_log2_;
};

}  // namespace

std::size_t scratch_bytes(std::int64_t d, std::int64_t d_v) { return Scratch(d, d_v).bytes(); }

void forward(const ForwardProblem& problem) {
  forward(problem, usable_simds().front(), useful_threads(problem.flops()));
}

void forward(const ForwardProblem& problem, const Simd& simd, int threads) {
  if (problem.o.empty()) return;
  const auto run = [&](const auto& forward) {
    threads = int(std::min<std::int64_t>(threads, forward.tiles()));
    std::vector<Scratch> scratch;
    scratch.reserve(static_cast<std::size_t>(threads));
    for (int t = 0; t < threads; ++t) scratch.emplace_back(problem.d, problem.d_v);
    parallel_for(forward.tiles(), threads, [&](std::int64_t tile, int thread) { forward.tile(tile, scratch[thread]); });
  };
  if (problem.dtype != FA3_E4M3)
    with_dtype(problem.dtype, [&]<class T>(T) { run(Forward<T, T>(problem, simd)); });
  else if (problem.o_dtype == FA3_F16)
    run(Forward<E4m3, Half>(problem, simd));
  else
    run(Forward<E4m3, Bfloat16>(problem, simd));
}

}  // namespace fa3::cpu
