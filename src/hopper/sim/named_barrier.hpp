#pragma once

#include "hopper/sim/cta.hpp"

namespace fa3::hopper::inline sim {

inline void NamedBarrier::sync() const { simulator::Cta::current().named_barrier(id, threads, true); }
inline void NamedBarrier::arrive() const { simulator::Cta::current().named_barrier(id, threads, false); }

}  // namespace fa3::hopper::inline sim
