// fp64 attention, naive on purpose: the judge of all tests.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace fa3::reference {

struct Result {
  std::vector<double> o;    // [batch, seqlen_q, heads, d_v], dense
  std::vector<double> lse;  // [batch, heads, seqlen_q], dense; natural logarithm
};

/// fp64 throughout, straight from the definition; inputs are read in problem.dtype through their strides. Values of
/// e4m3 are multiplied by their scales, also in fp64.
/// `threads`: rows are spread over that many threads (1: the plain loop).
Result forward(const ForwardProblem& problem, int threads = 1);

/// One row of one head: `o` gets d_v values; returns LSE. For checking a sample of a large problem.
double forward_row(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row, double* o);

/// The same computation done plainly in the problem's precision: S, P and O rounded to the dtype, sums in f32, P =
/// exp(S - max) normalised before it is rounded. Its error against forward() is the yardstick of the tolerance.
/// `round_scores` = false leaves S in f32: the yardstick where S is exact in f32 and large, so that rounding it would
/// move the weights. Not for e4m3.
Result plain_forward(const ForwardProblem& problem, int threads = 1, bool round_scores = true);
/// O of one row of it, with S rounded.
void plain_forward_row(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row,
                       double* o);

/// O of the plain computation for e4m3, as Result::o: S with the tensor core's narrow accumulator, of f16 where q, k
/// and v allow it (ForwardProblem::narrow()), as is its factor; all other sums in f32, P = exp(S - max) rounded to e4m3
/// as f times what it is, O = P V / sum(P before it was rounded), rounded to problem.o_dtype. Of f = 2^8, 2^7.75, 2^7.5
/// and 2^7.25 the one whose element is farthest from `exact`: where weights lie between the values of e4m3 is chance,
/// and one f alone says little about a problem of few rows and keys.
std::vector<double> plain_e4m3_forward(const ForwardProblem& problem, const std::vector<double>& exact, int threads);

/// |softmax_scale| * max over the visible keys j of sum_c |q_c k_jc|, scales of e4m3 included: what the rounding errors
/// of a row's scores are relative to.
double score_magnitude(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row);

}  // namespace fa3::reference
