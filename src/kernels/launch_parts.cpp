#include "kernels/launch_parts.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "error.hpp"
#include "kernels/cuda_check.hpp"
#include "kernels/strided_copy.hpp"

namespace fa3::kernels {

using std::string;
using std::to_string;

void allow_shared_memory(const Kernel& kernel) {
  check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
        "cudaFuncSetAttribute");
}

void check_registers(const Kernel& kernel, const char* row) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel.function), "cudaFuncGetAttributes");
  if (attributes.numRegs * kernel.threads < kernel.registers)
    throw Error(FA3_INTERNAL, string("row ") + row + " was compiled to " + to_string(attributes.numRegs) +
                                  " registers per thread at entry; its roles need " + to_string(kernel.registers) +
                                  " in all");
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

namespace {

/// Copy between the caller's tensor and its packed twin in the workspace, in either direction.
StridedCopy copy_between(const TensorRef& from, const TensorRef& to, const TensorRef& packed) {
  StridedCopy copy{static_cast<const std::uint16_t*>(from.data), static_cast<std::uint16_t*>(to.data), {}, {}, {}};
  for (int i = 0; i < 4; ++i) copy.extent[i] = packed.stride[i] == 0 ? 1 : packed.shape[i];
  std::copy(from.stride.begin(), from.stride.end(), copy.from_stride);
  std::copy(to.stride.begin(), to.stride.begin() + 3, copy.to_stride);
  return copy;
}

void copy(const TensorRef& from, const TensorRef& to, const StagedTensor& staged, fa3_stream stream) {
  if (staged.copied)
    check(cudaError_t(launch_strided_copy(copy_between(from, to, staged.tensor), stream)), "launch of strided_copy");
}

}  // namespace

void copy_in(const TensorRef& from, const StagedTensor& to, fa3_stream stream) { copy(from, to.tensor, to, stream); }
void copy_out(const StagedTensor& from, const TensorRef& to, fa3_stream stream) { copy(from.tensor, to, from, stream); }

void launch_kernel(const Kernel& kernel, const void* argument, int ctas, bool overlaps, fa3_stream stream,
                   const char* what) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(ctas));
  config.blockDim = dim3(unsigned(kernel.threads));
  config.dynamicSmemBytes = std::size_t(kernel.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (kernel.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {unsigned(kernel.cluster), 1, 1};
  }
  if (overlaps) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {const_cast<void*>(argument)};
  check(cudaLaunchKernelExC(&config, kernel.function, arguments), what);
}

}  // namespace fa3::kernels
