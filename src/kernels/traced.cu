#include "kernels/traced.hpp"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "kernels/cuda_check.hpp"
#include "kernels/forward_kernel.cuh"
#include "kernels/launch.hpp"
#include "kernels/plan.hpp"
#include "simulate/timeline.hpp"

namespace fa3::kernels {
namespace {

template <int index>
struct TracedRow {
  static constexpr ForwardConfig traced(ForwardConfig config) {
    config.trace = true;
    return config;
  }
  static constexpr ForwardConfig config = traced(forward_rows[index].config);
};

/// Device memory for the length of a scope.
struct DeviceMemory {
  void* data = nullptr;
  explicit DeviceMemory(std::size_t bytes) { check(cudaMalloc(&data, bytes), "cudaMalloc"); }
  ~DeviceMemory() { cudaFree(data); }
  DeviceMemory(const DeviceMemory&) = delete;
};

template <int index>
Kernel traced_kernel_of_row() {
  // f16 stands for both types: they differ only in the instructions' type suffix.
  if constexpr (forward_rows[index].config.element == Element::f16) {
    return kernel_of<TracedRow<index>>();
  } else {
    throw Error(FA3_NOT_SUPPORTED, std::string("row ") + forward_rows[index].name +
                                       " is not built for tracing on the GPU; the f16 rows are");
  }
}

template <int... rows>
Kernel traced_kernel(int row, std::integer_sequence<int, rows...>) {
  Kernel (*const kernels[])() = {&traced_kernel_of_row<rows>...};
  return kernels[row]();
}

}  // namespace

std::vector<simulator::Event> trace_forward(const ForwardProblem& problem, int row) {
  const Kernel kernel = traced_kernel(row, std::make_integer_sequence<int, forward_row_count>());
  const auto bytes = [](const TensorRef& tensor) {
    return std::size_t(tensor.shape[1] * tensor.shape[2] * tensor.shape[3]) * 2;
  };
  DeviceMemory q(bytes(problem.q)), k(bytes(problem.k)), v(bytes(problem.v)), o(bytes(problem.o));
  ForwardProblem on_device = problem;
  const auto upload = [&](const TensorRef& host, TensorRef& device, const DeviceMemory& memory) {
    device.data = memory.data;
    check(cudaMemcpy(memory.data, host.data, bytes(host), cudaMemcpyHostToDevice), "cudaMemcpy");
  };
  upload(problem.q, on_device.q, q);
  upload(problem.k, on_device.k, k);
  upload(problem.v, on_device.v, v);
  on_device.o.data = o.data;
  const std::size_t workspace_bytes = plan_forward(on_device).workspace_bytes;
  DeviceMemory workspace(workspace_bytes);
  const int roles = 1 + forward_rows[row].config.consumer_warpgroups();
  std::vector<attention::Stamp> stamps(std::size_t(roles) * attention::stamps_per_role);
  DeviceMemory recorded(stamps.size() * sizeof(attention::Stamp));
  prepare_kernel(kernel, forward_rows[row].name);
  for (int run = 0; run < 2; ++run) {  // the first one warms up caches and clocks
    check(cudaMemset(recorded.data, 0, stamps.size() * sizeof(attention::Stamp)), "cudaMemset");
    forward_with(kernel, forward_rows[row], on_device, workspace.data, workspace_bytes, nullptr,
                 static_cast<attention::Stamp*>(recorded.data));
    check(cudaDeviceSynchronize(), "the traced kernel");
  }
  check(cudaMemcpy(stamps.data(), recorded.data, stamps.size() * sizeof(attention::Stamp), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  check(cudaMemcpy(problem.o.data, o.data, bytes(problem.o), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return simulator::events_of_stamps(stamps, roles);
}

}  // namespace fa3::kernels
