// What a simulated TMA unit keeps in hopper::TensorMap::opaque, with the encoder that checks it as the driver's does.
#pragma once

#include <cstdint>

#include "hopper/tensor_map.hpp"

namespace fa3::simulator {

/// Throws fa3::Error(FA3_INVALID_ARGUMENT), naming the tensor, for what cuTensorMapEncodeTiled would refuse.
hopper::TensorMap encode(const hopper::TensorMapSpec& spec);
hopper::TensorMapSpec decode(const hopper::TensorMap& map);

}  // namespace fa3::simulator
