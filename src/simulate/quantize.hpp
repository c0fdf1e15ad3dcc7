// The GPU's quantiser on the simulator, one simulated CTA or cluster after the other.
#pragma once

#include "hopper/sim/machine.hpp"
#include "problem.hpp"

namespace fa3::simulator {

/// Writes problem.y and, unless they are given, its scales, in host memory. The workspace is poisoned. Throws
/// fa3::Error for what the GPU would refuse and Failure for what the kernel did wrong.
void quantize(const QuantizeProblem& problem, const Options& options);

}  // namespace fa3::simulator
