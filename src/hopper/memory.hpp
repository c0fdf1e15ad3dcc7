// Ordinary accesses to shared memory. Kernels use these instead of assignments, so that every body sees them.
#pragma once

#include "hopper/backend.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// T: a small trivially copyable record, a multiple of 4 bytes: the grain at which the simulator looks for races.
template <class T>
HOPPER_FUNCTION void store_shared(T& to, const T& value);
template <class T>
HOPPER_FUNCTION T load_shared(const T& from);

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(memory.hpp)
