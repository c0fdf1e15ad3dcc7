// The CPU backend's backward pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd.hpp"
#include "problem.hpp"

namespace fa3::cpu {

/// Writes problem.dq, dk and dv. f32 accumulation, on thread_limit() cores and the widest instruction set of this
/// machine. Every row's result is the same whatever the number of threads, so it is always deterministic. Host memory
/// used beyond the tensors: gradient_scratch_bytes() per thread, and two floats for each row of each head. Before
/// anything is written it may throw std::bad_alloc, or what thread_limit() throws.
void backward(const BackwardProblem& problem);

/// The same with the instruction set and the number of threads (>= 1) given.
void backward(const BackwardProblem& problem, const Simd& simd, int threads);

/// Working memory of one thread, in bytes.
std::size_t gradient_scratch_bytes(std::int64_t d, std::int64_t d_v);

}  // namespace fa3::cpu
