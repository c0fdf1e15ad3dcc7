// What TMA needs to know about a tensor in global memory. Plain C++, shared by host code and kernels.
#pragma once

#include <cstdint>

#include "hopper/element.hpp"

namespace fa3::hopper {

/// Position in a tensor [batch, sequence, head, feature].
struct Coordinates {
  int feature, row, head, batch;
};

/// Tensor map over (feature, row, head, batch), 128-byte swizzle, boxes of 64 features x some rows. What lies outside the
/// tensor reads as zero and is not written. `opaque` is what the backend's encoder made of it (a CUtensorMap on the device).
/// Steps are 1, or 0 along a dimension the tensor repeats (stride 0): then every coordinate means index 0.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
  int head_step;
  int batch_step;
};

}  // namespace fa3::hopper
