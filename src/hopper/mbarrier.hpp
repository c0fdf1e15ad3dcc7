// Barriers in shared memory that count arrivals and the bytes of asynchronous copies.
// PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
#pragma once

#include <cstdint>

#include "hopper/address.hpp"
#include "hopper/backend.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// A phase completes when `arrivals` threads have arrived and all expected bytes have landed; then the next one begins.
/// Waiting names the parity (0 or 1) of the phase: wait(p) returns once the phase of parity p has completed. On a fresh
/// barrier wait(1) therefore returns at once, which is how the first round of an "empty" barrier is granted.
struct Mbarrier {
  std::uint64_t state;

  /// By one thread, before anybody else touches the barrier; publish with fence_barrier_init() and cta_sync().
  HOPPER_FUNCTION void init(int arrivals);
  /// One arrival; releases this thread's earlier accesses to those who wait.
  HOPPER_FUNCTION void arrive();
  /// One arrival, and `bytes` more that must land before the phase completes.
  HOPPER_FUNCTION void arrive_expect_bytes(int bytes);
  /// One arrival on the barrier at this one's place in the plan of the cluster's CTA `rank`, which may be this CTA.
  /// What this thread has read may be overwritten by who waits there; it does not hand writes over (send_word,
  /// send_bytes and TMA do), for outside this CTA it releases nothing.
  HOPPER_FUNCTION void arrive_remote(int rank);
  /// Returns when the phase of this parity has completed; acquires.
  HOPPER_FUNCTION void wait(int parity);
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(mbarrier.hpp)
