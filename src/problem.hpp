// What one forward pass has to do, after the arguments were checked and the defaults filled in.
// The api layer makes it; the GPU launcher, the CPU backend and the fp64 reference read it.
#pragma once

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

struct ForwardProblem {
  fa3_dtype dtype = FA3_F16;  // of q, k, v and o
  std::int64_t batch = 0, heads = 0, kv_heads = 0, seqlen_q = 0, seqlen_k = 0, d = 0, d_v = 0;
  TensorRef q, k, v, o;
  float* lse = nullptr;                      // null: not wanted
  std::array<std::int64_t, 3> lse_stride{};  // batch, head, row
  float softmax_scale = 0;
  bool causal = false;
  int sm_margin = 0;  // SMs the forward kernel leaves free

  /// Query heads that share one key/value head.
  std::int64_t group() const { return kv_heads == 0 ? 1 : heads / kv_heads; }
  /// Row i of a sequence sees keys [0, visible_keys(i)).
  std::int64_t visible_keys(std::int64_t row) const {
    if (!causal) return seqlen_k;
    const std::int64_t end = row + 1 + seqlen_k - seqlen_q;
    return end < 0 ? 0 : (end > seqlen_k ? seqlen_k : end);
  }
  /// Floating-point operations of the visible pairs: 2 (d + d_v) each.
  double flops() const {
    double pairs = 0;
    if (!causal) {
      pairs = double(seqlen_q) * double(seqlen_k);
    } else {
      // Rows first .. seqlen_q - 1 see 1, 2, .. keys more each; earlier ones see none.
      const std::int64_t first = seqlen_q > seqlen_k ? seqlen_q - seqlen_k : 0;
      const double rows = double(seqlen_q - first);
      pairs = rows * (double(visible_keys(first)) + double(seqlen_k)) / 2;
      if (rows == 0) pairs = 0;
    }
    return 2.0 * double(d + d_v) * pairs * double(heads) * double(batch);
  }
};

constexpr std::size_t element_bytes(fa3_dtype dtype) { return dtype == FA3_F32 ? 4 : 2; }

}  // namespace fa3
