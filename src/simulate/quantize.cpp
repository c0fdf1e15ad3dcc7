#include "simulate/quantize.hpp"

#include <algorithm>
#include <cstring>

#include "attention/quantize.hpp"
#include "kernels/quantize_plan.hpp"
#include "simulate/workspace.hpp"

namespace fa3::simulator {
namespace {

/// Few, so that a CTA has more than one block.
constexpr int most_ctas = 3;

using Body = void (*)(attention::QuantizeShared& shared, const attention::QuantizeArguments& args);

template <hopper::Element element>
Body body_of(const kernels::QuantizePlan& plan) {
  return kernels::with_instance(plan, []<attention::Transform transform, int shape>() -> Body {
    return &attention::quantize<element, transform, attention::quantize_shapes[shape]>;
  });
}

}  // namespace

void quantize(const QuantizeProblem& problem, const Options& options) {
  const kernels::QuantizePlan plan = kernels::plan_quantize(problem);
  const Body body =
      plan.element == hopper::Element::f16 ? body_of<hopper::Element::f16>(plan) : body_of<hopper::Element::bf16>(plan);
  const PoisonedWorkspace workspace = poisoned_workspace(plan.workspace_bytes);
  attention::QuantizeArguments args = kernels::quantize_arguments(problem, plan, workspace.get());
  const int ctas = std::min(plan.items, most_ctas);
  const auto run = [&] {
    for (int cta = 0; cta < ctas; ++cta) {
      Cluster cluster(options, cta, ctas, plan.sharing().threads(), sizeof(attention::QuantizeShared), 1);
      cluster.run([&] { body(*reinterpret_cast<attention::QuantizeShared*>(cluster.shared()), args); });
    }
  };
  if (plan.two_passes()) {
    std::memset(workspace.get(), 0, plan.workspace_bytes);
    const attention::QuantizeStep last = args.step;
    args.step = attention::QuantizeStep::maxima;
    run();
    args.step = last;
  }
  run();
}

}  // namespace fa3::simulator
