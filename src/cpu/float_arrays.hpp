// The memory a thread works in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "cpu/key_block.hpp"

namespace fa3::cpu {

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Arrays of floats in one piece of memory, each at a multiple of 64 bytes; zeros at first.
class FloatArrays {
 public:
  struct Part {
    float** array;  // is set
    std::int64_t floats;
  };
  FloatArrays(std::initializer_list<Part> parts) {
    std::int64_t lines = 0;
    for (const Part& part : parts) lines += lines_of(part);
    memory_.resize(static_cast<std::size_t>(lines));
    Line* next = memory_.data();
    for (const Part& part : parts) {
      *part.array = next->x;
      next += lines_of(part);
    }
  }
  std::size_t bytes() const { return memory_.size() * sizeof(Line); }

 private:
  struct alignas(64) Line {
    float x[max_lanes];
  };
  static std::int64_t lines_of(const Part& part) { return round_up(part.floats, max_lanes) / max_lanes; }

  std::vector<Line> memory_;
};

}  // namespace fa3::cpu
