// The GPU side of the library: choice of the kernel, workspace, launch. Without CUDA only the pure-host part exists.
#pragma once

#include <cstddef>
#include <string>

#include "error.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// Throws Error(FA3_NO_DEVICE or FA3_CUDA_ERROR), with the reason in words, unless the current device runs the kernels.
void check_device();

/// Loads every kernel on CUDA device `device` and sets its attributes. Throws Error.
void init(int device);

/// Enqueues the forward pass. `workspace` holds at least forward_workspace_bytes(problem), 256-byte aligned. Throws Error
/// before anything is launched.
void forward(const ForwardProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream);

}  // namespace fa3::kernels
