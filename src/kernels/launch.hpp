// The GPU side of the library: choice of the kernel, workspace, launch. Without CUDA only the pure-host part exists.
#pragma once

#include <cstddef>
#include <string>

#include "attention/arguments.hpp"
#include "error.hpp"
#include "kernels/kernel.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// Throws Error(FA3_NO_DEVICE or FA3_CUDA_ERROR), with the reason in words, unless the current device runs the kernels.
void check_device();

/// Loads every kernel on CUDA device `device` and sets its attributes. Throws Error.
void init(int device);

/// Enqueues the forward pass. `workspace` holds at least forward_workspace_bytes(problem), 256-byte aligned. Throws
/// Error before anything is launched.
void forward(const ForwardProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream);

/// The same with another kernel than the plan's row, of the same shape, and memory for its stamps; for traced rows.
void forward_with(const ForwardKernel& kernel, const ForwardProblem& problem, void* workspace,
                  std::size_t workspace_bytes, fa3_stream stream, attention::Stamp* stamps);

}  // namespace fa3::kernels
