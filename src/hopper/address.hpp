// Addresses in the CTA's shared memory.
#pragma once

#include <cstdint>

#include "hopper/backend.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// The 32-bit address inside the shared window that instructions and descriptors take.
HOPPER_FUNCTION std::uint32_t shared_address(const void* pointer);

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(address.hpp)
