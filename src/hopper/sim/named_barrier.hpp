#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline void NamedBarrier::sync() const { simulator::Cluster::current().named_barrier(id, threads, true); }
inline void NamedBarrier::arrive() const { simulator::Cluster::current().named_barrier(id, threads, false); }

}  // namespace fa3::hopper::inline sim
