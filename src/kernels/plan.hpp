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
  bool copied = false;     // or is made of it, as V^T
  std::size_t offset = 0;  // of the copy in the workspace, bytes
};

/// The tensor itself, or the place of a dense copy at the end of the workspace, which grows by it.
StagedTensor stage(const char* name, const TensorRef& tensor, std::size_t& workspace_bytes);

/// Rounded up to the alignment of what lies in the workspace.
std::size_t align(std::size_t bytes);

/// Throws Error(FA3_NOT_SUPPORTED) if a sequence is too long for the kernels' indices.
void check_lengths(const Problem& problem);
/// The same if there are too many tiles of `rows` rows of `length` in all heads; `what`: for the message.
void check_tiles(const char* what, std::int64_t length, std::int64_t rows, std::int64_t sequences);

struct ForwardPlan {
  int row = -1;  // of forward_rows; -1: the row is another table's
  ForwardConfig config{};
  StagedTensor q, k, v, o;          // v: of rows that take it so V^T, in the workspace
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

/// Whether a tensor map can describe the tensor: contiguous features, 16-byte aligned base and strides below 2^40
/// bytes, no overlap except repetition (stride 0) over heads or batch.
bool tma_can_address(const TensorRef& tensor);

/// A tensor of e4m3 as one of 16 bits, as which TMA reads it.
TensorRef pairs_of(TensorRef tensor);
/// The same of a d-major V: rows are features. The last pair may have one key only; the byte behind it is in its 16
/// bytes.
TensorRef pairs_of_keys(TensorRef v);

}  // namespace fa3::kernels
