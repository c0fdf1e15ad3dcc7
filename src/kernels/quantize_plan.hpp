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
  int shape = 0;                    // of attention::quantize_shapes
  int items = 0;                    // blocks of 128 rows; a grid may have fewer CTAs, not more
  std::size_t workspace_bytes = 0;  // the maxima of scales that more than one block shares, zeroed before the launch

  const attention::QuantizeShape& sharing() const { return attention::quantize_shapes[shape]; }
  bool two_passes() const { return workspace_bytes > 0; }
};

/// Throws Error(FA3_NOT_SUPPORTED) if the tensor has too many blocks.
QuantizePlan plan_quantize(const QuantizeProblem& problem);

/// The kernel's arguments. With two passes those of the second; the first has step = maxima.
attention::QuantizeArguments quantize_arguments(const QuantizeProblem& problem, const QuantizePlan& plan,
                                                void* workspace);

/// Calls f.operator()<transform, shape>(), attention::quantize's instance for this plan, of either type.
template <class F>
decltype(auto) with_instance(const QuantizePlan& plan, const F& f) {
  using attention::Transform;
  const auto with_shape = [&]<Transform transform>() {
    if (plan.shape == 0) return f.template operator()<transform, 0>();
    if (plan.shape == 1) return f.template operator()<transform, 1>();
    if (plan.shape == 4) return f.template operator()<transform, 4>();
    if (plan.shape == 5) return f.template operator()<transform, 5>();
    if constexpr (transform != Transform::none)
      if (plan.shape == 3) return f.template operator()<transform, 3>();
    return f.template operator()<transform, 2>();
  };
  if (plan.transform == Transform::rotation) return with_shape.template operator()<Transform::rotation>();
  if (plan.transform == Transform::embedding) return with_shape.template operator()<Transform::embedding>();
  return with_shape.template operator()<Transform::none>();
}

}  // namespace fa3::kernels
