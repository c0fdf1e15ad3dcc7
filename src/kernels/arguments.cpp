#include "kernels/arguments.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/configs.hpp"

namespace fa3::kernels {
namespace {

/// Tensor map with boxes of 64 features x box_rows rows, 128-byte swizzle.
hopper::TensorMap tensor_map(const char* name, const TensorRef& tensor, hopper::Element element, int box_rows,
                             TensorMapEncoder encode) {
  if (tensor.empty()) return {};  // no keys: the kernel does not touch it
  // A dimension without steps (extent 1, or repeated) gets extent 1 and a stride that is only formally needed.
  const auto steps = [&](int i) { return tensor.shape[i] > 1 && tensor.stride[i] != 0; };
  const auto extent = [&](int i) { return std::uint64_t(steps(i) ? tensor.shape[i] : 1); };
  const auto stride_bytes = [&](int i) { return std::uint64_t(steps(i) ? tensor.stride[i] : tensor.shape[3]) * 2; };
  hopper::TensorMap map =
      encode({name,
              tensor.data,
              element,
              {std::uint64_t(tensor.shape[3]), std::uint64_t(tensor.shape[1]), extent(2), extent(0)},
              {stride_bytes(1), stride_bytes(2), stride_bytes(0)},
              64,
              std::uint32_t(box_rows),
              128});
  map.head_step = steps(2);
  map.batch_step = steps(0);
  return map;
}

attention::TileOrder tile_order(const ForwardProblem& problem, int tile_q, std::int64_t l2_bytes) {
  // Half of L2 for the section's K and V: the rest holds Q, O and what other CTAs have not let go of yet.
  const std::int64_t kv_bytes = std::max<std::int64_t>(1, problem.seqlen_k * (problem.d + problem.d_v) * 2);
  const std::int64_t kv_heads = std::max<std::int64_t>(1, l2_bytes / 2 / kv_bytes);
  const std::int64_t sequences = problem.heads * problem.batch;
  attention::TileOrder order;
  order.tile_q = tile_q;
  order.q_tiles = int((problem.seqlen_q + tile_q - 1) / tile_q);
  order.heads = int(problem.heads);
  order.sequences = int(sequences);
  order.section = int(std::min(sequences, kv_heads * problem.group()));
  return order;
}

}  // namespace

attention::Scale kernel_scale(float scale) {
  const float log2_e = 1.44269504088896f;
  if (scale == 0.0f) return {1.0f, 1.0f, 0.0f};
  const float scale_log2 = std::abs(scale) * log2_e;
  int exponent = 0;
  const float fraction = std::frexp(scale_log2, &exponent);  // [0.5, 1)
  const float power_of_two = std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
  return {scale_log2, power_of_two, scale > 0 ? 1.0f : -1.0f};
}

attention::ForwardArguments forward_arguments(const ForwardProblem& problem, ForwardPlan& plan, void* workspace,
                                              std::int64_t l2_bytes, TensorMapEncoder encode) {
  for (StagedTensor* staged : {&plan.q, &plan.k, &plan.v, &plan.o})
    if (staged->copied) staged->tensor.data = static_cast<unsigned char*>(workspace) + staged->offset;

  const ForwardConfig& config = forward_rows[plan.row].config;
  attention::ForwardArguments args{};
  args.q = tensor_map("Q", plan.q.tensor, config.element, config.tile_q, encode);
  args.k = tensor_map("K", plan.k.tensor, config.element, config.tile_kv, encode);
  args.v = tensor_map("V", plan.v.tensor, config.element, config.tile_kv, encode);
  args.o = tensor_map("O", plan.o.tensor, config.element, 16, encode);
  args.lse = problem.lse;
  std::copy(problem.lse_stride.begin(), problem.lse_stride.end(), args.lse_stride);
  args.mask = {int(problem.seqlen_q), int(problem.seqlen_k), problem.causal};
  args.order = tile_order(problem, config.tile_q, l2_bytes);
  args.group = int(problem.group());
  args.scale = kernel_scale(problem.softmax_scale);
  args.next_tile = static_cast<unsigned*>(workspace);
  return args;
}

}  // namespace fa3::kernels
