// Whether a row's bits depend on the other rows of its tile.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "dtype.hpp"
#include "hopper/sim/machine.hpp"
#include "problem.hpp"

namespace fa3::test {

/// Every third row of q, [rows, d], 64 times as large.
template <class T>
std::vector<std::byte> with_other_neighbours(const ForwardProblem& problem) {
  const auto rows = std::size_t(problem.seqlen_q), d = std::size_t(problem.d);
  std::vector<std::byte> bytes(rows * d * sizeof(T));
  std::memcpy(bytes.data(), problem.q.data, bytes.size());
  for (std::size_t i = 0; i < rows * d; ++i) {
    if (i / d % 3 != 0) continue;
    T x;
    std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
    x = from_float<T>(64 * to_float(x));
    std::memcpy(bytes.data() + i * sizeof(T), &x, sizeof(T));
  }
  return bytes;
}

/// Runs `problem`, of one dense head, and again with other neighbours. Throws Failure if a bit of O or LSE of the other
/// rows changes.
inline void run_with_other_neighbours(const ForwardProblem& problem,
                                      const std::function<void(const ForwardProblem&)>& run) {
  run(problem);
  const auto rows = std::size_t(problem.seqlen_q), d_v = std::size_t(problem.d_v);
  std::vector<std::byte> other_q =
      with_input_dtype(problem.dtype, [&]<class T>(T) { return with_other_neighbours<T>(problem); });
  std::vector<std::uint16_t> other_o(rows * d_v);
  std::vector<float> other_lse(rows);
  ForwardProblem other = problem;
  other.q.data = other_q.data();
  other.o.data = other_o.data();
  other.lse = other_lse.data();
  run(other);
  for (std::size_t row = 0; row < rows; ++row)
    if (row % 3 != 0 && (problem.lse[row] != other_lse[row] ||
                         std::memcmp(static_cast<const std::uint16_t*>(problem.o.data) + row * d_v,
                                     other_o.data() + row * d_v, d_v * sizeof(std::uint16_t)) != 0))
      throw simulator::Failure("row " + std::to_string(row) + " depends on its neighbours");
}

}  // namespace fa3::test
