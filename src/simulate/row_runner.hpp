// A row's kernel on the simulator as its callers see it.
#pragma once

#include <vector>

#include "attention/arguments.hpp"
#include "hopper/sim/machine.hpp"

namespace fa3::simulator {

/// Runs CTA `index` of `count` and the others of its cluster, of which it is the first; adds to `counters` and, if the
/// options say so, `events`.
using RowRunner = void (*)(const attention::ForwardArguments& args, const Options& options, int index, int count,
                           Counters& counters, std::vector<Event>& events);

}  // namespace fa3::simulator
