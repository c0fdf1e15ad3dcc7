// A small valid call on the cpu device whose arguments the tests then spoil, and the bytes it must not write to.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "fa3/fa3.h"

namespace fa3::test {

constexpr std::uint16_t one_f16 = 0x3c00, poison_f16 = 0x7e5a;
constexpr float poison_lse = -12345.f;

/// [batch, seqlen, heads, d] = q [2, 3, 4, 16], k [2, 5, 2, 16], v [2, 5, 2, 8], o [2, 3, 4, 8], all f16 and dense.
/// q, k and v are all ones, o and lse poisoned; every array has room to spare at the end.
struct ProblemData {
  static constexpr std::int64_t batch = 2, heads = 4, kv_heads = 2, seqlen_q = 3, seqlen_k = 5, d = 16, d_v = 8;
  static constexpr std::size_t spare = 64;

  std::vector<std::uint16_t> q, k, v, o;
  std::vector<float> lse;
  fa3_forward_params params{};

  ProblemData()
      : q(batch * seqlen_q * heads * d + spare, one_f16),
        k(batch * seqlen_k * kv_heads * d + spare, one_f16),
        v(batch * seqlen_k * kv_heads * d_v + spare, one_f16),
        o(batch * seqlen_q * heads * d_v + spare, poison_f16),
        lse(batch * heads * seqlen_q + spare, poison_lse) {
    params.struct_size = sizeof(params);
    params.api_version = FA3_API_VERSION;
    params.device = FA3_DEVICE_CPU;
    params.batch = batch;
    params.heads = heads;
    params.kv_heads = kv_heads;
    params.seqlen_q = seqlen_q;
    params.seqlen_k = seqlen_k;
    params.d = d;
    params.d_v = d_v;
    params.q = dense(q.data(), seqlen_q, heads, d);
    params.k = dense(k.data(), seqlen_k, kv_heads, d);
    params.v = dense(v.data(), seqlen_k, kv_heads, d_v);
    params.o = dense(o.data(), seqlen_q, heads, d_v);
    params.lse = lse.data();
    params.lse_stride[0] = heads * seqlen_q;
    params.lse_stride[1] = seqlen_q;
    params.lse_stride[2] = 1;
  }
  ProblemData(const ProblemData&) = delete;  // params points into the vectors
  ProblemData& operator=(const ProblemData&) = delete;

  static fa3_tensor dense(void* data, std::int64_t seqlen, std::int64_t tensor_heads, std::int64_t features) {
    return {data, FA3_F16, 0, {seqlen * tensor_heads * features, tensor_heads * features, features, 1}};
  }

  bool outputs_untouched() const {
    for (std::uint16_t x : o)
      if (x != poison_f16) return false;
    for (float x : lse)
      if (x != poison_lse) return false;
    return true;
  }
  bool inputs_untouched() const {
    for (const auto* input : {&q, &k, &v})
      for (std::uint16_t x : *input)
        if (x != one_f16) return false;
    return true;
  }
};

}  // namespace fa3::test
