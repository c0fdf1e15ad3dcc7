// Causal grouped-query attention in bfloat16 on the CPU: 8 query heads share 2 key/value heads.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "fa3/fa3.hpp"

int main() {
  constexpr std::int64_t batch = 1, seqlen = 100, heads = 8, kv_heads = 2, d = 64;
  constexpr std::uint16_t one = 0x3f80;  // 1 as bfloat16
  std::vector<std::uint16_t> q(batch * seqlen * heads * d, one), o(q.size());
  std::vector<std::uint16_t> k(batch * seqlen * kv_heads * d, one), v(k.size(), one);
  std::vector<float> lse(batch * heads * seqlen);

  const auto tensor = [](std::vector<std::uint16_t>& data, std::int64_t tensor_heads) {
    return fa3::Tensor(data.data(), {batch, seqlen, tensor_heads, d}, fa3::Dtype::bf16, fa3::Device::cpu);
  };
  const fa3::RowTensor rows(lse.data(), {batch, heads, seqlen}, fa3::Dtype::f32, fa3::Device::cpu);
  const fa3::Status status = fa3::forward(tensor(q, heads), tensor(k, kv_heads), tensor(v, kv_heads), tensor(o, heads),
                                          rows, {.causal = true});
  if (!status) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("fa3 %d: o[0] = 0x%04x, lse[0] = %.3f\n", fa3_version(), o[0], double(lse[0]));
}
