// A tile of 16-bit elements in shared memory, laid out as TMA writes it and wgmma reads it.
#pragma once

#include <cstdint>

#include "hopper/backend.hpp"

namespace fa3::hopper {

/// Columns that a tile takes in shared memory: whole panels of 64.
constexpr int stored_columns(int columns) { return (columns + 63) / 64 * 64; }

/// rows x columns elements in panels of 64 columns. A panel row is 128 bytes = eight 16-byte chunks, and the 128-byte
/// swizzle puts chunk c of row r at chunk position c ^ (r % 8): rows of eight then fall into different banks. PTX ISA,
/// "Shared memory layout and swizzling"; CUDA driver API, CU_TENSOR_MAP_SWIZZLE_128B. Panels begin at multiples of 1024
/// bytes. Columns that the last panel has beyond the tile's are padding: moved by TMA, whose boxes are panels; zeros where
/// TMA loaded them.
template <int rows_, int columns_>
struct alignas(1024) SharedTile {
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int panel_columns = 64;
  static constexpr int panels = stored_columns(columns) / panel_columns;
  static constexpr int row_bytes = 2 * panel_columns;
  static constexpr int panel_bytes = rows * row_bytes;
  static constexpr int bytes = panels * panel_bytes;
  static_assert(columns % 16 == 0 && rows % 8 == 0);

  std::uint16_t element[panels][rows][panel_columns];

  /// Bytes from the tile's begin to 16-byte chunk `chunk` (eight columns) of `row`.
  static constexpr int chunk_offset(int row, int chunk) {
    return (chunk / 8) * panel_bytes + row * row_bytes + ((chunk % 8) ^ (row % 8)) * 16;
  }
};

inline namespace HOPPER_BACKEND {

/// Columns [first_column, first_column + columns) of a tile, whole panels or all of it, as a tile.
template <int columns, int rows, int all>
HOPPER_FUNCTION SharedTile<rows, columns>& panels_of(SharedTile<rows, all>& tile, int first_column) {
  static_assert(columns % SharedTile<rows, all>::panel_columns == 0 || columns == all);
  return reinterpret_cast<SharedTile<rows, columns>&>(
      tile.element[first_column / SharedTile<rows, all>::panel_columns]);
}

}  // namespace HOPPER_BACKEND

}  // namespace fa3::hopper
