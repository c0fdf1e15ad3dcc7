#include "simulate/ablation.hpp"

#include <array>
#include <utility>

#include "simulate/row.hpp"

namespace fa3::simulator {
namespace {

template <int... rows>
constexpr auto runners_of(std::integer_sequence<int, rows...>) {
  return std::array<RowRunner (*)(), sizeof...(rows)>{&ablation_runner_of_row<rows>...};
}

}  // namespace

ForwardRun forward_ablation(int row, const ForwardProblem& problem, const Options& options, int sm_count) {
  static constexpr auto runners = runners_of(std::make_integer_sequence<int, kernels::ablation_row_count>());
  return forward_with(runners[std::size_t(row)](), kernels::plan_forward(problem, kernels::ablation_rows[row]), problem,
                      options, sm_count);
}

}  // namespace fa3::simulator
