// What the quantiser will do on the GPU, decided on the host from the problem alone; the same for the simulator.
#pragma once

#include <cstddef>

#include "attention/quantize_arguments.hpp"
#include "hopper/element.hpp"
#include "problem.hpp"

namespace fa3::kernels {

struct QuantizePlan {
  hopper::Element element = hopper::Element::f16;
  attention::Transform transform = attention::Transform::none;
  int slots = 4;  // or 16, not without a transform
  // Neighbouring threads that share a row, and the slots of a thread that hold some of it.
  int lanes = 0, slots_used = 0;
  int threads = 0, ctas = 0, cluster = 1;
  std::size_t workspace_bytes = 0;  // the maxima of scales that more than one block shares, zeroed before the launch

  bool two_passes() const { return workspace_bytes > 0; }
};

/// Throws Error(FA3_NOT_SUPPORTED) if the tensor has too many blocks.
QuantizePlan plan_quantize(const QuantizeProblem& problem);

/// The kernel's arguments. With two passes those of the second; the first has step = maxima.
attention::QuantizeArguments quantize_arguments(const QuantizeProblem& problem, const QuantizePlan& plan,
                                                void* workspace);

/// Calls f.operator()<transform, slots>(), attention::quantize's instance for this plan, of either type.
template <class F>
decltype(auto) with_instance(const QuantizePlan& plan, const F& f) {
  using attention::Transform;
  const bool many = plan.slots == 16;
  if (plan.transform == Transform::rotation)
    return many ? f.template operator()<Transform::rotation, 16>() : f.template operator()<Transform::rotation, 4>();
  if (plan.transform == Transform::embedding)
    return many ? f.template operator()<Transform::embedding, 16>() : f.template operator()<Transform::embedding, 4>();
  return f.template operator()<Transform::none, 4>();
}

}  // namespace fa3::kernels
