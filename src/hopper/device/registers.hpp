#pragma once

namespace fa3::hopper::inline device {

template <int count>
__device__ __forceinline__ void release_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count>
__device__ __forceinline__ void claim_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

__device__ __forceinline__ int recompute(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

__device__ __forceinline__ int in_uniform_register(int x) {
  return static_cast<int>(__reduce_or_sync(0xffffffffu, static_cast<unsigned>(x)));
}

}  // namespace fa3::hopper::inline device
