// A forward pass of a kernel compiled in the test itself: another config than the table's, or a mutated source.
#pragma once

#include <vector>

#include "hopper/sim/tensor_map.hpp"
#include "kernels/arguments.hpp"
#include "kernels/plan.hpp"
#include "simulate/row.hpp"

namespace fa3::test {

/// One cluster (or CTA) with this config does all tiles of a problem that TMA can address; `row` is the table's row of the same
/// tiles.
template <attention::ForwardConfig config>
void run_one_cluster(const ForwardProblem& problem, int row, const simulator::Options& options) {
  kernels::ForwardPlan plan = kernels::plan_forward(problem, row);
  alignas(256) unsigned next_item = 0;
  const attention::ForwardArguments args =
      kernels::forward_arguments(problem, plan, &next_item, 1, &simulator::encode);
  simulator::Counters counters;
  std::vector<simulator::Event> events;
  simulator::run_cluster<config>(args, options, 0, config.cluster, counters, events);
}

}  // namespace fa3::test
