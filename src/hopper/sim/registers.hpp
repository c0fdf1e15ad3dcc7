#pragma once

#include "hopper/sim/cta.hpp"

namespace fa3::hopper::inline sim {

template <int count>
inline void release_registers() {
  simulator::Cta::current().registers(count, false);
}

template <int count>
inline void claim_registers() {
  simulator::Cta::current().registers(count, true);
}

}  // namespace fa3::hopper::inline sim
