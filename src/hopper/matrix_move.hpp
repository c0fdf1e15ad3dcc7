// Register fragments to shared memory. PTX ISA, "stmatrix".
#pragma once

#include <cstdint>

#include "hopper/backend.hpp"
#include "hopper/shared_tile.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// The warp stores a 16 x 16 block of 16-bit elements to rows [row, row + 16), columns [column, column + 16) of the tile.
/// fragment[0..3]: the 8 x 8 quarters top left, bottom left, top right, bottom right; in each, lane t holds elements
/// (t / 4, 2 (t % 4) + {0, 1}). That is one k16 step of a wgmma A operand, and a packed accumulator has the same order.
template <int rows, int columns>
HOPPER_FUNCTION void store_matrix(SharedTile<rows, columns>& tile, int row, int column, const std::uint32_t (&fragment)[4]);

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include "hopper/device/matrix_move.hpp"
