#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

inline std::uint32_t shared_address(const void* pointer) {
  return simulator::Cluster::current().shared_address(pointer);
}

}  // namespace fa3::hopper::inline sim
