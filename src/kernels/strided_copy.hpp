// Copies a tensor of 16-bit elements between layouts; the way in and out for layouts TMA cannot address.
#pragma once

#include <cstdint>

#include "fa3/fa3.h"

namespace fa3::kernels {

/// [batch, sequence, head, feature]; strides in elements, the features of `to` contiguous.
struct StridedCopy {
  const std::uint16_t* from;
  std::uint16_t* to;
  std::int64_t extent[4];
  std::int64_t from_stride[4];
  std::int64_t to_stride[3];
};

/// Enqueues the copy. Returns a cudaError_t.
int launch_strided_copy(const StridedCopy& copy, fa3_stream stream);
/// The kernel, for loading it ahead of time.
const void* strided_copy_kernel();

}  // namespace fa3::kernels
