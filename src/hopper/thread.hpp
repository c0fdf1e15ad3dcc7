// Who am I: threads, warps, warpgroups (4 warps, the unit that issues wgmma), CTAs.
#pragma once

#include <cstdint>

#include "hopper/backend.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

inline constexpr int warp_threads = 32;
inline constexpr int warpgroup_threads = 128;

/// Lane of this thread in its warp, 0..31.
HOPPER_FUNCTION int lane();
/// This thread in its warpgroup, 0..127.
HOPPER_FUNCTION int thread_of_warpgroup();
/// Warp of this thread in its warpgroup, 0..3. The same register in all lanes, so that branches on it are uniform. By
/// the whole warp, as warpgroup(): a shuffle makes it so.
HOPPER_FUNCTION int warp_of_warpgroup();
/// Warpgroup of this thread in its CTA; uniform over the warp.
HOPPER_FUNCTION int warpgroup();
/// Index of this CTA in the (one-dimensional) grid, and the number of CTAs.
HOPPER_FUNCTION int cta();
HOPPER_FUNCTION int cta_count();
/// Cycles of this SM. PTX: %clock64.
HOPPER_FUNCTION std::uint64_t clock();
/// True in exactly one thread of the warp; by the whole warp. PTX: elect.sync.
HOPPER_FUNCTION bool elect_one();
/// Barrier over all threads of the CTA, and over the warp; both order memory.
HOPPER_FUNCTION void cta_sync();
HOPPER_FUNCTION void warp_sync();

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(thread.hpp)
