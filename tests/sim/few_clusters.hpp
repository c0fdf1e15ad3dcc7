// A forward pass of a kernel compiled in the test itself: another config than the table's, or a mutated source.
#pragma once

#include <vector>

#include "hopper/sim/tensor_map.hpp"
#include "kernels/arguments.hpp"
#include "kernels/plan.hpp"
#include "simulate/row.hpp"
#include "simulate/transpose_values.hpp"
#include "simulate/workspace.hpp"

namespace fa3::test {

/// `clusters` clusters (or CTAs) with this config do all items of a problem that TMA can address; `row` is the table's
/// row of the same tiles.
template <attention::ForwardConfig config>
void run_clusters(const ForwardProblem& problem, int row, const simulator::Options& options, int clusters) {
  kernels::ForwardPlan plan = kernels::plan_forward(problem, row);
  const simulator::PoisonedWorkspace workspace = simulator::poisoned_workspace(plan.workspace_bytes);
  const int ctas = clusters * config.cluster;
  const attention::ForwardArguments args =
      kernels::forward_arguments(problem, plan, workspace.get(), ctas, &simulator::encode);
  if (args.next_item != nullptr) *args.next_item = 0;
  if constexpr (config.v_is_transposed)
    simulator::transpose_values(kernels::transpose_arguments(problem, plan, &simulator::encode), options);
  simulator::Counters counters;
  std::vector<simulator::Event> events;
  for (int cta = 0; cta < ctas; cta += config.cluster)
    simulator::run_cluster<config>(args, options, cta, ctas, counters, events);
}

}  // namespace fa3::test
