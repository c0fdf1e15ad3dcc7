#include "kernels/quantize_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include "error.hpp"
#include "kernels/plan.hpp"
#include "quantization.hpp"

namespace fa3::kernels {
namespace {

static_assert(attention::scale_rows == FA3_SCALE_ROWS);

/// Index of the shape.
int shape_of(const QuantizeProblem& problem) {
  namespace shape = attention::shape;
  if (problem.d == 96) return shape::of_96;
  if (problem.d == 192) return shape::of_192;
  if (problem.d <= 64) return shape::up_to_64;
  if (problem.d <= 128) return shape::up_to_128;
  return problem.rotate && problem.d % 32 != 0 ? shape::order_16 : shape::up_to_256;
}

template <int count>
bool aligned(const void* data, const std::int64_t* strides, std::int64_t multiple, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0 &&
         std::all_of(strides, strides + count, [&](std::int64_t stride) { return stride % multiple == 0; });
}

}  // namespace

QuantizePlan plan_quantize(const QuantizeProblem& problem) {
  QuantizePlan plan;
  if (problem.y.empty()) return plan;
  plan.element = problem.dtype == FA3_F16 ? hopper::Element::f16 : hopper::Element::bf16;
  plan.transform = problem.rope_cos != nullptr ? attention::Transform::embedding
                   : problem.rotate            ? attention::Transform::rotation
                                               : attention::Transform::none;
  plan.shape = shape_of(problem);
  const std::int64_t longest = (std::int64_t(1) << 31) - 1024;
  if (problem.seqlen > longest)
    throw Error(FA3_NOT_SUPPORTED, "seqlen is " + std::to_string(problem.seqlen) + "; on cuda it must be at most " +
                                       std::to_string(longest));
  check_tiles("heads * ceil(seqlen", problem.seqlen, FA3_SCALE_ROWS, problem.heads * problem.batch);
  plan.items = int(problem.batch * problem.heads * problem.blocks());
  if (problem.scaling == FA3_SCALING_HEAD)
    plan.workspace_bytes = align(std::size_t(problem.batch * problem.scale_heads) * sizeof(unsigned));
  if (problem.scaling == FA3_SCALING_TENSOR) plan.workspace_bytes = align(sizeof(unsigned));
  return plan;
}

attention::QuantizeArguments quantize_arguments(const QuantizeProblem& problem, const QuantizePlan& plan,
                                                void* workspace) {
  attention::QuantizeArguments args{};
  const std::int64_t of_x[3] = {problem.x.stride[0], problem.x.stride[2], problem.x.stride[1]};
  const std::int64_t of_y[3] = {problem.y.stride[0], problem.y.stride[2], problem.y.stride[1]};
  args.x.data = static_cast<std::uint16_t*>(problem.x.data);
  std::copy(of_x, of_x + 3, args.x.stride);
  args.x.aligned = aligned<3>(problem.x.data, of_x, 8, 16);
  args.y = static_cast<std::uint8_t*>(problem.y.data);
  std::copy(of_y, of_y + 3, args.y_stride);
  args.y_aligned = aligned<3>(problem.y.data, of_y, 8, 8);
  args.step = problem.scaling == FA3_SCALING_BLOCK   ? attention::QuantizeStep::own_scale
              : problem.scaling == FA3_SCALING_GIVEN ? attention::QuantizeStep::given
                                                     : attention::QuantizeStep::from_maxima;
  args.heads = int(problem.heads);
  args.seqlen = int(problem.seqlen);
  args.blocks = int(problem.blocks());
  args.by_heads = attention::make_divisor(std::uint32_t(args.heads));
  args.by_blocks = attention::make_divisor(std::uint32_t(args.blocks));
  args.pieces = int(problem.d) / attention::piece_features;
  const attention::QuantizeShape& sharing = plan.sharing();
  args.slots_used = (args.pieces + sharing.lanes - 1) / sharing.lanes;
  args.x_whole = args.x.aligned && args.pieces == sharing.slots * sharing.lanes;
  args.y_whole =
      args.pieces == args.slots_used * sharing.lanes &&
      (sharing.lanes == 4 ? args.y_aligned : args.slots_used % 2 == 0 && aligned<3>(problem.y.data, of_y, 16, 16));
  args.items = plan.items;

  args.largest = problem.scale.largest;
  args.limits = problem.scale.largest < 448 && problem.scaling == FA3_SCALING_GIVEN;
  args.scale = problem.scale.data;
  std::copy(problem.scale.stride.begin(), problem.scale.stride.end(), args.scale_stride);
  const bool one = problem.scaling == FA3_SCALING_TENSOR;
  args.group = int(one ? problem.heads : problem.scale.per_block ? 1 : problem.group());
  args.by_group = attention::make_divisor(std::uint32_t(args.group));
  args.maxima = static_cast<unsigned*>(workspace);
  args.maxima_of_batch = one ? 0 : int(problem.scale_heads);

  args.rope_cos = problem.rope_cos;
  args.rope_sin = problem.rope_sin;
  args.rope_stride = problem.rope_stride;
  args.rope_d = int(problem.rope_d);
  args.rope_interleaved = problem.rope_interleaved;
  args.rope_pieces = problem.rope_d % (problem.rope_interleaved ? 8 : 16) == 0 &&
                     aligned<1>(problem.rope_cos, &problem.rope_stride, 4, 16) &&
                     aligned<1>(problem.rope_sin, &problem.rope_stride, 4, 16);

  const Rotation rotation = problem.rotate ? make_rotation(problem.d, problem.seed) : Rotation();
  args.rotate = problem.rotate;
  args.segments = rotation.segments;
  args.slots_of_segment = std::max(1, rotation.order / (attention::piece_features * sharing.lanes));
  args.norm = rotation.norm;
  args.mix = rotation.mix;
  for (int place = 0; problem.rotate && place < 32; ++place) {
    const int piece = place < args.pieces ? place : place % (sharing.lanes * args.slots_of_segment);
    for (int i = 0; i < 8; ++i)
      args.signs[place].pair[i / 2] |= (rotation.signs[piece / 4] >> (piece % 4 * 8 + i) & 1) << (i % 2 == 0 ? 15 : 31);
  }
  return args;
}

}  // namespace fa3::kernels
