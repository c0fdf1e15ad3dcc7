// Whether a pass is right, judged against fp64.
#pragma once

#include <cstdint>
#include <string>

#include "problem.hpp"
#include "reference/forward.hpp"

namespace fa3::check {

/// Of one tensor.
struct Measure {
  double error = 0;        // largest |value - fp64|
  double allowed = 0;      // largest that passes
  double plain_error = 0;  // largest |plain value - fp64|
};

struct Verdict {
  bool passed = true;
  bool backward = false;  // of which pass
  std::string message;    // what is wrong; "" if passed
  std::int64_t rows = 0;  // rows compared: of O, or of dQ, dK and dV
  Measure o;              // of the forward pass
  double lse_error = 0;   // largest |LSE - fp64|, of the forward pass
  Measure dq, dk, dv;     // of the backward pass

  /// The measures of what was compared, in words.
  std::string summary() const;
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
///     f32 4 times) plus 2 * max|round(round(fp64 + 0.3) - 0.3) - fp64|. With e4m3 the plain computation is
///     reference::plain_e4m3_forward().
///   - |LSE - fp64| <= 1e-4 + 2^-22 * (|LSE| + A), A = reference::score_magnitude: S is a sum in f32 of products that
///   may cancel. With e4m3 2^-9 * A.
///   - `exact_scores`: the scores are exact in f32. Then A = 0, and the plain computation does not round S.
///   - A row that sees no key has O = 0 and LSE = -inf exactly, and no other row has.
///   - A row whose own q, or whose head's k or v, holds a NaN or Inf must not be finite where fp64 is not, and is not
///   judged
///     further. Every other row must be as if those were not there.
/// `max_rows`: all rows are compared if there are no more, else that many, spread evenly, the first and last among
/// them. Whether elements were written is looked at everywhere.
Verdict judge(const ForwardProblem& problem, std::int64_t max_rows, int threads, bool exact_scores = false);

/// O and LSE of `problem` for judge() of a backward pass: fp64, or f32 on the CPU where fp64 would take minutes.
reference::Result forward_for_judging(const ForwardProblem& problem, int threads);

/// O and LSE as `problem` has them.
reference::Result given_forward(const BackwardProblem& problem);

/// Judges problem.dq, dk and dv; everything is in host memory, and they were poisoned before the run. `forward` is what
/// O and LSE ought to be.
///   - Every element of the three is written.
///   - For each of them |value - fp64| is within the same bound as O's, the plain computation being
///     reference::plain_backward().
///   - A row that sees no key has dQ = 0 exactly.
///   - dQ of a row is tainted if its q or dO, or its head's k or v, holds a NaN or Inf; dK and dV of a head if its k or
///   v
///     does, or q or dO of a row that sees a key. They are treated as in the forward pass.
/// `max_rows` is for the rows of dQ, and again for those of dK and dV.
Verdict judge(const BackwardProblem& problem, const reference::Result& forward, std::int64_t max_rows, int threads);

}  // namespace fa3::check
