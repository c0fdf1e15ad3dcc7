// What a forward pass on the GPU will do, decided on the host from the problem alone: the row, and which tensors TMA
// cannot address and are therefore copied through the workspace.
#pragma once

#include <cstddef>

#include "kernels/configs.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// A tensor as the kernel sees it.
struct StagedTensor {
  TensorRef tensor;  // data is null if copied: it lies in the workspace then
  bool copied = false;
  std::size_t offset = 0;  // of the copy in the workspace, bytes
};

struct ForwardPlan {
  int row = -1;  // of forward_rows; -1: the row is another table's
  ForwardConfig config{};
  StagedTensor q, k, v, o;
  std::size_t workspace_bytes = 0;  // the scheduler's counter in the first bytes, then the copies
};

/// With `row` -1 the row dispatch takes, else that one. Throws Error: FA3_NOT_SUPPORTED if no kernel fits,
/// FA3_INVALID_ARGUMENT if `row` does not.
ForwardPlan plan_forward(const ForwardProblem& problem, int row = -1);
/// For a row of any table.
ForwardPlan plan_forward(const ForwardProblem& problem, const ForwardRow& row);

/// CTAs of a launch over `items`, each for a cluster of `cluster` CTAs, on a chip with `sm_count` SMs: one for each SM
/// that is not left free, as far as there are items, in whole clusters. Throws Error(FA3_INVALID_ARGUMENT) if
/// `sm_margin` leaves no SM.
int cta_count(int items, int cluster, int sm_count, int sm_margin);

/// Whether a tensor map can describe the tensor: 16-byte aligned base and strides below 2^40 bytes, no overlap except
/// repetition (stride 0) over heads or batch.
bool tma_can_address(const TensorRef& tensor);

}  // namespace fa3::kernels
