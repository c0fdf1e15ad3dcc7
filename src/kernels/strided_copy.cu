#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/strided_copy.hpp"

namespace fa3::kernels {
namespace {

constexpr int warps = 8;

/// One warp per row of features.
__global__ void __launch_bounds__(32 * warps) strided_copy(const StridedCopy copy) {
  const std::int64_t rows = copy.extent[0] * copy.extent[1] * copy.extent[2];
  for (std::int64_t row = std::int64_t(blockIdx.x) * warps + threadIdx.x / 32; row < rows;
       row += std::int64_t(gridDim.x) * warps) {
    const std::int64_t head = row % copy.extent[2];
    const std::int64_t position = row / copy.extent[2] % copy.extent[1];
    const std::int64_t batch = row / copy.extent[2] / copy.extent[1];
    const std::uint16_t* from =
        copy.from + batch * copy.from_stride[0] + position * copy.from_stride[1] + head * copy.from_stride[2];
    std::uint16_t* to = copy.to + batch * copy.to_stride[0] + position * copy.to_stride[1] + head * copy.to_stride[2];
    for (int i = threadIdx.x % 32; i < copy.extent[3]; i += 32) to[i] = from[i * copy.from_stride[3]];
  }
}

}  // namespace

int launch_strided_copy(const StridedCopy& copy, fa3_stream stream) {
  const std::int64_t rows = copy.extent[0] * copy.extent[1] * copy.extent[2];
  const unsigned blocks = static_cast<unsigned>(std::min<std::int64_t>((rows + warps - 1) / warps, 1 << 16));
  StridedCopy argument = copy;
  void* arguments[] = {&argument};
  return cudaLaunchKernel(strided_copy_kernel(), dim3(blocks), dim3(32 * warps), arguments, 0, stream);
}

const void* strided_copy_kernel() { return reinterpret_cast<const void*>(&strided_copy); }

}  // namespace fa3::kernels
