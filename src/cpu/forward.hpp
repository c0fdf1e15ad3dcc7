// The CPU backend's forward pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd.hpp"
#include "problem.hpp"

namespace fa3::cpu {

/// Writes problem.o and, if wanted, problem.lse. f32 accumulation, tiled online softmax, on thread_limit() cores and
/// the widest instruction set of this machine. With e4m3 P is rounded to e4m3 as on the GPU (docs/numerics.md, FP8).
/// Every row's result is the same whatever the number of threads and the other rows. Host memory used beyond the
/// tensors is scratch_bytes() per thread: it does not grow with batch, heads or seqlen. Before anything is written it
/// may throw std::bad_alloc, or what thread_limit() throws.
void forward(const ForwardProblem& problem);

/// The same with the instruction set and the number of threads (>= 1) given.
void forward(const ForwardProblem& problem, const Simd& simd, int threads);

/// Working memory of one thread, in bytes.
std::size_t scratch_bytes(std::int64_t d, std::int64_t d_v);

}  // namespace fa3::cpu
