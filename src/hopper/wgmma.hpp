// Matrix products of a warpgroup on the tensor core, asynchronous. PTX ISA, "Asynchronous warpgroup level matrix instructions".
#pragma once

#include <cstdint>

#include "hopper/backend.hpp"
#include "hopper/element.hpp"
#include "hopper/shared_tile.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// f32 accumulator of 64 x columns, spread over the warpgroup's 128 threads. Thread t holds rows
/// 16 (t / 32) + (t % 32) / 4 + 8 r (r = 0, 1) and columns 8 j + 2 (t % 4) + e (e = 0, 1) as value[4 j + 2 r + e].
template <int columns_>
struct Accumulator {
  static constexpr int columns = columns_;
  float value[columns / 2];
};

/// 16-bit A operand of 64 x columns in registers; four registers per k16 step in the order of store_matrix.
template <int columns_>
struct OperandA {
  static constexpr int columns = columns_;
  std::uint32_t value[columns / 4];
};

/// Issues acc = A B^T over rows [first_row, first_row + 64) of `a` [.. x depth] and all of `b` [columns x depth].
/// Everything named is in use until a wgmma_wait that retires the group.
template <Element element, int a_rows, int depth, int columns>
HOPPER_FUNCTION void issue_abt(Accumulator<columns>& acc, const SharedTile<a_rows, depth>& a, int first_row,
                               const SharedTile<columns, depth>& b);

/// Issues acc += A B with A [64 x depth] in registers and `b` [depth x columns].
template <Element element, int depth, int columns>
HOPPER_FUNCTION void issue_ab(Accumulator<columns>& acc, const OperandA<depth>& a, const SharedTile<depth, columns>& b);

/// Closes the group of products issued since the last commit.
HOPPER_FUNCTION void wgmma_commit();

/// Waits until at most `pending` groups are in flight; the accumulators named may then be read.
template <int pending, class... Accumulators>
HOPPER_FUNCTION void wgmma_wait(Accumulators&... readable);

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include "hopper/device/wgmma.hpp"
