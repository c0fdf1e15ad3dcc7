// What consumer warps of all kernels do alike.
#pragma once

#include "attention/mask.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// Position in a ring of `length` buffers, and the parity of the round.
template <int length>
struct Cursor {
  int stage = 0;
  int phase = 0;

  HOPPER_FUNCTION void operator++() {
    if (++stage == length) {
      stage = 0;
      phase ^= 1;
    }
  }
};

/// This warp is done with what `empty` guards.
HOPPER_FUNCTION void release(hopper::Mbarrier& empty) {
  hopper::warp_sync();
  if (hopper::lane() == 0) empty.arrive();
}

/// The same for a buffer that every CTA of the cluster writes to.
template <int ctas>
HOPPER_FUNCTION void release_to_cluster(hopper::Mbarrier& empty) {
  if constexpr (ctas > 1) {
    hopper::warp_sync();
    if (hopper::lane() < ctas) empty.arrive_remote(hopper::lane());
  } else {
    release(empty);
  }
}

/// Four registers of an A operand: the accumulator's columns [column, column + 16) in 16 bits.
template <hopper::Element element, int columns>
HOPPER_FUNCTION void pack16(std::uint32_t (&fragment)[4], const hopper::Accumulator<columns>& acc, int column) {
  HOPPER_UNROLL
  for (int i = 0; i < 4; ++i)
    fragment[i] = hopper::pack2<element>(acc.value[column / 2 + 2 * i], acc.value[column / 2 + 2 * i + 1]);
}

/// The warp's 16 rows of an accumulator in 16 bits to rows [warp_row, warp_row + 16) of a tile, whose bytes are the
/// warp's own and free. Any of its lanes may then have TMA store them.
template <hopper::Element element, int rows, int columns>
HOPPER_FUNCTION void stage_rows(hopper::SharedTile<rows, columns>& staged, int warp_row,
                                const hopper::Accumulator<columns>& acc) {
  HOPPER_UNROLL
  for (int column = 0; column < columns; column += 16) {
    std::uint32_t fragment[4];
    pack16<element>(fragment, acc, column);
    hopper::store_matrix(staged, warp_row, column, fragment);
  }
  hopper::fence_async_shared();
  hopper::warp_sync();
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
