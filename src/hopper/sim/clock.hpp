// What a thread knows to have happened before: a vector clock whose components are counters that only grow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fa3::simulator {

class Clock {
 public:
  bool knows(std::size_t component, std::uint32_t count) const { return (*this)[component] >= count; }
  std::uint32_t operator[](std::size_t component) const { return component < count_.size() ? count_[component] : 0; }
  void raise(std::size_t component, std::uint32_t count) {
    if (component >= count_.size()) count_.resize(component + 1);
    count_[component] = std::max(count_[component], count);
  }
  /// Learns all that `other` knows.
  void join(const Clock& other) {
    if (count_.size() < other.count_.size()) count_.resize(other.count_.size());
    for (std::size_t i = 0; i < other.count_.size(); ++i) count_[i] = std::max(count_[i], other.count_[i]);
  }

 private:
  std::vector<std::uint32_t> count_;  // absent: 0
};

}  // namespace fa3::simulator
