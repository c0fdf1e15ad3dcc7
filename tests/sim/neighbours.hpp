// Whether a row's bits depend on the other rows of its tile.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "dtype.hpp"
#include "hopper/sim/machine.hpp"
#include "problem.hpp"

namespace fa3::test {

/// Runs `problem`, of one dense head, and again with every third row of q 64 times as large. Throws Failure if a bit
/// of O or LSE of the other rows changes.
inline void run_with_other_neighbours(const ForwardProblem& problem,
                                      const std::function<void(const ForwardProblem&)>& run) {
  run(problem);
  const auto rows = std::size_t(problem.seqlen_q), d = std::size_t(problem.d), d_v = std::size_t(problem.d_v);
  const auto* q = static_cast<const std::uint16_t*>(problem.q.data);
  std::vector<std::uint16_t> other_q(q, q + rows * d), other_o(rows * d_v);
  std::vector<float> other_lse(rows);
  for (std::size_t i = 0; i < other_q.size(); ++i) {
    if (i / d % 3 != 0) continue;
    if (problem.dtype == FA3_F16)
      other_q[i] = from_float<Half>(64 * to_float(Half{other_q[i]})).bits;
    else
      other_q[i] = from_float<Bfloat16>(64 * to_float(Bfloat16{other_q[i]})).bits;
  }
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
