#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline void stmatrix_x4(std::uint32_t address, const std::uint32_t (&fragment)[4]) {
  simulator::Cluster::current().stmatrix(address, fragment, false);
}

inline void stmatrix_x4_transposed(std::uint32_t address, const std::uint32_t (&fragment)[4]) {
  simulator::Cluster::current().stmatrix(address, fragment, true);
}

inline void ldmatrix_x4(std::uint32_t (&fragment)[4], std::uint32_t address) {
  simulator::Cluster::current().ldmatrix(address, fragment, false);
}

inline void ldmatrix_x4_transposed(std::uint32_t (&fragment)[4], std::uint32_t address) {
  simulator::Cluster::current().ldmatrix(address, fragment, true);
}

}  // namespace fa3::hopper::inline sim
