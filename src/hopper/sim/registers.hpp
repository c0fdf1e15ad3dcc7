#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

template <int count>
inline void release_registers() {
  simulator::Cluster::current().registers(count, false);
}

template <int count>
inline void claim_registers() {
  simulator::Cluster::current().registers(count, true);
}

inline int recompute(int x) { return x; }
inline int uniform(int x) { return simulator::Cluster::current().from_lane_0(x, "uniform"); }
inline int in_uniform_register(int x) { return simulator::Cluster::current().same_in_warp(x, "in_uniform_register"); }

}  // namespace fa3::hopper::inline sim
