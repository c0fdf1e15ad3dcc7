#pragma once

#include "hopper/device/wgmma_instructions.hpp"

namespace fa3::hopper::inline device {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int columns>
__device__ __forceinline__ void touch(Accumulator<columns>& acc) {
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) asm volatile("" : "+f"(acc.value[i])::"memory");
}

template <int columns>
__device__ __forceinline__ void touch(HalfAccumulator<columns>& acc) {
#pragma unroll
  for (int i = 0; i < columns / 4; ++i) asm volatile("" : "+r"(acc.value[i])::"memory");
}

template <int pending, class... Accumulators>
__device__ __forceinline__ void wgmma_wait(Accumulators&... readable) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  // Why: nothing ties the accumulators to the wait, and without this the compiler may move their readers above it.
  (touch(readable), ...);
}

}  // namespace fa3::hopper::inline device
