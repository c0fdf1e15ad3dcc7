#include "simulate/forward.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "hopper/sim/tensor_map.hpp"
#include "kernels/arguments.hpp"
#include "kernels/plan.hpp"
#include "simulate/on_simulator.hpp"
#include "simulate/row.hpp"

namespace fa3::simulator {
namespace {

template <int... rows>
constexpr auto runners_of(std::integer_sequence<int, rows...>) {
  return std::array<RowRunner (*)(), sizeof...(rows)>{&runner_of_row<rows>...};
}
RowRunner runner(int row) {
  static constexpr auto runners = runners_of(std::make_integer_sequence<int, kernels::forward_row_count>());
  return runners[std::size_t(row)]();
}

/// What strided_copy does on the GPU: the elements of `packed`'s distinct positions.
void copy(const TensorRef& from, const TensorRef& to, const TensorRef& packed) {
  const auto extent = [&](std::size_t i) { return packed.stride[i] == 0 ? 1 : packed.shape[i]; };
  for (std::int64_t b = 0; b < extent(0); ++b)
    for (std::int64_t s = 0; s < extent(1); ++s)
      for (std::int64_t h = 0; h < extent(2); ++h) {
        const auto row = [&](const TensorRef& tensor) {
          return static_cast<std::uint16_t*>(tensor.data) + b * tensor.stride[0] + s * tensor.stride[1] +
                 h * tensor.stride[2];
        };
        std::memcpy(row(to), row(from), std::size_t(packed.shape[3]) * sizeof(std::uint16_t));
      }
}

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(256)); }
};

}  // namespace

ForwardRun forward(const ForwardProblem& problem, const Options& options, int row, int sm_count) {
  if (problem.o.empty()) return {};
  const kernels::ForwardPlan plan = kernels::plan_forward(problem, row);
  return forward_with(runner(plan.row), plan, problem, options, sm_count);
}

ForwardRun forward_with(RowRunner runner, kernels::ForwardPlan plan, const ForwardProblem& problem,
                        const Options& options, int sm_count) {
  ForwardRun run;
  if (problem.o.empty()) return run;
  const std::unique_ptr<std::byte, AlignedDelete> workspace(
      static_cast<std::byte*>(::operator new(plan.workspace_bytes, std::align_val_t(256))));
  std::memset(workspace.get(), 0xff, plan.workspace_bytes);
  const attention::ForwardArguments args =
      kernels::forward_arguments(problem, plan, workspace.get(), sm_count, &encode);
  if (args.next_item != nullptr) *args.next_item = 0;
  if (plan.q.copied) copy(problem.q, plan.q.tensor, plan.q.tensor);
  if (plan.k.copied) copy(problem.k, plan.k.tensor, plan.k.tensor);
  if (plan.v.copied) copy(problem.v, plan.v.tensor, plan.v.tensor);
  const int cluster = plan.config.cluster;
  run.ctas = kernels::cta_count(args.order.count(), cluster, sm_count, problem.sm_margin);
  for (int cta = 0; cta < run.ctas; cta += cluster) {
    Options own = options;
    own.trace = options.trace && cta == 0;
    runner(args, own, cta, run.ctas, run.counters, run.events);
  }
  if (plan.o.copied) copy(plan.o.tensor, problem.o, plan.o.tensor);
  return run;
}

Status forward_as_device(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                         const std::optional<RowTensor>& lse, const ForwardOptions& options, Workspace workspace,
                         fa3_stream stream) {
  static const ForwardFunction device =
      on_simulator([](const ForwardProblem& problem) { forward(problem, Options{}); });
  return device(q, k, v, o, lse, options, workspace, stream);
}

double estimate_seconds(const ForwardProblem& problem) {
  // Measured: products run at about 3 GFLOP/s on one core, everything else about doubles that; a tile costs its padding
  // too.
  const double tiles = std::max(1.0, double((problem.seqlen_q + 127) / 128)) * double(problem.heads * problem.batch);
  return problem.flops() * 2 / 3e9 + tiles * 0.02;
}

}  // namespace fa3::simulator
