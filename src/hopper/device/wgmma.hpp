#pragma once

#include "hopper/device/address.hpp"
#include "hopper/device/wgmma_instructions.hpp"

namespace fa3::hopper::inline device {

/// Shared-memory matrix descriptor, 128-byte swizzle. PTX ISA, "Matrix Descriptor Format": bits 0-13 address / 16,
/// 16-29 leading offset / 16, 32-45 stride offset / 16, 62-63 swizzle mode (1: 128 bytes).
/// `stride_bytes`: from one group of eight rows to the next. `leading_bytes`: from one panel of 64 columns to the next, used only
/// where the operand's contiguous dimension is not the product's depth (V).
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address, int leading_bytes, int stride_bytes) {
  return std::uint64_t((address & 0x3ffffu) >> 4) | std::uint64_t(leading_bytes >> 4) << 16 |
         std::uint64_t(stride_bytes >> 4) << 32 | std::uint64_t(1) << 62;
}

/// Orders earlier register accesses before the products; needed before the first of a group.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

template <Element element, int a_rows, int depth, int columns>
__device__ __forceinline__ void issue_abt(Accumulator<columns>& acc, const SharedTile<a_rows, depth>& a, int first_row,
                                          const SharedTile<columns, depth>& b) {
  using A = SharedTile<a_rows, depth>;
  using B = SharedTile<columns, depth>;
  const std::uint32_t a_address = shared_address(&a) + first_row * A::row_bytes;
  const std::uint32_t b_address = shared_address(&b);
  constexpr int eight_rows = 8 * A::row_bytes;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    const int panel = k / A::panel_columns, within = 2 * (k % A::panel_columns);
    const std::uint64_t a_matrix = descriptor(a_address + panel * A::panel_bytes + within, 16, eight_rows);
    const std::uint64_t b_matrix = descriptor(b_address + panel * B::panel_bytes + within, 16, eight_rows);
    if (k == 0) {
      WgmmaSS<element, columns>::template issue<0>(acc.value, a_matrix, b_matrix);
    } else {
      WgmmaSS<element, columns>::template issue<1>(acc.value, a_matrix, b_matrix);
    }
  }
}

template <Element element, int depth, int columns>
__device__ __forceinline__ void issue_ab(Accumulator<columns>& acc, const OperandA<depth>& a, const SharedTile<depth, columns>& b) {
  using B = SharedTile<depth, columns>;
  const std::uint32_t b_address = shared_address(&b);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    WgmmaRS<element, columns>::issue(acc.value, a.value + k / 4,
                                     descriptor(b_address + k * B::row_bytes, B::panel_bytes, 8 * B::row_bytes));
  }
}

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int columns>
__device__ __forceinline__ void touch(Accumulator<columns>& acc) {
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) asm volatile("" : "+f"(acc.value[i])::"memory");
}

template <int pending, class... Accumulators>
__device__ __forceinline__ void wgmma_wait(Accumulators&... readable) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  // Why: nothing ties the accumulators to the wait, and without this the compiler may move their readers above it.
  (touch(readable), ...);
}

}  // namespace fa3::hopper::inline device
