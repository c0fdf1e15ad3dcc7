// Whether a forward pass is right, judged against fp64.
#pragma once

#include <cstdint>
#include <string>

#include "problem.hpp"

namespace fa3::check {

struct Verdict {
  bool passed = true;
  std::string message;     // what is wrong; "" if passed
  std::int64_t rows = 0;   // rows compared
  double o_error = 0;      // largest |O - fp64|
  double o_allowed = 0;    // largest |O - fp64| that passes
  double plain_error = 0;  // largest |plain O - fp64|
  double lse_error = 0;    // largest |LSE - fp64|

  void fail(const std::string& why) {
    passed = false;
    message = why;
  }
};

/// Bits of a NaN that no computation makes: outputs are filled with it before a run, to see what was not written.
std::uint32_t poison(fa3_dtype dtype);

/// Fills `elements` elements with the poison of `dtype`.
void fill_poison(void* data, fa3_dtype dtype, std::int64_t elements);

/// Judges problem.o and, if it is not null, problem.lse; everything is in host memory, and the outputs were poisoned
/// before the run.
///   - Every element of both is written.
///   - |O - fp64| is at most 2 times the largest error of the plain computation (S, P and O rounded to the dtype; in
///   f32 4
///     times) plus 2 * max|round(round(fp64 + 0.3) - 0.3) - fp64|.
///   - |LSE - fp64| <= 1e-4 + 2^-22 * (|LSE| + A), A = reference::score_magnitude: S is a sum in f32 of products that may cancel.
///   - `exact_scores`: the scores are exact in f32. Then A = 0, and the plain computation does not round S.
///   - A row that sees no key has O = 0 and LSE = -inf exactly, and no other row has.
///   - A row whose own q, or whose head's k or v, holds a NaN or Inf must not be finite where fp64 is not, and is not
///   judged
///     further. Every other row must be as if those were not there.
/// `max_rows`: all rows are compared if there are no more, else that many, spread evenly, the first and last among
/// them. Whether elements were written is looked at everywhere.
Verdict judge(const ForwardProblem& problem, std::int64_t max_rows, int threads, bool exact_scores = false);

}  // namespace fa3::check
