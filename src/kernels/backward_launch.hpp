// The backward pass on the GPU.
#pragma once

#include <cstddef>

#include "error.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// Name of the kernel backward() runs. Pure host. Throws Error(FA3_NOT_SUPPORTED) if none fits. Never freed.
const char* backward_kernel_name(const BackwardProblem& problem);

/// Bytes of workspace backward() needs for exactly this problem. Pure host. Throws as backward_kernel_name().
std::size_t backward_workspace_bytes(const BackwardProblem& problem);

/// Enqueues the backward pass: all of dq, dk and dv is written, also where seqlen_q or seqlen_k is 0. `workspace` holds
/// at least backward_workspace_bytes(problem), 256-byte aligned. What is wrong with the call is thrown as Error before
/// anything is launched; after FA3_CUDA_ERROR dq, dk and dv may be partly written.
void backward(const BackwardProblem& problem, void* workspace, std::size_t workspace_bytes, fa3_stream stream);

}  // namespace fa3::kernels
