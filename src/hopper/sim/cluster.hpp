#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline int cluster_rank() { return simulator::Cluster::current().rank(); }
inline int cluster_size() { return simulator::Cluster::current().size(); }
inline int cluster() { return simulator::Cluster::current().cta() / cluster_size(); }
inline int cluster_count() { return simulator::Cluster::current().cta_count() / cluster_size(); }
inline void cluster_sync() { simulator::Cluster::current().sync_cluster(); }

inline void send_word(std::uint32_t& to, std::uint32_t value, Mbarrier& barrier, int rank) {
  simulator::Cluster::current().send_word(to, value, barrier.state, rank);
}

inline void send_bytes(void* to, const void* from, int bytes, Mbarrier& barrier, int rank) {
  simulator::Cluster::current().send_bytes(to, from, bytes, barrier.state, rank);
}

}  // namespace fa3::hopper::inline sim
