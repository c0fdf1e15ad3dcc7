#include "kernels/launch.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "api/checks.hpp"
#include "kernels/arguments.hpp"
#include "kernels/backward_launch.hpp"
#include "kernels/configs.hpp"
#include "kernels/cuda_check.hpp"
#include "kernels/kernel.hpp"
#include "kernels/launch_parts.hpp"
#include "kernels/plan.hpp"
#include "kernels/quantize_launch.hpp"
#include "kernels/strided_copy.hpp"
#include "kernels/tensor_map.hpp"
#include "kernels/transpose_values.hpp"
#include "of_rows.hpp"

namespace fa3::kernels {
namespace {

static_assert(FA3_FORWARD_ROWS == forward_row_count, "the build read another number of rows from configs.hpp");

using std::string;
using std::to_string;

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

Kernel kernel_of_row(int row) {
  static constexpr auto kernels = of_rows<forward_row_count>([]<int index>() { return &forward_kernel_of_row<index>; });
  return kernels[std::size_t(row)]();
}

/// Loads all kernels; the number of SMs.
int prepare(int device) {
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  api::check_capability(major, minor, properties.name);
  for (int row = 0; row < forward_row_count; ++row) {
    allow_shared_memory(kernel_of_row(row));
    check_registers(kernel_of_row(row), forward_rows[row].name);
  }
  prepare_backward();
  prepare_quantize();
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, transpose_values_kernel().function), "cudaFuncGetAttributes");
  check(cudaFuncGetAttributes(&attributes, strided_copy_kernel()), "cudaFuncGetAttributes");
  return attribute(cudaDevAttrMultiProcessorCount, device);
}

/// Everything of forward() with this plan and a kernel of its row's shape.
void launch(const Kernel& kernel, ForwardPlan plan, const ForwardProblem& problem, void* workspace,
            std::size_t workspace_bytes, fa3_stream stream, attention::Stamp* stamps) {
  check_workspace(workspace, workspace_bytes, plan.workspace_bytes);
  const auto [device, sm_count] = current_device();
  const std::pair<const char*, const void*> pointers[] = {{"q.data", problem.q.data},
                                                          {"k.data", problem.k.empty() ? nullptr : problem.k.data},
                                                          {"v.data", problem.v.empty() ? nullptr : problem.v.data},
                                                          {"o.data", problem.o.data},
                                                          {"lse", problem.lse},
                                                          {"q_scale", problem.q_scale.data},
                                                          {"k_scale", problem.k_scale.data},
                                                          {"v_scale", problem.v_scale.data},
                                                          {"workspace", workspace}};
  for (const auto& [name, pointer] : pointers) check_device_pointer(name, pointer, device);

  attention::ForwardArguments args = forward_arguments(problem, plan, workspace, sm_count, encode_tensor_map);
  args.stamps = stamps;
  const int ctas = cta_count(args.items(), kernel.cluster, sm_count, problem.sm_margin);
  allow_shared_memory(kernel);  // again at every launch: it belongs to the context, of which a device may have several
  if (args.next_item != nullptr) check(cudaMemsetAsync(args.next_item, 0, sizeof(unsigned), stream), "cudaMemsetAsync");
  copy_in(problem.q, plan.q, stream);
  copy_in(problem.k, plan.k, stream);
  if (plan.config.v_is_transposed) {
    const attention::TransposeArguments transpose = transpose_arguments(problem, plan, encode_tensor_map);
    if (transpose.items > 0)
      launch_kernel(transpose_values_kernel(), &transpose, transpose.items, false, stream,
                    "launch of transpose_values");
  } else {
    copy_in(problem.v, plan.v, stream);
  }

  launch_kernel(kernel, &args, ctas, false, stream, "launch of the forward kernel");
  copy_out(plan.o, problem.o, stream);
}

}  // namespace

std::pair<int, int> current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  static std::mutex mutex;
  static std::map<int, int> prepared;
  const std::lock_guard lock(mutex);
  const auto found = prepared.find(device);
  if (found != prepared.end()) return *found;
  return *prepared.emplace(device, prepare(device)).first;
}

void check_device() { current_device(); }

void init(int device) {
  int previous = 0;
  check(cudaGetDevice(&previous), "cudaGetDevice");
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (device < 0 || device >= count)
    throw Error(FA3_INVALID_ARGUMENT,
                "cuda_device is " + to_string(device) + "; this process sees " + to_string(count) + " CUDA devices");
  // cudaSetDevice would replace another context of the same device by its primary one.
  const bool switches = device != previous;
  if (switches) check(cudaSetDevice(device), "cudaSetDevice");
  try {
    current_device();
    find_tensor_map_encoder();
  } catch (...) {
    if (switches) cudaSetDevice(previous);
    throw;
  }
  if (switches) check(cudaSetDevice(previous), "cudaSetDevice");
}

void forward(const ForwardProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream) {
  const ForwardPlan plan = plan_forward(problem);
  launch(kernel_of_row(plan.row), plan, problem, workspace, workspace_bytes, stream, nullptr);
}

void prepare_kernel(const Kernel& kernel, const char* name) {
  current_device();
  allow_shared_memory(kernel);
  check_registers(kernel, name);
}

void forward_with(const Kernel& kernel, const ForwardRow& row, const ForwardProblem& problem, void* workspace,
                  std::size_t workspace_bytes, fa3_stream stream, attention::Stamp* stamps) {
  launch(kernel, plan_forward(problem, row), problem, workspace, workspace_bytes, stream, stamps);
}

}  // namespace fa3::kernels
