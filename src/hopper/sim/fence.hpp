#pragma once

#include "hopper/sim/cta.hpp"

namespace fa3::hopper::inline sim {

inline void fence_barrier_init() { simulator::Cta::current().fence_barrier_init(); }
inline void fence_async_shared() { simulator::Cta::current().fence_async_shared(); }

}  // namespace fa3::hopper::inline sim
