#include "simulate/forward.hpp"

#include <algorithm>

#include "hopper/sim/tensor_map.hpp"
#include "kernels/arguments.hpp"
#include "kernels/plan.hpp"
#include "of_rows.hpp"
#include "simulate/on_simulator.hpp"
#include "simulate/row.hpp"
#include "simulate/transpose_values.hpp"
#include "simulate/workspace.hpp"

namespace fa3::simulator {
namespace {

RowRunner runner(int row) {
  static constexpr auto runners =
      of_rows<kernels::forward_row_count>([]<int index>() { return &runner_of_row<index>; });
  return runners[std::size_t(row)]();
}

}  // namespace

ForwardRun forward(const ForwardProblem& problem, const Options& options, int row, int sm_count) {
  if (problem.o.empty()) return {};
  const kernels::ForwardPlan plan = kernels::plan_forward(problem, row);
  return forward_with(runner(plan.row), plan, problem, options, sm_count);
}

ForwardRun forward_with(RowRunner runner, kernels::ForwardPlan plan, const ForwardProblem& problem,
                        const Options& options, int sm_count) {
  ForwardRun run;
  if (problem.o.empty()) return run;
  const PoisonedWorkspace workspace = poisoned_workspace(plan.workspace_bytes);
  const attention::ForwardArguments args =
      kernels::forward_arguments(problem, plan, workspace.get(), sm_count, &encode);
  if (args.next_item != nullptr) *args.next_item = 0;
  copy_in(problem.q, plan.q);
  copy_in(problem.k, plan.k);
  if (plan.config.v_is_transposed) {
    transpose_values(kernels::transpose_arguments(problem, plan, &encode), options);
  } else {
    copy_in(problem.v, plan.v);
  }
  const int cluster = plan.config.cluster;
  run.ctas = kernels::cta_count(args.items(), cluster, sm_count, problem.sm_margin);
  for (int cta = 0; cta < run.ctas; cta += cluster) {
    Options own = options;
    own.trace = options.trace && cta == 0;
    runner(args, own, cta, run.ctas, run.counters, run.events);
  }
  copy_out(plan.o, problem.o);
  return run;
}

Status forward_as_device(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                         const std::optional<RowTensor>& lse, const ForwardOptions& options, Workspace workspace,
                         fa3_stream stream) {
  static const ForwardFunction device =
      on_simulator([](const ForwardProblem& problem) { forward(problem, Options{}); });
  return device(q, k, v, o, lse, options, workspace, stream);
}

double estimate_seconds(const ForwardProblem& problem) {
  return estimate_seconds(problem.flops(), problem.seqlen_q, problem.heads * problem.batch);
}

double estimate_seconds(double flops, std::int64_t tiled, std::int64_t sequences) {
  // Measured: products run at about 3 GFLOP/s on one core, everything else about doubles that; a tile costs its padding
  // too.
  const double tiles = std::max(1.0, double((tiled + 127) / 128)) * double(sequences);
  return flops * 2 / 3e9 + tiles * 0.02;
}

}  // namespace fa3::simulator
