#pragma once

#include <cstdint>

namespace fa3::hopper::inline device {

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % warp_threads); }

__device__ __forceinline__ int thread_of_warpgroup() { return static_cast<int>(threadIdx.x % warpgroup_threads); }

// Why the shuffle: the compiler then knows that the value is the same in the whole warp and keeps it in a uniform
// register.
__device__ __forceinline__ int warp_of_warpgroup() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / warp_threads), 0) % 4;
}

__device__ __forceinline__ int warpgroup() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / warpgroup_threads), 0);
}

__device__ __forceinline__ int cta() { return static_cast<int>(blockIdx.x); }
__device__ __forceinline__ int cta_count() { return static_cast<int>(gridDim.x); }

__device__ __forceinline__ std::uint64_t clock() {
  std::uint64_t cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

__device__ __forceinline__ void cta_sync() { __syncthreads(); }
__device__ __forceinline__ void warp_sync() { __syncwarp(); }

}  // namespace fa3::hopper::inline device
