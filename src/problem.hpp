// What one pass has to do, after the arguments were checked and the defaults filled in.
// The api layer makes it; the GPU launcher, the CPU backend and the fp64 reference read it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "fa3/fa3.h"

namespace fa3 {

/// Tensor [batch, sequence, head, feature]; stride in elements. Strides of dimensions of extent <= 1 are 0.
struct TensorRef {
  void* data = nullptr;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> stride{};

  bool empty() const { return shape[0] == 0 || shape[1] == 0 || shape[2] == 0 || shape[3] == 0; }
};

/// The features of one token of one head.
template <class T>
T* features(const TensorRef& tensor, std::int64_t batch, std::int64_t token, std::int64_t head) {
  return static_cast<T*>(tensor.data) + batch * tensor.stride[0] + token * tensor.stride[1] + head * tensor.stride[2];
}

/// What both passes have in common.
struct Problem {
  fa3_dtype dtype = FA3_F16;  // of all tensors but LSE; with e4m3 of q, k and v
  std::int64_t batch = 0, heads = 0, kv_heads = 0, seqlen_q = 0, seqlen_k = 0, d = 0, d_v = 0;
  float softmax_scale = 0;
  bool causal = false;
  int sm_margin = 0;  // SMs the kernel leaves free

  /// Query heads that share one key/value head.
  std::int64_t group() const { return kv_heads == 0 ? 1 : heads / kv_heads; }
  /// Row i of a sequence sees keys [0, visible_keys(i)).
  std::int64_t visible_keys(std::int64_t row) const {
    if (!causal) return seqlen_k;
    const std::int64_t end = row + 1 + seqlen_k - seqlen_q;
    return end < 0 ? 0 : (end > seqlen_k ? seqlen_k : end);
  }
  /// Pairs of a query and a key it sees, over all heads.
  double visible_pairs() const {
    if (!causal) return double(seqlen_q) * double(seqlen_k) * double(heads) * double(batch);
    // Rows first .. seqlen_q - 1 see 1, 2, .. keys more each; earlier ones see none.
    const std::int64_t first = seqlen_q > seqlen_k ? seqlen_q - seqlen_k : 0;
    if (first >= seqlen_q) return 0;
    const double rows = double(seqlen_q - first);
    return rows * (double(visible_keys(first)) + double(seqlen_k)) / 2 * double(heads) * double(batch);
  }
};

/// Scales of an e4m3 tensor, f32: [batch, kv_heads], or per block [batch, heads, ceil(seqlen / FA3_SCALE_ROWS)].
struct ScalesRef {
  float* data = nullptr;  // null: all are 1
  bool per_block = false;
  std::array<std::int64_t, 3> stride{};  // batch, head, block
  float largest = 448;                   // no value of the tensor exceeds it in size

  /// Of row `row` of head `head`; `group` heads share one that is not per block.
  float of(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t group) const {
    if (data == nullptr) return 1.0f;
    return data[batch * stride[0] + (per_block ? head : head / group) * stride[1] +
                (per_block ? row / FA3_SCALE_ROWS * stride[2] : 0)];
  }
};

struct ForwardProblem : Problem {
  TensorRef q, k, v, o;
  fa3_dtype o_dtype = FA3_F16;               // with e4m3; else o has `dtype`
  ScalesRef q_scale, k_scale, v_scale;       // e4m3 only
  float* lse = nullptr;                      // null: not wanted
  std::array<std::int64_t, 3> lse_stride{};  // batch, head, row

  /// e4m3 only: the keys of V are contiguous, not its features.
  bool v_is_d_major() const { return !v.empty() && v.stride[3] != 1; }
  fa3_dtype dtype_of_o() const { return dtype == FA3_E4M3 ? o_dtype : dtype; }
  /// e4m3 only: that products of q, k and v fit sums in f16.
  bool narrow() const {
    return std::max(q_scale.largest, k_scale.largest) <= FA3_E4M3_NARROW_QK && v_scale.largest <= FA3_E4M3_NARROW_V;
  }
  /// Floating-point operations of the two products: 2 (d + d_v) for each visible pair.
  double flops() const { return 2.0 * double(d + d_v) * visible_pairs(); }
};

/// Gradients of a scalar loss whose gradient with respect to O is d_o. The group's query heads add up in dk and dv.
struct BackwardProblem : Problem {
  TensorRef d_o, q, k, v, o;  // read; d_o alone may have any stride[3]
  TensorRef dq, dk, dv;       // written
  const float* lse = nullptr;
  std::array<std::int64_t, 3> lse_stride{};  // batch, head, row
  bool deterministic = false;                // the same bits in every run

  /// Floating-point operations of the five products: S, dQ and dK over d, dP and dV over d_v.
  double flops() const { return 2.0 * double(3 * d + 2 * d_v) * visible_pairs(); }
};

/// From x to e4m3; what the fields mean is said of fa3_quantize_params.
struct QuantizeProblem {
  fa3_dtype dtype = FA3_F16;  // of x
  std::int64_t batch = 0, seqlen = 0, heads = 0, d = 0;
  std::int64_t scale_heads = 0;  // a divisor of heads
  TensorRef x, y;
  fa3_scaling scaling = FA3_SCALING_BLOCK;
  ScalesRef scale;
  const float *rope_cos = nullptr, *rope_sin = nullptr;  // both or neither
  std::int64_t rope_stride = 0, rope_d = 0;
  bool rope_interleaved = false, rotate = false;
  std::uint64_t seed = 0;

  /// Heads of a batch entry that share a scale which is not per block.
  std::int64_t group() const { return heads / scale_heads; }
  /// Blocks of FA3_SCALE_ROWS rows of a head.
  std::int64_t blocks() const { return (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS; }
};

constexpr std::size_t element_bytes(fa3_dtype dtype) { return dtype == FA3_F32 ? 4 : dtype == FA3_E4M3 ? 1 : 2; }

}  // namespace fa3
