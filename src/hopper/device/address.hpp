#pragma once

namespace fa3::hopper::inline device {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The shared::cluster address of the same place in the cluster's CTA `rank`.
__device__ __forceinline__ std::uint32_t remote_address(std::uint32_t address, int rank) {
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

}  // namespace fa3::hopper::inline device
