// One row of the kernel table, compiled for the simulator; see cmake/simulated_row.cpp.in.
#pragma once

#include <string>

#include "attention/forward.hpp"
#include "hopper/sim/machine.hpp"
#include "kernels/configs.hpp"
#include "simulate/row_runner.hpp"

namespace fa3::simulator {

template <attention::ForwardConfig config>
void run_cluster(const attention::ForwardArguments& args, const Options& options, int index, int count,
                 Counters& counters, std::vector<Event>& events) {
  using Shared = attention::Shared<config>;
  static_assert(sizeof(Shared) <= kernels::shared_tile_bytes(config) + 1024 && sizeof(Shared) <= 227 * 1024);
  Cluster cluster(options, index, count, config.threads(), sizeof(Shared), config.cluster);
  const auto shared = [&]() -> Shared& { return *reinterpret_cast<Shared*>(cluster.shared()); };
  shared().for_each_named([&](const char* name, int i, auto& object) {
    cluster.name_region(&object, sizeof(object), std::string(name) + "[" + std::to_string(i) + "]");
  });
  if (config.producer_warpgroups() > 0) cluster.name_warpgroup(0, "producer");
  for (int i = 0; i < config.consumer_warpgroups(); ++i)
    cluster.name_warpgroup(config.producer_warpgroups() + i, "consumer " + std::to_string(i));
  cluster.run([&] { attention::forward<config>(shared(), args); });
  counters += cluster.counters();
  events.insert(events.end(), cluster.events().begin(), cluster.events().end());
}

/// The runner of a row of forward_rows, and of one of ablation_rows; defined in the row's own source file.
template <int row>
RowRunner runner_of_row();
template <int row>
RowRunner ablation_runner_of_row();

}  // namespace fa3::simulator
