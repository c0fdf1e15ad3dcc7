#include "fp8.hpp"

#include <tuple>

namespace fa3::cli {
namespace {

using std::int64_t;

Quantized quantize_one(const ConstTensor& x, int64_t scale_heads, const QuantizeOptions& options, float largest) {
  const auto [batch, seqlen, heads, d] = x.shape;
  const int64_t blocks = (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS;
  const bool per_block = options.scaling == Scaling::block;
  check::Buffer values(x.device, std::size_t(batch * seqlen * heads * d));
  check::Buffer scales(x.device, std::size_t(batch * (per_block ? heads * blocks : scale_heads)) * sizeof(float));
  auto* data = static_cast<float*>(scales.data());
  ScalesView scale = per_block                            ? ScalesView::of_blocks(data, batch, heads, blocks, x.device)
                     : options.scaling == Scaling::tensor ? ScalesView::of_tensor(data, batch, scale_heads, x.device)
                                                          : ScalesView::of_heads(data, batch, scale_heads, x.device);
  scale.largest = largest;
  const Tensor y(values.data(), x.shape, Dtype::e4m3, x.device);
  std::size_t bytes = 0;
  check::require(quantize_workspace_size(x, y, scale, options, bytes));
  const check::Buffer workspace(x.device, bytes);
  check::require(check::run_and_wait(x.device, [&](fa3_stream stream) {
    return quantize(x, y, scale, options, Workspace{workspace.data(), workspace.bytes()}, stream);
  }));
  return {std::move(values), std::move(scales), y, scale};
}

}  // namespace

ForwardOptions QuantizedInputs::with_scales(ForwardOptions options) const {
  options.q_scale = q.scale, options.k_scale = k.scale, options.v_scale = v.scale;
  return options;
}

ForwardProblem QuantizedInputs::in_host(const ForwardProblem& problem,
                                        std::vector<std::vector<std::byte>>& host) const {
  ForwardProblem p = problem;
  p.o_dtype = problem.dtype;
  p.dtype = FA3_E4M3;
  const auto fetch = [&](const check::Buffer& buffer) {
    host.emplace_back(buffer.bytes());
    buffer.download(host.back().data());
    return host.back().data();
  };
  for (const auto& [from, tensor, scales] :
       {std::tuple{&q, &p.q, &p.q_scale}, {&k, &p.k, &p.k_scale}, {&v, &p.v, &p.v_scale}}) {
    *tensor = {fetch(from->values), from->view.shape, from->view.stride};
    *scales = {reinterpret_cast<float*>(fetch(from->scales)), from->scale.per_block, from->scale.stride,
               from->scale.largest};
  }
  return p;
}

QuantizedInputs quantize_inputs(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, Scaling scaling,
                                bool rotate, bool narrow) {
  const int64_t kv_heads = k.shape[2];
  QuantizeOptions options;
  options.scaling = scaling;
  const auto one = [&](const ConstTensor& x, float largest) {
    return quantize_one(x, kv_heads, options, narrow ? largest : 448.0f);
  };
  options.rotate = rotate;
  Quantized q8 = one(q, FA3_E4M3_NARROW_QK), k8 = one(k, FA3_E4M3_NARROW_QK);
  options.rotate = false;
  return {std::move(q8), std::move(k8), one(v, FA3_E4M3_NARROW_V)};
}

}  // namespace fa3::cli
