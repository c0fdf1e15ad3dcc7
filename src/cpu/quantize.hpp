// The CPU backend's quantiser.
#pragma once

#include "problem.hpp"

namespace fa3::cpu {

/// Writes problem.y and, unless it is given, problem.scale, on thread_limit() cores. Every step is defined to the bit
/// (docs/numerics.md), so the result is that of the GPU. Before anything is written it may throw std::bad_alloc, or
/// what thread_limit() throws.
void quantize(const QuantizeProblem& problem);

}  // namespace fa3::cpu
