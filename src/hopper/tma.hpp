// Tensor copies between global and shared memory by the TMA unit. PTX ISA, "cp.async.bulk.tensor".
#pragma once

#include "hopper/address.hpp"
#include "hopper/backend.hpp"
#include "hopper/cluster.hpp"
#include "hopper/mbarrier.hpp"
#include "hopper/shared_tile.hpp"
#include "hopper/tensor_map.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// Fetches the map into the descriptor cache; one thread.
HOPPER_FUNCTION void prefetch(const TensorMap& map);
/// One box of the map, to or from shared memory at `address`; one thread. A box may reach over the tensor's edges or
/// lie outside, but on an H200 it is an illegal instruction, which the PTX manual does not say, if at.feature is not a
/// multiple of 8 (16 bytes), or if a store has a negative coordinate.
HOPPER_FUNCTION void tma_load(std::uint32_t address, const TensorMap& map, Coordinates at, Mbarrier& barrier);
HOPPER_FUNCTION void tma_store(const TensorMap& map, Coordinates at, std::uint32_t address);
/// tma_store that adds to global memory, element by element, rounded to nearest even. PTX ISA,
/// "cp.reduce.async.bulk.tensor".
HOPPER_FUNCTION void tma_reduce_add(const TensorMap& map, Coordinates at, std::uint32_t address);
/// tma_load into every CTA of the cluster whose bit is set in `ctas`: to the place of `address` in its plan, counted on
/// the barrier at the place of `barrier`.
HOPPER_FUNCTION void tma_load_multicast(std::uint32_t address, const TensorMap& map, Coordinates at, Mbarrier& barrier,
                                        std::uint16_t ctas);

/// `bytes` bytes from global to shared memory, both 16-byte aligned and a multiple of 16; they count on `barrier`. One
/// thread. PTX ISA, "cp.async.bulk".
HOPPER_FUNCTION void load_bytes(void* to, const void* from, int bytes, Mbarrier& barrier);

/// Starts adding `bytes` of f32 from shared to global memory, each number atomically, in no particular order; one
/// thread, after fence_async_shared() by those who wrote them, or by this thread once it knows that they have. Both
/// addresses and `bytes` are multiples of 16. Belongs to this thread's open store group. PTX ISA,
/// "cp.reduce.async.bulk".
HOPPER_FUNCTION void add_floats(float* to, const float* from, int bytes);

/// Closes this thread's store group.
HOPPER_FUNCTION void store_commit();
/// Waits until all but the latest `pending` store groups of this thread have read their shared memory.
template <int pending>
HOPPER_FUNCTION void store_wait_read();
/// The same until they have written to global memory, where this thread then sees it.
template <int pending>
HOPPER_FUNCTION void store_wait();

/// Starts loading a whole tile; one thread. `at` is the tile's first element, the map's box must have `rows` rows.
/// All Tile::bytes, zeros and padding included, count on `barrier`.
template <int rows, int columns>
HOPPER_FUNCTION void load_tile(SharedTile<rows, columns>& tile, const TensorMap& map, Coordinates at,
                               Mbarrier& barrier) {
  using Tile = SharedTile<rows, columns>;
  HOPPER_UNROLL
  for (int panel = 0; panel < Tile::panels; ++panel) {
    tma_load(shared_address(&tile) + panel * Tile::panel_bytes, map,
             {at.feature + panel * Tile::panel_columns, at.row, at.head * map.head_step, at.batch * map.batch_step},
             barrier);
  }
}

/// Starts loading this CTA's share of a tile into all `ctas` CTAs of the cluster; one thread of each. The share of rank
/// r is rows [r * rows / ctas, (r + 1) * rows / ctas), and the map's box must have rows / ctas rows. `at` is the whole
/// tile's first element, and the bytes of the whole tile count on each CTA's own `barrier`.
template <int ctas, int rows, int columns>
HOPPER_FUNCTION void load_tile_multicast(SharedTile<rows, columns>& tile, const TensorMap& map, Coordinates at,
                                         Mbarrier& barrier) {
  using Tile = SharedTile<rows, columns>;
  constexpr int share = rows / ctas;
  static_assert(rows % ctas == 0 && share % 8 == 0, "the swizzle repeats every eight rows");
  const int first_row = cluster_rank() * share;
  HOPPER_UNROLL
  for (int panel = 0; panel < Tile::panels; ++panel) {
    tma_load_multicast(shared_address(&tile) + panel * Tile::panel_bytes + first_row * Tile::row_bytes, map,
                       {at.feature + panel * Tile::panel_columns, at.row + first_row, at.head * map.head_step,
                        at.batch * map.batch_step},
                       barrier, (1 << ctas) - 1);
  }
}

/// Starts storing rows [first_row, first_row + box rows of the map) of a tile to `at`; one thread, after
/// fence_async_shared() by those who wrote them. Rows and columns outside the tensor are dropped; so must be the tile's
/// padding, so the tensor may not be wider than the tile. Belongs to this thread's open store group.
template <int rows, int columns>
HOPPER_FUNCTION void store_rows(const TensorMap& map, Coordinates at, const SharedTile<rows, columns>& tile,
                                int first_row) {
  using Tile = SharedTile<rows, columns>;
  HOPPER_UNROLL
  for (int panel = 0; panel < Tile::panels; ++panel) {
    tma_store(map, {at.feature + panel * Tile::panel_columns, at.row, at.head, at.batch},
              shared_address(&tile) + panel * Tile::panel_bytes + first_row * Tile::row_bytes);
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(tma.hpp)
