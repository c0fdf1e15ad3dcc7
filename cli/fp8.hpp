// q, k and v in e4m3, for the subcommands that compute in FP8.
#pragma once

#include <vector>

#include "check/device.hpp"
#include "fa3/fa3.hpp"
#include "problem.hpp"

namespace fa3::cli {

/// A tensor in e4m3 and its scales, in memory of its own.
struct Quantized {
  check::Buffer values, scales;
  ConstTensor view;
  ScalesView scale;
};

struct QuantizedInputs {
  Quantized q, k, v;

  /// `options` with the scales.
  ForwardOptions with_scales(ForwardOptions options) const;
  /// `problem`, of the inputs in 16 bits, as one of e4m3 in the host memory `host`, which this fills.
  ForwardProblem in_host(const ForwardProblem& problem, std::vector<std::vector<std::byte>>& host) const;
};

/// q, k and v of 16 bits (on cpu also f32) in e4m3, on their device; `rotate`: q and k; `narrow`: as
/// small as sums in f16 need them (FA3_E4M3_NARROW_QK and _V), as the scales will say. Throws Error.
QuantizedInputs quantize_inputs(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, Scaling scaling,
                                bool rotate, bool narrow);

}  // namespace fa3::cli
