#pragma once

#include "hopper/sim/cta.hpp"

namespace fa3::hopper::inline sim {

inline void prefetch(const TensorMap&) {}

inline void tma_load(std::uint32_t address, const TensorMap& map, Coordinates at, Mbarrier& barrier) {
  simulator::Cta::current().tma_load(address, map, at, barrier.state);
}

inline void tma_store(const TensorMap& map, Coordinates at, std::uint32_t address) {
  simulator::Cta::current().tma_store(map, at, address, false);
}

inline void tma_reduce_add(const TensorMap& map, Coordinates at, std::uint32_t address) {
  simulator::Cta::current().tma_store(map, at, address, true);
}

inline void store_commit() { simulator::Cta::current().store_commit(); }

template <int pending>
inline void store_wait_read() {
  simulator::Cta::current().store_wait_read(pending);
}

}  // namespace fa3::hopper::inline sim
