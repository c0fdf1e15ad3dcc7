// The kernels of ablation_rows on the simulator.
#pragma once

#include "kernels/ablation.hpp"
#include "simulate/forward.hpp"

namespace fa3::simulator {

/// forward() with a row of ablation_rows.
ForwardRun forward_ablation(int row, const ForwardProblem& problem, const Options& options,
                            int sm_count = usual_sm_count);

}  // namespace fa3::simulator
