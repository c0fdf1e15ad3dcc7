// The GPU side of the backward pass. In a library built without CUDA every call refuses (unavailable.cpp).
#pragma once

#include <cstddef>

#include "kernels/backward_plan.hpp"
#include "kernels/kernel.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// Enqueues the backward pass: dq, dk and dv from the rest. `workspace` holds at least
/// plan_backward(problem).workspace_bytes, 256-byte aligned. What is wrong with the call is thrown as Error before
/// anything is launched; after FA3_CUDA_ERROR the gradients may be partly written.
void backward(const BackwardProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream);

/// Loads every kernel of the backward pass into the current context and sets its attributes. Throws Error.
void prepare_backward();

/// The kernels before and after the main one (backward_rows.cu).
Kernel before_backward_kernel(hopper::Element element);
Kernel after_backward_kernel(hopper::Element element);

}  // namespace fa3::kernels
