// attention::transpose_values on the simulator.
#pragma once

#include "attention/transpose_values.hpp"
#include "hopper/sim/machine.hpp"

namespace fa3::simulator {

/// All of its CTAs, one after the other.
inline void transpose_values(const attention::TransposeArguments& args, Options options) {
  options.trace = false;
  for (int cta = 0; cta < args.items; ++cta) {
    Cluster cluster(options, cta, args.items, attention::transpose_threads, sizeof(attention::TransposeShared), 1);
    cluster.run(
        [&] { attention::transpose_values(*reinterpret_cast<attention::TransposeShared*>(cluster.shared()), args); });
  }
}

}  // namespace fa3::simulator
