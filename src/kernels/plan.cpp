#include "kernels/plan.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "attention/transpose_arguments.hpp"
#include "error.hpp"

namespace fa3::kernels {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::int64_t bytes_each = 2;  // tensors of e4m3 are seen as pairs, of 16 bits

/// A dense tensor of the same elements; dimensions that repeat (stride 0 over heads or batch) stay repeated.
TensorRef packed_like(const char* name, const TensorRef& tensor, std::size_t& bytes) {
  TensorRef packed{nullptr, tensor.shape, {}};
  __int128 next = 1;
  for (const int i : {3, 2, 1, 0}) {
    const bool repeated = (i == 0 || i == 2) && tensor.stride[i] == 0;
    packed.stride[i] = repeated || tensor.shape[i] <= 1 ? 0 : std::int64_t(next);
    if (packed.stride[i] != 0) next *= tensor.shape[i];
    // An input may repeat its elements by overlap, and be far larger dense than it is in memory.
    if (next * bytes_each > __int128(1) << 46)
      throw Error(
          FA3_NOT_SUPPORTED,
          std::string(name) + ": TMA cannot address this layout, and a dense copy would take more than 2^46 bytes");
  }
  bytes = std::size_t(next * bytes_each);
  return packed;
}

}  // namespace

std::size_t align(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

StagedTensor stage(const char* name, const TensorRef& tensor, std::size_t& workspace_bytes) {
  StagedTensor staged{tensor, false, 0};
  if (tensor.empty() || tma_can_address(tensor)) return staged;
  std::size_t bytes = 0;
  staged.tensor = packed_like(name, tensor, bytes);
  staged.copied = true;
  staged.offset = workspace_bytes;
  workspace_bytes += align(bytes);
  return staged;
}

TensorRef pairs_of(TensorRef tensor) {
  tensor.shape[3] /= 2;
  for (const int i : {0, 1, 2}) tensor.stride[i] /= 2;
  return tensor;
}

TensorRef pairs_of_keys(TensorRef v) {
  std::swap(v.shape[1], v.shape[3]);
  std::swap(v.stride[1], v.stride[3]);
  ++v.shape[3];
  return pairs_of(v);
}

bool tma_can_address(const TensorRef& tensor) {
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) return false;
  if (tensor.shape[3] > 1 && tensor.stride[3] != 1) return false;
  // Dimensions that step, from the smallest stride: each must step over what lies inside it.
  std::array<int, 3> order = {0, 1, 2};
  std::sort(order.begin(), order.end(), [&](int a, int b) { return tensor.stride[a] < tensor.stride[b]; });
  std::int64_t inside = tensor.shape[3];
  for (const int i : order) {
    if (tensor.shape[i] <= 1) continue;
    const std::int64_t stride = tensor.stride[i];
    if (stride == 0 && i != 1) continue;
    if (stride < inside || stride * bytes_each % 16 != 0 || stride * bytes_each >= std::int64_t(1) << 40) return false;
    inside += (tensor.shape[i] - 1) * stride;
  }
  return true;
}

void check_lengths(const Problem& problem) {
  const std::int64_t longest = (std::int64_t(1) << 31) - 1024;
  for (const auto& [length, name] : {std::pair{problem.seqlen_q, "seqlen_q"}, {problem.seqlen_k, "seqlen_k"}})
    if (length > longest)
      throw Error(FA3_NOT_SUPPORTED, std::string(name) + " is " + std::to_string(length) +
                                         "; on cuda it must be at most " + std::to_string(longest));
}

void check_tiles(const char* what, std::int64_t length, std::int64_t rows, std::int64_t sequences) {
  // A length is below 2^31, so the product fits unless batch * heads is out of all proportion.
  const __int128 tiles = __int128((length + rows - 1) / rows) * sequences;
  if (tiles > (std::int64_t(1) << 30))
    throw Error(FA3_NOT_SUPPORTED,
                std::string("batch * ") + what + " / " + std::to_string(rows) + ") exceeds 2^30 tiles");
}

