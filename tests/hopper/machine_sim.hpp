// Running test kernels on the simulator; see machine.hpp.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "hopper/sim/machine.hpp"
#include "hopper/sim/tensor_map.hpp"

namespace fa3::simulator {

/// For GoogleTest's messages.
inline void PrintTo(const Options& options, std::ostream* out) {
  *out << name(options.completion) << ", seed " << options.seed;
}

}  // namespace fa3::simulator

namespace fa3::hopper_test {

template <class T>
class Buffer {
 public:
  explicit Buffer(std::vector<T> values) : values_(std::move(values)) {}
  Buffer(std::size_t count, const T& fill) : values_(count, fill) {}
  T* data() { return values_.data(); }
  std::vector<T> read() const { return values_; }

 private:
  std::vector<T> values_;
};

using simulator::encode;
using Mode = simulator::Options;

inline auto modes() {
  using simulator::Completion;
  return ::testing::Values(Mode{Completion::eager}, Mode{Completion::lazy}, Mode{Completion::random, 1},
                           Mode{Completion::random, 2}, Mode{Completion::random, 3});
}

struct ModeName {
  std::string operator()(const ::testing::TestParamInfo<Mode>& info) const {
    std::string name = simulator::name(info.param.completion);
    if (info.param.completion == simulator::Completion::random)
      name.append("_").append(std::to_string(info.param.seed));
    return name;
  }
};

class MachineTest : public ::testing::TestWithParam<Mode> {
 protected:
  template <class Kernel>
  void launch(const typename Kernel::Arguments& args, int ctas = 1, int cluster_ctas = 1) const {
    for (int i = 0; i < ctas; i += cluster_ctas) {
      simulator::Cluster cluster(GetParam(), i, ctas, Kernel::threads, sizeof(typename Kernel::Shared), cluster_ctas);
      cluster.run([&] { Kernel::run(*reinterpret_cast<typename Kernel::Shared*>(cluster.shared()), args); });
    }
  }
};

}  // namespace fa3::hopper_test
