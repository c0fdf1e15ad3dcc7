// The CPU backend's forward pass.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/key_block.hpp"
#include "problem.hpp"

namespace fa3::cpu {

/// Writes problem.o and, if wanted, problem.lse. f32 accumulation, tiled online softmax, on thread_limit() cores and
/// the widest instruction set of this machine. Every row's result is the same whatever the number of threads and the
/// other rows. Host memory used beyond the tensors is scratch_bytes() per thread: it does not grow with batch, heads or
/// seqlen. Before anything is written it may throw std::bad_alloc, or what thread_limit() throws.
void forward(const ForwardProblem& problem);

/// The same with the instruction set and the number of threads (>= 1) given.
void forward(const ForwardProblem& problem, const Simd& simd, int threads);

/// Working memory of one thread, in bytes.
std::size_t scratch_bytes(std::int64_t d, std::int64_t d_v);

/// The instruction sets of this build that this machine can run, widest first; never empty.
std::span<const Simd> usable_simds();

/// Name of the instruction set forward() uses on this machine, for example "avx2".
const char* simd_name();

/// "cpu_" and that name; never freed.
const char* kernel_name();

}  // namespace fa3::cpu
