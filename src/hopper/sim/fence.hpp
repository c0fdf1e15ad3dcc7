#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline void fence_barrier_init() { simulator::Cluster::current().fence_barrier_init(); }
inline void fence_async_shared() { simulator::Cluster::current().fence_async_shared(); }
inline void fence_async_global() {}  // races in global memory are not modelled

}  // namespace fa3::hopper::inline sim
