#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline int lane() { return simulator::Cluster::current().thread() % warp_threads; }
inline int thread_of_warpgroup() { return simulator::Cluster::current().thread() % warpgroup_threads; }
inline int warp_of_warpgroup() {
  return simulator::Cluster::current().from_lane_0(simulator::Cluster::current().thread() / warp_threads % 4,
                                                   "warp_of_warpgroup");
}
inline int warpgroup() {
  return simulator::Cluster::current().from_lane_0(simulator::Cluster::current().thread() / warpgroup_threads,
                                                   "warpgroup");
}
inline int cta() { return simulator::Cluster::current().cta(); }
inline int cta_count() { return simulator::Cluster::current().cta_count(); }
inline std::uint64_t clock() { return simulator::Cluster::current().clock(); }
inline bool elect_one() { return simulator::Cluster::current().elect_one(); }
inline void cta_sync() { simulator::Cluster::current().sync_cta(); }
inline void warp_sync() { simulator::Cluster::current().sync_warp(); }

}  // namespace fa3::hopper::inline sim
