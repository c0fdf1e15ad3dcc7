#pragma once

#include "hopper/sim/cta.hpp"

namespace fa3::hopper::inline sim {

inline void stmatrix_x4(std::uint32_t address, const std::uint32_t (&fragment)[4]) {
  simulator::Cta::current().stmatrix(address, fragment);
}

inline void ldmatrix_x4(std::uint32_t (&fragment)[4], std::uint32_t address) {
  simulator::Cta::current().ldmatrix(address, fragment);
}

}  // namespace fa3::hopper::inline sim
