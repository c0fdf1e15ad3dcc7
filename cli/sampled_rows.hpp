// Errors of O in some of its rows, against fp64 on other inputs than the kernel's: those before they were rounded.
#pragma once

#include <cstdint>
#include <vector>

#include "fa3/fa3.h"
#include "problem.hpp"

namespace fa3::cli {

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
