#include "kernels/quantize_launch.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda_check.hpp"
#include "kernels/launch_parts.hpp"

namespace fa3::kernels {

void prepare_quantize() {
  using attention::Transform;
  for (const hopper::Element element : {hopper::Element::f16, hopper::Element::bf16})
    for (const Transform transform : {Transform::none, Transform::rotation, Transform::embedding})
      for (const int slots : {4, 16}) {
        QuantizePlan plan;
        plan.element = element;
        plan.transform = transform;
        plan.slots = slots;
        cudaFuncAttributes attributes;
        check(cudaFuncGetAttributes(&attributes, quantize_kernel(plan).function), "cudaFuncGetAttributes");
      }
}

void quantize(const QuantizeProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream) {
  const QuantizePlan plan = plan_quantize(problem);
  if (plan.two_passes()) check_workspace(workspace, workspace_bytes, plan.workspace_bytes);
  const int device = current_device().first;
  const std::pair<const char*, const void*> pointers[] = {
      {"x.data", problem.x.data},         {"y.data", problem.y.data},
      {"scale.data", problem.scale.data}, {"rope_cos", problem.rope_cos},
      {"rope_sin", problem.rope_sin},     {"workspace", plan.two_passes() ? workspace : nullptr}};
  for (const auto& [name, pointer] : pointers) check_device_pointer(name, pointer, device);

  const Kernel kernel = quantize_kernel(plan);
  attention::QuantizeArguments args = quantize_arguments(problem, plan, workspace);
  if (plan.two_passes()) {
    check(cudaMemsetAsync(workspace, 0, plan.workspace_bytes, stream), "cudaMemsetAsync");
    attention::QuantizeArguments first = args;
    first.step = attention::QuantizeStep::maxima;
    launch_kernel(kernel, &first, plan.ctas, false, stream, "launch of the quantiser's first pass");
  }
  launch_kernel(kernel, &args, plan.ctas, false, stream, "launch of the quantiser");
}

}  // namespace fa3::kernels
