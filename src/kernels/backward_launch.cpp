#include "kernels/backward_launch.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda_check.hpp"
#include "kernels/launch_parts.hpp"
#include "kernels/tensor_map.hpp"
#include "of_rows.hpp"

namespace fa3::kernels {

/// The kernel of a row of backward_rows; defined in the row's own source file.
template <int row>
Kernel backward_kernel_of_row();

namespace {

static_assert(FA3_BACKWARD_ROWS == backward_row_count,
              "the build read another number of rows from backward_configs.hpp");

Kernel kernel_of_row(int row) {
  static constexpr auto kernels =
      of_rows<backward_row_count>([]<int index>() { return &backward_kernel_of_row<index>; });
  return kernels[std::size_t(row)]();
}

}  // namespace

void prepare_backward() {
  for (int row = 0; row < backward_row_count; ++row) {
    allow_shared_memory(kernel_of_row(row));
    check_registers(kernel_of_row(row), backward_rows[row].name);
  }
  for (const Element element : {Element::f16, Element::bf16}) {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, before_backward_kernel(element).function), "cudaFuncGetAttributes");
    check(cudaFuncGetAttributes(&attributes, after_backward_kernel(element).function), "cudaFuncGetAttributes");
  }
}

void backward(const BackwardProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream) {
  BackwardPlan plan = plan_backward(problem);
  const Kernel kernel = kernel_of_row(plan.row);
  check_workspace(workspace, workspace_bytes, plan.workspace_bytes);
  const auto [device, sm_count] = current_device();
  const std::pair<const char*, const TensorRef*> tensors[] = {
      {"d_o.data", &problem.d_o}, {"q.data", &problem.q},   {"k.data", &problem.k},   {"v.data", &problem.v},
      {"o.data", &problem.o},     {"dq.data", &problem.dq}, {"dk.data", &problem.dk}, {"dv.data", &problem.dv}};
  for (const auto& [name, tensor] : tensors)
    check_device_pointer(name, tensor->empty() ? nullptr : tensor->data, device);
  check_device_pointer("lse", problem.lse, device);
  check_device_pointer("workspace", workspace, device);

  const BackwardLaunch launch = backward_launch(problem, plan, workspace, sm_count, encode_tensor_map);
  allow_shared_memory(kernel);  // again at every launch: it belongs to the context, of which a device may have several
  copy_in(problem.d_o, plan.d_o, stream);
  copy_in(problem.q, plan.q, stream);
  copy_in(problem.k, plan.k, stream);
  copy_in(problem.v, plan.v, stream);
  // The first in the chain waits for all that came before, so that the others need to wait for the chain only.
  bool overlaps = false;
  const auto enqueue = [&](const Kernel& next, const void* argument, int ctas, const char* what) {
    if (ctas == 0) return;
    launch_kernel(next, argument, ctas, overlaps, stream, what);
    overlaps = true;
  };
  enqueue(before_backward_kernel(plan.config.element), &launch.before, launch.before_ctas,
          "launch of the kernel before the backward kernel");
  enqueue(kernel, &launch.main, launch.main_ctas, "launch of the backward kernel");
  enqueue(after_backward_kernel(plan.config.element), &launch.after, launch.after_ctas,
          "launch of the kernel after the backward kernel");
  copy_out(plan.dk, problem.dk, stream);
  copy_out(plan.dv, problem.dv, stream);
}

}  // namespace fa3::kernels
