#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline void add_to_global(float* to, const float (&value)[4]) {
  for (int i = 0; i < 4; ++i) to[i] += value[i];
}

inline void wait_for_count(const unsigned& counter, unsigned count) {
  simulator::Cluster::current().wait_for_count(counter, count);
}
inline void raise_count(unsigned& counter) { simulator::Cluster::current().raise_count(counter); }

inline void wait_for_previous_grid() {}
inline void let_next_grid_start() {}

}  // namespace fa3::hopper::inline sim
