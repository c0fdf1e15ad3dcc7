// Generic address to the 32-bit address inside the shared window that PTX instructions take.
#pragma once

#include <cstdint>

namespace fa3::hopper::inline device {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace fa3::hopper::inline device
