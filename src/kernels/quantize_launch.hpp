// The GPU side of the quantiser. In a library built without CUDA every call refuses (unavailable.cpp).
#pragma once

#include <cstddef>

#include "kernels/kernel.hpp"
#include "kernels/quantize_plan.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// Enqueues y and, unless they are given, its scales. `workspace` holds at least
/// plan_quantize(problem).workspace_bytes, 256-byte aligned, with any content. What is wrong with the call is thrown as
/// Error before anything is enqueued.
void quantize(const QuantizeProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream);

/// Loads the kernels into the current context. Throws Error.
void prepare_quantize();

/// attention::quantize for a plan's element, transform and shape (quantize.cu).
Kernel quantize_kernel(const QuantizePlan& plan);

}  // namespace fa3::kernels
