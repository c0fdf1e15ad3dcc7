#pragma once

#include "hopper/sim/cta.hpp"

namespace fa3::hopper::inline sim {

inline void Mbarrier::init(int arrivals) { simulator::Cta::current().mbarrier_init(state, arrivals); }
inline void Mbarrier::arrive() { simulator::Cta::current().mbarrier_arrive(state, 0); }
inline void Mbarrier::arrive_expect_bytes(int bytes) { simulator::Cta::current().mbarrier_arrive(state, bytes); }
inline void Mbarrier::wait(int parity) { simulator::Cta::current().mbarrier_wait(state, parity); }

}  // namespace fa3::hopper::inline sim
