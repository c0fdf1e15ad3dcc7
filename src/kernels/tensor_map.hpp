// Tensor maps for the GPU's TMA unit.
#pragma once

#include "hopper/tensor_map.hpp"

namespace fa3::kernels {

/// Looks up the driver's encoder, so that the first encode_tensor_map() does not have to. Throws Error(FA3_NO_DEVICE)
/// without one.
void find_tensor_map_encoder();

/// hopper::TensorMap::opaque for a tensor in device memory; steps are left 0. Throws Error.
hopper::TensorMap encode_tensor_map(const hopper::TensorMapSpec& spec);

}  // namespace fa3::kernels
