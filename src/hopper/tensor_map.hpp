// What TMA needs to know about a tensor in global memory. Plain C++, shared by host code and kernels.
#pragma once

#include <cstdint>

#include "hopper/element.hpp"

namespace fa3::hopper {

/// Position in a tensor [batch, sequence, head, feature].
struct Coordinates {
  int feature, row, head, batch;
};

/// Tensor map over (feature, row, head, batch), boxes of 64 features x some rows. What lies outside the tensor reads as
/// zero and is not written. `opaque` is what the backend's encoder made of a TensorMapSpec (a CUtensorMap on the
/// device). Steps are 1, or 0 along a dimension the tensor repeats (stride 0): then every coordinate means index 0.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
  int head_step;
  int batch_step;
};

/// Input of the encoders. Dimensions innermost first: feature, row, head, batch. CUDA driver API,
/// cuTensorMapEncodeTiled.
struct TensorMapSpec {
  const char* name;  // for messages
  void* data;        // 16-byte aligned
  Element element;
  std::uint64_t extent[4];
  std::uint64_t stride_bytes[3];  // of row, head, batch; multiples of 16 below 2^40
  std::uint32_t box_features;     // times 2 bytes: at most the swizzle's width
  std::uint32_t box_rows;         // at most 256
  int swizzle_bytes;              // 32, 64 or 128
};

}  // namespace fa3::hopper
