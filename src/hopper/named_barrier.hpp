// The CTA's 16 hardware barriers. PTX ISA, "bar{.cta}" / "barrier{.cta}".
#pragma once

#include "hopper/backend.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// Barrier `id` (1..15; 0 is cta_sync's), completed by `threads` threads, whole warps, that sync or arrive.
struct NamedBarrier {
  int id;
  int threads;

  /// Arrives and waits for the others; orders memory among them.
  HOPPER_FUNCTION void sync() const;
  /// Arrives and goes on.
  HOPPER_FUNCTION void arrive() const;
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(named_barrier.hpp)
