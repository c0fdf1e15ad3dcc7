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
    namespace shape = attention::shape;
    if (plan.shape == shape::up_to_64) return f.template operator()<transform, shape::up_to_64>();
    if (plan.shape == shape::up_to_128) return f.template operator()<transform, shape::up_to_128>();
    if (plan.shape == shape::of_96) return f.template operator()<transform, shape::of_96>();
    if (plan.shape == shape::of_192) return f.template operator()<transform, shape::of_192>();
    if constexpr (transform != Transform::none)
      if (plan.shape == shape::order_16) return f.template operator()<transform, shape::order_16>();
    return f.template operator()<transform, shape::up_to_256>();
  };
  if (plan.transform == Transform::rotation) return with_shape.template operator()<Transform::rotation>();
  if (plan.transform == Transform::embedding) return with_shape.template operator()<Transform::embedding>();
  return with_shape.template operator()<Transform::none>();
}

}  // namespace fa3::kernels
