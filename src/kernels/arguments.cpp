#include "kernels/arguments.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/configs.hpp"

namespace fa3::kernels {
namespace {

/// `group` heads of the tensor share a scale that is not per block.
attention::Scales kernel_scales(const ScalesRef& given, std::int64_t group) {
  return {given.data,
          {given.stride[0], given.stride[1], given.per_block ? given.stride[2] : 0},
          given.per_block ? 1 : int(group)};
}

}  // namespace

hopper::TensorMap tensor_map(const char* name, const TensorRef& tensor, hopper::Element element, int box_rows,
                             TensorMapEncoder encode) {
  if (tensor.empty()) return {};  // no keys: the kernel does not touch it
  // A dimension without steps (extent 1, or repeated) gets extent 1 and a stride that is only formally needed.
  const auto steps = [&](int i) { return tensor.shape[i] > 1 && tensor.stride[i] != 0; };
  const auto extent = [&](int i) { return std::uint64_t(steps(i) ? tensor.shape[i] : 1); };
  const auto stride_bytes = [&](int i) {
    return std::uint64_t(steps(i) ? tensor.stride[i] : (tensor.shape[3] + 7) / 8 * 8) * 2;
  };
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

attention::Scale kernel_scale(float scale) {
  const float log2_e = 1.44269504088896f;
  if (scale == 0.0f) return {1.0f, 1.0f, 1.0f, 0.0f};
  const float scale_log2 = std::abs(scale) * log2_e;
  int exponent = 0;
  const float fraction = std::frexp(scale_log2, &exponent);  // [0.5, 1)
  const float power_of_two = std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
  return {scale_log2, power_of_two, scale_log2 / power_of_two, scale > 0 ? 1.0f : -1.0f};
}

attention::ForwardArguments forward_arguments(const ForwardProblem& problem, ForwardPlan& plan, void* workspace,
                                              int sm_count, TensorMapEncoder encode) {
  for (StagedTensor* staged : {&plan.q, &plan.k, &plan.v, &plan.o})
    if (staged->copied) staged->tensor.data = static_cast<unsigned char*>(workspace) + staged->offset;

  const ForwardConfig& config = plan.config;
  attention::ForwardArguments args{};
  const hopper::Element element = config.fp8() ? Element::f16 : config.element;  // of e4m3 pairs, of which TMA knows
  args.q = tensor_map("Q", plan.q.tensor, element, config.tile_q, encode);
  args.k = tensor_map("K", plan.k.tensor, element, config.tile_kv / config.cluster, encode);
  args.v = tensor_map("V", plan.v.tensor, element,
                      config.v_is_transposed ? config.d_v : config.tile_kv / config.cluster, encode);
  args.o = tensor_map("O", plan.o.tensor, element, config.output == attention::Output::in_v_ring ? 64 : 16, encode);
  args.q_scale = kernel_scales(problem.q_scale, problem.group());
  args.k_scale = kernel_scales(problem.k_scale, 1);
  args.v_scale = kernel_scales(problem.v_scale, 1);
  args.bf16_output = problem.o_dtype == FA3_BF16;
  args.o_data = static_cast<std::uint16_t*>(plan.o.tensor.data);
  args.o_stride[0] = plan.o.tensor.stride[0];
  args.o_stride[1] = plan.o.tensor.stride[2];
  args.o_stride[2] = plan.o.tensor.stride[1];
  args.o_columns = int(problem.d_v);
  args.lse = problem.lse;
  std::copy(problem.lse_stride.begin(), problem.lse_stride.end(), args.lse_stride);
  args.mask = {int(problem.seqlen_q), int(problem.seqlen_k), problem.causal};
  const int rows = config.cluster * config.tile_q;
  const int group = int(problem.group()), sequences = int(problem.heads * problem.batch);
  const int resident = std::max(1, (sm_count - problem.sm_margin) / config.cluster);
  const std::int64_t key_bytes =
      problem.seqlen_k * (problem.d + problem.d_v) * std::int64_t(element_bytes(problem.dtype));
  // Many items of unequal length are taken as clusters become free. For few, or equal ones, resetting the counter would
  // cost more than a static schedule loses; a few unequal ones are dealt out, for which all must be in one section.
  const std::int64_t items = (problem.seqlen_q + rows - 1) / rows * sequences;
  const bool dynamic = problem.causal && items > attention::few_rounds * resident;
  const int most = !problem.causal ? group : dynamic ? attention::most_in_last_section(group, key_bytes) : sequences;
  const attention::LowTiles low =
      config.fp8() && !problem.causal
          ? attention::choose_low_tiles(int(problem.seqlen_q), config.consumer_warpgroups(), sequences, group, resident)
          : attention::LowTiles{};
  const auto order = [&](int height, int of) {
    return attention::make_tile_order(height, int((problem.seqlen_q + height - 1) / height), int(problem.heads), of,
                                      group, resident, most);
  };
  args.order = order(rows, sequences - low.sequences);
  if (low.sequences > 0) {
    args.low_order = order(64 * low.warpgroups, sequences);
    // The begin of a section: sections have `group` sequences, but for the last ones, which have no more.
    args.low_first = (sequences - low.sequences) * args.low_order.row_items;
  }
  args.next_item = dynamic ? static_cast<unsigned*>(workspace) : nullptr;
  args.group = group;
  args.scale = kernel_scale(problem.softmax_scale);
  // All scores are 0 then, and shall be whatever they are multiplied by: scales may be large, but not infinite.
  if (config.fp8() && problem.softmax_scale == 0) args.scale.scale_log2 = 0x1p-126f;
  return args;
}

attention::TransposeArguments transpose_arguments(const ForwardProblem& problem, const ForwardPlan& plan,
                                                  TensorMapEncoder encode) {
  attention::TransposeArguments args{};
  if (problem.v.empty()) return args;
  args.d_major = problem.v_is_d_major();
  args.v = tensor_map("V", args.d_major ? pairs_of_keys(problem.v) : pairs_of(problem.v), Element::f16,
                      attention::transpose_tile, encode);
  args.vt = tensor_map("V^T", plan.v.tensor, Element::f16, attention::transpose_box, encode);
  const auto tiles = [](std::int64_t length) {
    return int((length + attention::transpose_tile - 1) / attention::transpose_tile);
  };
  args.features = int(problem.d_v);
  args.seqlen = int(problem.seqlen_k);
  args.panels = tiles(problem.d_v);
  args.blocks = tiles(problem.seqlen_k);
  const TensorRef& vt = plan.v.tensor;
  args.heads = vt.stride[2] == 0 ? 1 : int(vt.shape[2]);
  args.items = args.panels * args.blocks * args.heads * (vt.stride[0] == 0 ? 1 : int(vt.shape[0]));
  return args;
}

}  // namespace fa3::kernels
