// The __global__ wrapper of attention::transpose_values.
#include "attention/transpose_values.hpp"

#include "kernels/transpose_values.hpp"

namespace fa3::kernels {
namespace {

__global__ void __launch_bounds__(attention::transpose_threads)
    transpose_values(const __grid_constant__ attention::TransposeArguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  attention::transpose_values(*reinterpret_cast<attention::TransposeShared*>(memory), args);
}

}  // namespace

Kernel transpose_values_kernel() {
  return {reinterpret_cast<const void*>(&transpose_values), attention::transpose_threads,
          int(sizeof(attention::TransposeShared)), 0, 1};
}

}  // namespace fa3::kernels
