#include "fp8.hpp"

#include <algorithm>
#include <cmath>

#include "dtype.hpp"
#include "reference/forward.hpp"
#include "reference/share_out.hpp"

namespace fa3::cli {
namespace {

using std::int64_t;

Quantized quantize_one(const ConstTensor& x, int64_t scale_heads, const QuantizeOptions& options) {
  const auto [batch, seqlen, heads, d] = x.shape;
  const int64_t blocks = (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS;
  const bool per_block = options.scaling == Scaling::block;
  check::Buffer values(x.device, std::size_t(batch * seqlen * heads * d));
  check::Buffer scales(x.device, std::size_t(batch * (per_block ? heads * blocks : scale_heads)) * sizeof(float));
  auto* data = static_cast<float*>(scales.data());
  const ScalesView scale = per_block ? ScalesView::of_blocks(data, batch, heads, blocks, x.device)
                           : options.scaling == Scaling::tensor
                               ? ScalesView::of_tensor(data, batch, scale_heads, x.device)
                               : ScalesView::of_heads(data, batch, scale_heads, x.device);
  const Tensor y(values.data(), x.shape, Dtype::e4m3, x.device);
  std::size_t bytes = 0;
  check::require(quantize_workspace_size(x, y, scale, options, bytes));
  const check::Buffer workspace(x.device, bytes);
  check::require(check::run_and_wait(x.device, [&](fa3_stream stream) {
    return quantize(x, y, scale, options, Workspace{workspace.data(), workspace.bytes()}, stream);
  }));
  return {std::move(values), std::move(scales), y, scale};
}

template <class RowFunction>
SampledRows compute_rows(const ForwardProblem& p, std::vector<SampledRows::Row> rows, RowFunction row_function) {
  SampledRows result{std::move(rows), {}};
  result.o.resize(result.rows.size() * std::size_t(p.d_v));
  reference::share_out(int64_t(result.rows.size()), check::host_threads(), [&](int64_t i) {
    const SampledRows::Row& r = result.rows[std::size_t(i)];
    row_function(p, r.batch, r.head, r.row, &result.o[std::size_t(i * p.d_v)]);
  });
  return result;
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
    *scales = {reinterpret_cast<float*>(fetch(from->scales)), from->scale.per_block, from->scale.stride};
  }
  return p;
}

QuantizedInputs quantize_inputs(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, Scaling scaling,
                                bool rotate) {
  const int64_t kv_heads = k.shape[2];
  QuantizeOptions options;
  options.scaling = scaling;
  const auto one = [&](const ConstTensor& x) { return quantize_one(x, kv_heads, options); };
  options.rotate = rotate;
  Quantized q8 = one(q), k8 = one(k);
  options.rotate = false;
  return {std::move(q8), std::move(k8), one(v)};
}

SampledRows exact_rows(const ForwardProblem& p, int64_t count) {
  const int64_t total = p.batch * p.seqlen_q * p.heads;
  count = std::min(count, total);
  std::vector<SampledRows::Row> rows;
  for (int64_t i = 0; i < count; ++i) {
    // Not a stride, which may hit the same head, or place in a block, each time.
    const auto number = count == 1 ? 0 : int64_t(double(i) * double(total - 1) / double(count - 1));
    rows.push_back({number / p.heads / p.seqlen_q, number / p.heads % p.seqlen_q, number % p.heads});
  }
  return compute_rows(p, std::move(rows), reference::forward_row);
}

SampledRows plain_rows(const ForwardProblem& problem, const SampledRows& like) {
  return compute_rows(problem, like.rows, reference::plain_forward_row);
}

SampledRows rows_of(const TensorRef& o, fa3_dtype dtype, const SampledRows& like) {
  SampledRows result{like.rows, {}};
  with_dtype(dtype, [&]<class T>(T) {
    for (const SampledRows::Row& r : like.rows) {
      const T* row = features<const T>(o, r.batch, r.row, r.head);
      for (int64_t c = 0; c < o.shape[3]; ++c) result.o.push_back(to_float(row[c]));
    }
  });
  return result;
}

Errors errors(const SampledRows& got, const SampledRows& right) {
  double squares = 0, right_squares = 0;
  Errors result;
  for (std::size_t i = 0; i < right.o.size(); ++i) {
    const double error = got.o[i] - right.o[i];
    squares += error * error;
    right_squares += right.o[i] * right.o[i];
    if (!(std::abs(error) <= result.largest)) result.largest = std::abs(error);  // NaN counts
  }
  result.rmse = std::sqrt(squares / double(std::max<std::size_t>(right.o.size(), 1)));
  result.relative = std::sqrt(squares / right_squares);
  return result;
}

}  // namespace fa3::cli
