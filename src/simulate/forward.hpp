// The GPU's forward kernels on the simulator: the same rows, the same arguments, one simulated cluster of CTAs after
// the other.
#pragma once

#include <vector>

#include "attention/arguments.hpp"
#include "fa3/fa3.hpp"
#include "hopper/sim/machine.hpp"
#include "kernels/plan.hpp"
#include "problem.hpp"
#include "simulate/row_runner.hpp"

namespace fa3::simulator {

struct ForwardRun {
  Counters counters;          // summed over the CTAs
  std::vector<Event> events;  // of CTA 0, if options.trace
  int ctas = 0;
};

/// SMs of the simulated chip where nothing else is said: more than one, so that CTAs share the tiles.
inline constexpr int usual_sm_count = 2;

/// Runs the row dispatch would take (or `row`, an index of kernels::forward_rows) on a chip with `sm_count` SMs and
/// writes problem.o and problem.lse, which are host memory. The workspace is poisoned, what TMA cannot address is
/// copied, as on the GPU. Throws fa3::Error for what the GPU would refuse and Failure for what the kernel did wrong.
ForwardRun forward(const ForwardProblem& problem, const Options& options, int row = -1, int sm_count = usual_sm_count);

/// The same with a kernel of any table, and the plan made for its row.
ForwardRun forward_with(RowRunner runner, kernels::ForwardPlan plan, const ForwardProblem& problem,
                        const Options& options, int sm_count = usual_sm_count);

/// fa3::forward with the table's kernels on the simulator as its device (see on_simulator()); lazy completion,
/// usual_sm_count SMs.
Status forward_as_device(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                         const std::optional<RowTensor>& lse, const ForwardOptions& options, Workspace workspace,
                         fa3_stream stream);

/// How long forward() will take, roughly: to be said before it starts.
double estimate_seconds(const ForwardProblem& problem);
/// The same of any pass with so many floating-point operations, whose CTAs have tiles of the length `tiled`.
double estimate_seconds(double flops, std::int64_t tiled, std::int64_t sequences);

}  // namespace fa3::simulator
