// Register fragments to and from shared memory. PTX ISA, "stmatrix", "ldmatrix".
#pragma once

#include <cstdint>

#include "hopper/address.hpp"
#include "hopper/backend.hpp"
#include "hopper/shared_tile.hpp"
#include "hopper/thread.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// The warp stores four 8 x 8 matrices of 16-bit elements. Lane t holds elements (t / 4, 2 (t % 4) + {0, 1}) of each,
/// and gives the address of row t % 8 (16 bytes, aligned) of matrix t / 8. stmatrix.x4.
HOPPER_FUNCTION void stmatrix_x4(std::uint32_t address, const std::uint32_t (&fragment)[4]);
/// As stmatrix_x4, but every matrix is transposed on the way: the address of a lane is that of column t % 8.
HOPPER_FUNCTION void stmatrix_x4_transposed(std::uint32_t address, const std::uint32_t (&fragment)[4]);
/// The inverse of stmatrix_x4: the warp loads four matrices, addresses and fragments as in stmatrix_x4. ldmatrix.x4.
HOPPER_FUNCTION void ldmatrix_x4(std::uint32_t (&fragment)[4], std::uint32_t address);
/// As ldmatrix_x4, but every matrix is transposed on the way: lane t gets elements (2 (t % 4) + {0, 1}, t / 4).
HOPPER_FUNCTION void ldmatrix_x4_transposed(std::uint32_t (&fragment)[4], std::uint32_t address);

/// This lane's row address of a 16 x 16 block at (row, column) of the tile.
template <int rows, int columns>
HOPPER_FUNCTION std::uint32_t block_address(const SharedTile<rows, columns>& tile, int row, int column) {
  return shared_address(&tile) + SharedTile<rows, columns>::chunk_offset(row + lane() % 16, column / 8 + lane() / 16);
}

/// The warp stores a 16 x 16 block of 16-bit elements to rows [row, row + 16), columns [column, column + 16) of the
/// tile. fragment[0..3]: the quarters top left, bottom left, top right, bottom right. That is one k16 step of a wgmma A
/// operand, and a packed accumulator has the same order.
template <int rows, int columns>
HOPPER_FUNCTION void store_matrix(SharedTile<rows, columns>& tile, int row, int column,
                                  const std::uint32_t (&fragment)[4]) {
  stmatrix_x4(block_address(tile, row, column), fragment);
}

/// The warp stores the transpose of a 16 x 16 block: its element (i, j) to row `row` + j, column `column` + i of the
/// tile. The fragment has the order of store_matrix.
template <int rows, int columns>
HOPPER_FUNCTION void store_matrix_transposed(SharedTile<rows, columns>& tile, int row, int column,
                                             const std::uint32_t (&fragment)[4]) {
  const int i = lane() % 8 + lane() / 16 * 8, chunk = column / 8 + lane() / 8 % 2;
  stmatrix_x4_transposed(shared_address(&tile) + SharedTile<rows, columns>::chunk_offset(row + i, chunk), fragment);
}

/// The inverse of store_matrix.
template <int rows, int columns>
HOPPER_FUNCTION void load_matrix(std::uint32_t (&fragment)[4], const SharedTile<rows, columns>& tile, int row,
                                 int column) {
  ldmatrix_x4(fragment, block_address(tile, row, column));
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(matrix_move.hpp)
