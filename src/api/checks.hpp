// Argument checks: everything that can be said about a call without touching a device.
#pragma once

#include <cstdint>
#include <vector>

#include "error.hpp"
#include "problem.hpp"

namespace fa3::api {

/// The problem `params` describes, defaults filled in. Throws Error(FA3_INVALID_ARGUMENT or FA3_NOT_SUPPORTED) that
/// names the argument, what was given and what is allowed. Reads nothing through the data pointers.
ForwardProblem check_forward(const fa3_forward_params* params);
BackwardProblem check_backward(const fa3_backward_params* params);
QuantizeProblem check_quantize(const fa3_quantize_params* params);

/// Throws Error(FA3_NO_DEVICE) unless a GPU of compute capability major.minor runs the kernels (9.0: wgmma and
/// setmaxnreg exist there and nowhere else). `name` is for the message.
void check_capability(int major, int minor, const char* name);

/// A set of bytes: base + sum of index * stride over all indices below the extents, strides in bytes, >= 0.
struct ByteBox {
  struct Dimension {
    std::int64_t extent;
    std::int64_t stride;
  };
  std::uintptr_t base = 0;
  std::vector<Dimension> dimensions;  // none of extent 0
};

/// Whether the two sets share a byte. Exact for layouts that occur in practice; a pathological interleaving it cannot
/// decide cheaply counts as sharing.
bool bytes_overlap(const ByteBox& a, const ByteBox& b);

}  // namespace fa3::api
