#include "simulate/ablation.hpp"

#include "of_rows.hpp"
#include "simulate/row.hpp"

namespace fa3::simulator {

ForwardRun forward_ablation(int row, const ForwardProblem& problem, const Options& options, int sm_count) {
  static constexpr auto runners =
      of_rows<kernels::ablation_row_count>([]<int index>() { return &ablation_runner_of_row<index>; });
  return forward_with(runners[std::size_t(row)](), kernels::plan_forward(problem, kernels::ablation_rows[row]), problem,
                      options, sm_count);
}

}  // namespace fa3::simulator
