#pragma once

namespace fa3::hopper::inline device {

__device__ __forceinline__ void NamedBarrier::sync() const {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void NamedBarrier::arrive() const {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace fa3::hopper::inline device
