// The GPU side of the library: devices and launches. In a library built without CUDA every call refuses
// (unavailable.cpp).
#pragma once

#include <cstddef>
#include <string>

#include "attention/arguments.hpp"
#include "error.hpp"
#include "kernels/configs.hpp"
#include "kernels/kernel.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// Throws Error(FA3_NO_DEVICE or FA3_CUDA_ERROR), with the reason in words, unless the current device runs the kernels.
void check_device();

/// Loads every kernel on CUDA device `device` and sets its attributes. Throws Error.
void init(int device);

/// Enqueues the forward pass. `workspace` holds at least plan_forward(problem).workspace_bytes, 256-byte aligned. What
/// is wrong with the call is thrown as Error before anything is launched; after FA3_CUDA_ERROR O and LSE may be partly
/// written.
void forward(const ForwardProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream);

/// Before the first forward_with() of a kernel: throws Error unless the current device can run it.
void prepare_kernel(const Kernel& kernel, const char* name);

/// forward() with a kernel that is none of the library's, made from `row` (but for config.trace: then `stamps` is
/// memory for its stamps).
void forward_with(const Kernel& kernel, const ForwardRow& row, const ForwardProblem& problem, void* workspace,
                  std::size_t workspace_bytes, fa3_stream stream, attention::Stamp* stamps = nullptr);

}  // namespace fa3::kernels
