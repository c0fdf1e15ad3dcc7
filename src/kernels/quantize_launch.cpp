#include "kernels/quantize_launch.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/cuda_check.hpp"
#include "kernels/launch_parts.hpp"

namespace fa3::kernels {

void prepare_quantize() {
  using attention::Transform;
  for (const hopper::Element element : {hopper::Element::f16, hopper::Element::bf16})
    for (const Transform transform : {Transform::none, Transform::rotation, Transform::embedding})
      for (int shape = 0; shape < int(std::size(attention::quantize_shapes)); ++shape) {
        QuantizePlan plan;
        plan.element = element;
        plan.transform = transform;
        plan.shape = shape;
        cudaFuncAttributes attributes;
        check(cudaFuncGetAttributes(&attributes, quantize_kernel(plan).function), "cudaFuncGetAttributes");
      }
}

void quantize(const QuantizeProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream) {
  const QuantizePlan plan = plan_quantize(problem);
  if (plan.two_passes()) check_workspace(workspace, workspace_bytes, plan.workspace_bytes);
  const auto [device, sm_count] = current_device();
  const std::pair<const char*, const void*> pointers[] = {
      {"x.data", problem.x.data},         {"y.data", problem.y.data},
      {"scale.data", problem.scale.data}, {"rope_cos", problem.rope_cos},
      {"rope_sin", problem.rope_sin},     {"workspace", plan.two_passes() ? workspace : nullptr}};
  for (const auto& [name, pointer] : pointers) check_device_pointer(name, pointer, device);

  const Kernel kernel = quantize_kernel(plan);
  const int ctas = std::min(plan.items, sm_count * plan.sharing().ctas_of_sm());
  attention::QuantizeArguments args = quantize_arguments(problem, plan, workspace);
  if (plan.two_passes()) {
    check(cudaMemsetAsync(workspace, 0, plan.workspace_bytes, stream), "cudaMemsetAsync");
    attention::QuantizeArguments first = args;
    first.step = attention::QuantizeStep::maxima;
    launch_kernel(kernel, &first, ctas, false, stream, "launch of the quantiser's first pass");
  }
  launch_kernel(kernel, &args, ctas, false, stream, "launch of the quantiser");
}

}  // namespace fa3::kernels
