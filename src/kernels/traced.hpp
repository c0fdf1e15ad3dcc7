// The real timeline of one CTA on the GPU: rows of the table compiled once more with config.trace. Part of the fa3
// command, not of the library.
#pragma once

#include <vector>

#include "hopper/sim/machine.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// Copies the problem, which lies in host memory, to the current device, runs `row` of forward_rows (an f16 one) twice
/// and returns what CTA 0 did the second time; problem.o receives the result. Throws Error.
std::vector<simulator::Event> trace_forward(const ForwardProblem& problem, int row);

}  // namespace fa3::kernels
