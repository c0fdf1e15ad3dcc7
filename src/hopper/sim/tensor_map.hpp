// What a simulated TMA unit keeps in hopper::TensorMap::opaque, with the encoder that checks it as the driver's does.
#pragma once

#include <cstdint>

#include "hopper/tensor_map.hpp"

namespace fa3::simulator {

/// As hopper::TensorMapSpec, in the form TMA sees it. Extents and coordinates innermost first.
hopper::TensorMap encode(const hopper::TensorMapSpec& spec);
hopper::TensorMapSpec decode(const hopper::TensorMap& map);

}  // namespace fa3::simulator
