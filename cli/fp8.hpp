// What the subcommands that compute in FP8 share: q, k and v in e4m3, and errors against fp64 on other inputs than the
// kernel's.
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

/// q, k and v of 16 bits (on cpu also f32) in e4m3, on their device; `rotate`: q and k. Throws Error.
QuantizedInputs quantize_inputs(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, Scaling scaling,
                                bool rotate);

/// Rows of O, d_v values each.
struct SampledRows {
  struct Row {
    std::int64_t batch, row, head;
  };
  std::vector<Row> rows;
  std::vector<double> o;
};

/// O from fp64 in at most `count` rows, spread evenly from the first to the last.
SampledRows exact_rows(const ForwardProblem& problem, std::int64_t count);
/// The same rows from the plain computation in 16 bits (S, P and O rounded to the type).
SampledRows plain_rows(const ForwardProblem& problem, const SampledRows& like);
/// The same rows of a result in host memory.
SampledRows rows_of(const TensorRef& o, fa3_dtype dtype, const SampledRows& like);

struct Errors {
  double rmse = 0, largest = 0;
  double relative = 0;  // RMSE over the root mean square of what is right
};
Errors errors(const SampledRows& got, const SampledRows& right);

}  // namespace fa3::cli
