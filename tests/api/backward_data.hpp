// A small valid call of the backward pass on the cpu device whose arguments the tests then spoil, and the bytes it must
// not write to.
#pragma once

#include <cstdint>
#include <vector>

#include "problem_data.hpp"

namespace fa3::test {

/// The shapes of ProblemData: d_o and o are [2, 3, 4, 8], dq, dk and dv of the shapes of q, k and v. All inputs are
/// ones and LSE is that of ones; the gradients are poisoned.
struct BackwardData {
  static constexpr std::int64_t batch = ProblemData::batch, heads = ProblemData::heads,
                                kv_heads = ProblemData::kv_heads, seqlen_q = ProblemData::seqlen_q,
                                seqlen_k = ProblemData::seqlen_k, d = ProblemData::d, d_v = ProblemData::d_v;
  static constexpr std::size_t spare = ProblemData::spare;
  static constexpr float lse_of_ones = 5.6094379f;  // 16 / sqrt(16) + log(5)

  std::vector<std::uint16_t> d_o, q, k, v, o, dq, dk, dv;
  std::vector<float> lse;
  fa3_backward_params params{};

  BackwardData()
      : d_o(batch * seqlen_q * heads * d_v + spare, one_f16),
        q(batch * seqlen_q * heads * d + spare, one_f16),
        k(batch * seqlen_k * kv_heads * d + spare, one_f16),
        v(batch * seqlen_k * kv_heads * d_v + spare, one_f16),
        o(d_o),
        dq(q.size(), poison_f16),
        dk(k.size(), poison_f16),
        dv(v.size(), poison_f16),
        lse(batch * heads * seqlen_q + spare, lse_of_ones) {
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
    params.d_o = ProblemData::dense(d_o.data(), seqlen_q, heads, d_v);
    params.q = ProblemData::dense(q.data(), seqlen_q, heads, d);
    params.k = ProblemData::dense(k.data(), seqlen_k, kv_heads, d);
    params.v = ProblemData::dense(v.data(), seqlen_k, kv_heads, d_v);
    params.o = ProblemData::dense(o.data(), seqlen_q, heads, d_v);
    params.dq = ProblemData::dense(dq.data(), seqlen_q, heads, d);
    params.dk = ProblemData::dense(dk.data(), seqlen_k, kv_heads, d);
    params.dv = ProblemData::dense(dv.data(), seqlen_k, kv_heads, d_v);
    params.lse = lse.data();
    params.lse_stride[0] = heads * seqlen_q;
    params.lse_stride[1] = seqlen_q;
    params.lse_stride[2] = 1;
  }
  BackwardData(const BackwardData&) = delete;  // params points into the vectors
  BackwardData& operator=(const BackwardData&) = delete;

  std::vector<fa3_tensor*> tensors() {
    return {&params.d_o, &params.q, &params.k, &params.v, &params.o, &params.dq, &params.dk, &params.dv};
  }
  bool outputs_untouched() const {
    for (const auto* output : {&dq, &dk, &dv})
      for (std::uint16_t x : *output)
        if (x != poison_f16) return false;
    return true;
  }
  bool inputs_untouched() const {
    for (const auto* input : {&d_o, &q, &k, &v, &o})
      for (std::uint16_t x : *input)
        if (x != one_f16) return false;
    for (float x : lse)
      if (x != lse_of_ones) return false;
    return true;
  }
};

}  // namespace fa3::test
