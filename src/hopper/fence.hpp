// Orderings between ordinary accesses and the asynchronous proxy (TMA, wgmma). PTX ISA, "membar / fence".
#pragma once

#include "hopper/backend.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// Makes this thread's Mbarrier::init visible to the asynchronous proxy.
HOPPER_FUNCTION void fence_barrier_init();
/// Makes this thread's ordinary writes to shared memory (stmatrix too) visible to TMA and wgmma that are ordered after
/// it.
HOPPER_FUNCTION void fence_async_shared();

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(fence.hpp)
