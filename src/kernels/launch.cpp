#include "kernels/launch.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "api/checks.hpp"
#include "kernels/arguments.hpp"
#include "kernels/configs.hpp"
#include "kernels/cuda_check.hpp"
#include "kernels/kernel.hpp"
#include "kernels/plan.hpp"
#include "kernels/strided_copy.hpp"
#include "kernels/tensor_map.hpp"

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

template <int... rows>
constexpr auto kernels_of(std::integer_sequence<int, rows...>) {
  return std::array<ForwardKernel (*)(), sizeof...(rows)>{&forward_kernel_of_row<rows>...};
}
ForwardKernel kernel_of_row(int row) {
  static constexpr auto kernels = kernels_of(std::make_integer_sequence<int, forward_row_count>());
  return kernels[row]();
}

/// Loads the kernel into the current context and allows it its shared memory.
void allow_shared_memory(const ForwardKernel& kernel) {
  check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
        "cudaFuncSetAttribute");
}

/// setmaxnreg moves registers within what the launch allocates; were that less than the roles claim, the kernel would
/// wait for ever.
void check_registers(const ForwardKernel& kernel, const char* row) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel.function), "cudaFuncGetAttributes");
  if (attributes.numRegs * kernel.threads < kernel.registers)
    throw Error(FA3_INTERNAL, string("row ") + row + " was compiled to " + to_string(attributes.numRegs) +
                                  " registers per thread at entry; its roles need " + to_string(kernel.registers) +
                                  " in all");
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
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, strided_copy_kernel()), "cudaFuncGetAttributes");
  return attribute(cudaDevAttrMultiProcessorCount, device);
}

/// The current device, prepared at its first use, and its number of SMs.
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

void check_device_pointer(const char* name, const void* pointer, int device) {
  if (pointer == nullptr) return;
  cudaPointerAttributes attributes;
  check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    throw Error(FA3_INVALID_ARGUMENT, string(name) + " is a host pointer; on cuda it must be device memory");
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device)
    throw Error(FA3_INVALID_ARGUMENT, string(name) + " is memory of CUDA device " + to_string(attributes.device) +
                                          ", but the current device is " + to_string(device));
}

void check_workspace(const void* workspace, std::size_t given, std::size_t needed) {
  if (workspace == nullptr)
    throw Error(FA3_WORKSPACE_TOO_SMALL, "workspace is null; " + to_string(needed) + " bytes are needed");
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)
    throw Error(FA3_WORKSPACE_TOO_SMALL, "workspace is not aligned to 256 bytes");
  if (given < needed)
    throw Error(FA3_WORKSPACE_TOO_SMALL,
                "workspace_bytes is " + to_string(given) + "; " + to_string(needed) + " are needed");
}

/// Copy between the caller's tensor and its packed twin in the workspace, in either direction.
StridedCopy copy_between(const TensorRef& from, const TensorRef& to, const TensorRef& packed) {
  StridedCopy copy{static_cast<const std::uint16_t*>(from.data), static_cast<std::uint16_t*>(to.data), {}, {}, {}};
  for (int i = 0; i < 4; ++i) copy.extent[i] = packed.stride[i] == 0 ? 1 : packed.shape[i];
  for (int i = 0; i < 3; ++i) {
    copy.from_stride[i] = from.stride[i];
    copy.to_stride[i] = to.stride[i];
  }
  return copy;
}

void launch_kernel(const ForwardKernel& kernel, attention::ForwardArguments& args, int ctas, fa3_stream stream) {
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(kernel.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(ctas));
  config.blockDim = dim3(unsigned(kernel.threads));
  config.dynamicSmemBytes = std::size_t(kernel.shared_bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kernel.cluster > 1 ? 1 : 0;
  void* arguments[] = {&args};
  check(cudaLaunchKernelExC(&config, kernel.function, arguments), "launch of the forward kernel");
}

/// Everything of forward() with this plan and a kernel of its row's shape.
void launch(const ForwardKernel& kernel, ForwardPlan plan, const ForwardProblem& problem, void* workspace,
            std::size_t workspace_bytes, fa3_stream stream, attention::Stamp* stamps) {
  check_workspace(workspace, workspace_bytes, plan.workspace_bytes);
  const auto [device, sm_count] = current_device();
  const std::pair<const char*, const void*> pointers[] = {{"q.data", problem.q.data},
                                                          {"k.data", problem.k.empty() ? nullptr : problem.k.data},
                                                          {"v.data", problem.v.empty() ? nullptr : problem.v.data},
                                                          {"o.data", problem.o.data},
                                                          {"lse", problem.lse},
                                                          {"workspace", workspace}};
  for (const auto& [name, pointer] : pointers) check_device_pointer(name, pointer, device);

  attention::ForwardArguments args = forward_arguments(problem, plan, workspace, sm_count, encode_tensor_map);
  args.stamps = stamps;
  const int ctas = cta_count(args.order.count(), kernel.cluster, sm_count, problem.sm_margin);
  allow_shared_memory(kernel);  // again at every launch: it belongs to the context, of which a device may have several
  const auto copy = [&](const TensorRef& from, const TensorRef& to, const TensorRef& packed) {
    check(cudaError_t(launch_strided_copy(copy_between(from, to, packed), stream)), "launch of strided_copy");
  };
  if (args.next_item != nullptr) check(cudaMemsetAsync(args.next_item, 0, sizeof(unsigned), stream), "cudaMemsetAsync");
  if (plan.q.copied) copy(problem.q, plan.q.tensor, plan.q.tensor);
  if (plan.k.copied) copy(problem.k, plan.k.tensor, plan.k.tensor);
  if (plan.v.copied) copy(problem.v, plan.v.tensor, plan.v.tensor);

  launch_kernel(kernel, args, ctas, stream);
  if (plan.o.copied) copy(plan.o.tensor, problem.o, plan.o.tensor);
}

}  // namespace

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

void prepare_kernel(const ForwardKernel& kernel, const char* name) {
  current_device();
  allow_shared_memory(kernel);
  check_registers(kernel, name);
}

void forward_with(const ForwardKernel& kernel, const ForwardRow& row, const ForwardProblem& problem, void* workspace,
                  std::size_t workspace_bytes, fa3_stream stream, attention::Stamp* stamps) {
  launch(kernel, plan_forward(problem, row), problem, workspace, workspace_bytes, stream, stamps);
}

}  // namespace fa3::kernels
