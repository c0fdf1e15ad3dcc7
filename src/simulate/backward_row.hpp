// One row of the table of backward kernels, compiled for the simulator; see cmake/simulated_backward_row.cpp.in.
#pragma once

#include <string>

#include "attention/backward.hpp"
#include "hopper/sim/machine.hpp"
#include "kernels/backward_configs.hpp"

namespace fa3::simulator {

/// Runs the cluster that begins with CTA `index` of `count`; adds to `counters` and, if the options say so, `events`.
using BackwardRowRunner = void (*)(const attention::BackwardArguments& args, const Options& options, int index,
                                   int count, Counters& counters, std::vector<Event>& events);

template <attention::BackwardConfig config>
void run_backward_cluster(const attention::BackwardArguments& args, const Options& options, int index, int count,
                          Counters& counters, std::vector<Event>& events) {
  using Shared = attention::BackwardShared<config>;
  static_assert(sizeof(Shared) <= 227 * 1024);
  Cluster cluster(options, index, count, config.threads(), sizeof(Shared), config.cluster);
  const auto shared = [&]() -> Shared& { return *reinterpret_cast<Shared*>(cluster.shared()); };
  shared().for_each_named([&](const char* name, int i, auto& object) {
    cluster.name_region(&object, sizeof(object), std::string(name) + "[" + std::to_string(i) + "]");
  });
  cluster.name_warpgroup(0, "producer");
  for (int i = 0; i < config.consumer_warpgroups(); ++i) cluster.name_warpgroup(1 + i, "consumer " + std::to_string(i));
  cluster.run([&] { attention::backward<config>(shared(), args); });
  counters += cluster.counters();
  events.insert(events.end(), cluster.events().begin(), cluster.events().end());
}

/// Defined in the row's own source file.
template <int row>
BackwardRowRunner backward_runner_of_row();

}  // namespace fa3::simulator
