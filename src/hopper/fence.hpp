// Orderings between ordinary accesses and the asynchronous proxy (TMA, wgmma). PTX ISA, "membar / fence".
#pragma once

#include "hopper/backend.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// Makes this thread's Mbarrier::init visible to the asynchronous proxy.
HOPPER_FUNCTION void fence_barrier_init();
/// Makes ordinary writes to shared memory (stmatrix too) that happened before it, this thread's or others', visible to
/// TMA and wgmma that are ordered after it. So either the writer has it, before it arrives somewhere, or the reader,
/// after it has waited there. PTX ISA, "Proxy-preserved base causality order".
HOPPER_FUNCTION void fence_async_shared();
/// The same for global memory.
HOPPER_FUNCTION void fence_async_global();

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(fence.hpp)
