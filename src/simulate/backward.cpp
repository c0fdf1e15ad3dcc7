#include "simulate/backward.hpp"

#include "attention/backward_rows.hpp"
#include "hopper/sim/tensor_map.hpp"
#include "of_rows.hpp"
#include "simulate/on_simulator.hpp"
#include "simulate/workspace.hpp"

namespace fa3::simulator {
namespace {

BackwardRowRunner runner(int row) {
  static constexpr auto runners =
      of_rows<kernels::backward_row_count>([]<int index>() { return &backward_runner_of_row<index>; });
  return runners[std::size_t(row)]();
}

/// A kernel without shared memory.
template <class Body>
void run_rows(int ctas, Options options, const Body& body) {
  options.trace = false;
  for (int cta = 0; cta < ctas; ++cta) Cluster(options, cta, ctas, attention::row_threads, 16).run(body);
}

}  // namespace

BackwardRun backward(const BackwardProblem& problem, const Options& options, int row, int sm_count) {
  const kernels::BackwardPlan plan = kernels::plan_backward(problem, row);
  return backward_with(runner(plan.row), plan, problem, options, sm_count);
}

BackwardRun backward_with(BackwardRowRunner runner, kernels::BackwardPlan plan, const BackwardProblem& problem,
                          const Options& options, int sm_count) {
  BackwardRun run;
  const PoisonedWorkspace workspace = poisoned_workspace(plan.workspace_bytes);
  const kernels::BackwardLaunch launch = kernels::backward_launch(problem, plan, workspace.get(), sm_count, &encode);
  copy_in(problem.d_o, plan.d_o);
  copy_in(problem.q, plan.q);
  copy_in(problem.k, plan.k);
  copy_in(problem.v, plan.v);
  const bool f16 = plan.config.element == hopper::Element::f16;
  run_rows(launch.before_ctas, options, [&] {
    f16 ? attention::before_backward<hopper::Element::f16>(launch.before)
        : attention::before_backward<hopper::Element::bf16>(launch.before);
  });
  run.ctas = launch.main_ctas;
  for (int cta = 0; cta < run.ctas; cta += plan.config.cluster) {
    Options own = options;
    own.trace = options.trace && cta == 0;
    runner(launch.main, own, cta, run.ctas, run.counters, run.events);
  }
  run_rows(launch.after_ctas, options, [&] {
    f16 ? attention::after_backward<hopper::Element::f16>(launch.after)
        : attention::after_backward<hopper::Element::bf16>(launch.after);
  });
  copy_out(plan.dk, problem.dk);
  copy_out(plan.dv, problem.dv);
  return run;
}

Status backward_as_device(const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                          const ConstTensor& o, const ConstRowTensor& lse, const Tensor& dq, const Tensor& dk,
                          const Tensor& dv, const BackwardOptions& options, Workspace workspace, fa3_stream stream) {
  static const BackwardFunction device =
      backward_on_simulator([](const BackwardProblem& problem) { backward(problem, Options{}); });
  return device(d_o, q, k, v, o, lse, dq, dk, dv, options, workspace, stream);
}

double estimate_seconds(const BackwardProblem& problem) {
  return estimate_seconds(problem.flops(), problem.seqlen_k, problem.heads * problem.batch);
}

}  // namespace fa3::simulator
