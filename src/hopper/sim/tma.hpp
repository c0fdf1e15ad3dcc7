#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline void prefetch(const TensorMap&) {}

inline void tma_load(std::uint32_t address, const TensorMap& map, Coordinates at, Mbarrier& barrier) {
  simulator::Cluster::current().tma_load(address, map, at, barrier.state, 1u << simulator::Cluster::current().rank());
}

inline void tma_load_multicast(std::uint32_t address, const TensorMap& map, Coordinates at, Mbarrier& barrier,
                               std::uint16_t ctas) {
  simulator::Cluster::current().tma_load(address, map, at, barrier.state, ctas);
}

inline void tma_store(const TensorMap& map, Coordinates at, std::uint32_t address) {
  simulator::Cluster::current().tma_store(map, at, address, false);
}

inline void tma_reduce_add(const TensorMap& map, Coordinates at, std::uint32_t address) {
  simulator::Cluster::current().tma_store(map, at, address, true);
}

inline void load_bytes(void* to, const void* from, int bytes, Mbarrier& barrier) {
  simulator::Cluster::current().bulk_load(to, from, bytes, barrier.state);
}

inline void add_floats(float* to, const float* from, int bytes) {
  simulator::Cluster::current().bulk_add(to, from, bytes);
}

inline void store_commit() { simulator::Cluster::current().store_commit(); }

template <int pending>
inline void store_wait_read() {
  simulator::Cluster::current().store_wait_read(pending);
}

// A copy that has been read has been written, too.
template <int pending>
inline void store_wait() {
  simulator::Cluster::current().store_wait_read(pending);
}

}  // namespace fa3::hopper::inline sim
