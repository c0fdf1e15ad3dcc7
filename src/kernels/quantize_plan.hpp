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
  int threads = 0, ctas = 0, cluster = 1;
  std::size_t workspace_bytes = 0;  // the maxima of scales that more than one block shares, zeroed before the launch

  bool two_passes() const { return workspace_bytes > 0; }
};

/// Throws Error(FA3_NOT_SUPPORTED) if the tensor has too many blocks.
QuantizePlan plan_quantize(const QuantizeProblem& problem);

/// The kernel's arguments. With two passes those of the second; the first has step = maxima.
attention::QuantizeArguments quantize_arguments(const QuantizeProblem& problem, const QuantizePlan& plan,
                                                void* workspace);

}  // namespace fa3::kernels
