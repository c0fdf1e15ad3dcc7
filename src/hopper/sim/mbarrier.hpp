#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline void Mbarrier::init(int arrivals) { simulator::Cluster::current().mbarrier_init(state, arrivals); }
inline void Mbarrier::arrive() { simulator::Cluster::current().mbarrier_arrive(state, 0); }
inline void Mbarrier::arrive_expect_bytes(int bytes) { simulator::Cluster::current().mbarrier_arrive(state, bytes); }
inline void Mbarrier::arrive_remote(int rank) { simulator::Cluster::current().mbarrier_arrive_remote(state, rank); }
inline void Mbarrier::wait(int parity) { simulator::Cluster::current().mbarrier_wait(state, parity); }

}  // namespace fa3::hopper::inline sim
