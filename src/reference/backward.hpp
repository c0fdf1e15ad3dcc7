// fp64 gradients, naive on purpose: the judge of all tests of the backward pass.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"
#include "reference/forward.hpp"

namespace fa3::reference {

struct Gradients {
  std::vector<double> dq, dk, dv;  // dense, with the extents of q, k and v
};

/// The forward pass over the q, k and v of a backward one, without its outputs.
ForwardProblem forward_of(const BackwardProblem& problem);

/// fp64 throughout, straight from the definition: with P = exp(scale * q k - LSE) and D = dO O, dV = P^T dO,
/// dS = P * (dO V^T - D), dQ = scale * dS K, dK = scale * dS^T Q. Inputs are read in problem.dtype through their
/// strides, but O and LSE are `forward`'s: those of forward(forward_of(problem)), or of a longer key sequence of which
/// k and v are a part. problem.o, lse, dq, dk and dv are not used. A row that sees no key or has an LSE of -inf gives
/// nothing.
Gradients backward(const BackwardProblem& problem, const Result& forward, int threads = 1);

/// The same computation done plainly in the problem's precision, from its o and lse: P, dS and the gradients rounded to
/// the dtype, sums in f32. Its error against backward() is the yardstick of the tolerance.
Gradients plain_backward(const BackwardProblem& problem, int threads = 1);

/// The same row by row, for checking a sample of a large problem. What it is made of must outlive it.
class RowGradients {
 public:
  RowGradients(const BackwardProblem& problem, const Result& forward);  // of backward()
  explicit RowGradients(const BackwardProblem& problem);                // of plain_backward()

  /// One row of one head: `dq` gets d values.
  void query(std::int64_t batch, std::int64_t head, std::int64_t row, double* dq) const;
  /// One key of one key/value head: `dk` gets d values, `dv` d_v.
  void key(std::int64_t batch, std::int64_t kv_head, std::int64_t key, double* dk, double* dv) const;

 private:
  const BackwardProblem& p_;
  const Result* forward_ = nullptr;  // null: plain
  std::vector<double> delta_;        // D [batch, heads, seqlen_q]; in the plain computation f32
};

}  // namespace fa3::reference
