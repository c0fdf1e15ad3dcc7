// The GPU's backward kernels on the simulator: the same three launches, one simulated CTA or cluster after the other.
#pragma once

#include <vector>

#include "hopper/sim/machine.hpp"
#include "kernels/backward_plan.hpp"
#include "problem.hpp"
#include "simulate/backward_row.hpp"
#include "simulate/forward.hpp"

namespace fa3::simulator {

struct BackwardRun {
  Counters counters;          // of the main kernel, summed over the CTAs
  std::vector<Event> events;  // of its CTA 0, if options.trace
  int ctas = 0;               // of the main kernel
};

/// Runs the row dispatch would take (or `row`, an index of kernels::backward_rows) on a chip with `sm_count` SMs and
/// writes problem.dq, dk and dv, which are host memory. The workspace is poisoned, what TMA cannot address is copied,
/// as on the GPU. Throws fa3::Error for what the GPU would refuse and Failure for what a kernel did wrong.
BackwardRun backward(const BackwardProblem& problem, const Options& options, int row = -1,
                     int sm_count = usual_sm_count);

/// The same with a kernel compiled elsewhere, and the plan made for its row.
BackwardRun backward_with(BackwardRowRunner runner, kernels::BackwardPlan plan, const BackwardProblem& problem,
                          const Options& options, int sm_count = usual_sm_count);

/// fa3::backward with the table's kernels on the simulator as its device, as forward_as_device().
Status backward_as_device(const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                          const ConstTensor& o, const ConstRowTensor& lse, const Tensor& dq, const Tensor& dk,
                          const Tensor& dv, const BackwardOptions& options, Workspace workspace, fa3_stream stream);

/// How long backward() will take, roughly.
double estimate_seconds(const BackwardProblem& problem);

}  // namespace fa3::simulator