namespace {

static_assert(attention::transpose_tile == FA3_SCALE_ROWS);

/// Room in the workspace for V^T as the kernel takes it: [batch, d_v, kv_heads, keys], in pairs of keys, which are
/// whole blocks of FA3_SCALE_ROWS. Batch entries and heads that repeat (stride 0) stay repeated.
StagedTensor transposed(const TensorRef& v, std::size_t& workspace_bytes) {
  StagedTensor staged{v, false, 0};
  if (v.empty()) return staged;
  const std::int64_t features = v.shape[3];
  const std::int64_t pairs = (v.shape[1] + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS * FA3_SCALE_ROWS / 2;
  const bool batches = v.stride[0] != 0, heads = v.stride[2] != 0;
  const std::int64_t of_head = features * pairs, of_batch = (heads ? v.shape[2] : 1) * of_head;
  staged.tensor = {
      nullptr, {v.shape[0], features, v.shape[2], pairs}, {batches ? of_batch : 0, pairs, heads ? of_head : 0, 1}};
  staged.copied = true;
  staged.offset = workspace_bytes;
  workspace_bytes += align(std::size_t((batches ? v.shape[0] : 1) * of_batch * bytes_each));
  return staged;
}

}  // namespace

ForwardPlan plan_forward(const ForwardProblem& problem, int row) {
  // With a margin no row for long sequences: none with clusters, since the neighbour that a CTA needs may be what is
  // left free, and none that takes V^T, which a kernel on all SMs makes.
  const std::int64_t seqlen = problem.sm_margin > 0 ? 0 : std::min(problem.seqlen_q, problem.seqlen_k);
  if (row < 0)
    row = select_forward_row(problem.dtype, problem.d, problem.d_v, seqlen, problem.causal, problem.v_is_d_major(),
                             problem.narrow());
  if (row < 0)
    throw Error(FA3_NOT_SUPPORTED, "no kernel for this dtype with d = " + std::to_string(problem.d) +
                                       ", d_v = " + std::to_string(problem.d_v));
  ForwardPlan plan = plan_forward(problem, forward_rows[row]);
  plan.row = row;
  return plan;
}

ForwardPlan plan_forward(const ForwardProblem& problem, const ForwardRow& row) {
  ForwardPlan plan;
  plan.config = row.config;
  if (!fits(row.config, problem.dtype, problem.d, problem.d_v))
    throw Error(FA3_INVALID_ARGUMENT, std::string("row ") + row.name +
                                          " does not fit d = " + std::to_string(problem.d) +
                                          ", d_v = " + std::to_string(problem.d_v) + " and this dtype");
  if (problem.v_is_d_major() && !row.config.v_is_transposed)
    throw Error(FA3_INVALID_ARGUMENT, std::string("row ") + row.name + " does not take a V that is given d-major");
  check_lengths(problem);
  check_tiles("heads * ceil(seqlen_q", problem.seqlen_q, row.config.tile_q, problem.heads * problem.batch);
  if (row.config.v_is_transposed) {
    const std::int64_t panels = (problem.d_v + attention::transpose_tile - 1) / attention::transpose_tile;
    check_tiles("kv_heads * ceil(d_v / 128) * ceil(seqlen_k", problem.seqlen_k, attention::transpose_tile,
                panels * problem.kv_heads * problem.batch);
  }

  plan.workspace_bytes = align(sizeof(unsigned));
  const auto input = [&](const char* name, const TensorRef& tensor) {
    if (row.config.fp8()) return StagedTensor{pairs_of(tensor), false, 0};  // TMA can address it: api/checks.cpp
    return stage(name, tensor, plan.workspace_bytes);
  };
  plan.q = input("q", problem.q);
  plan.k = input("k", problem.k);
  plan.v = row.config.v_is_transposed ? transposed(problem.v, plan.workspace_bytes) : input("v", problem.v);
  plan.o = stage("o", problem.o, plan.workspace_bytes);
  return plan;
}

int cta_count(int items, int cluster, int sm_count, int sm_margin) {
  if (sm_margin >= sm_count)
    throw Error(FA3_INVALID_ARGUMENT, "sm_margin is " + std::to_string(sm_margin) +
                                          "; it must be below the device's number of SMs, " + std::to_string(sm_count));
  return cluster * std::min(items, std::max(1, (sm_count - sm_margin) / cluster));
}

}  // namespace fa3::kernels
