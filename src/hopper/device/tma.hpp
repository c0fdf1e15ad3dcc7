#pragma once

#include "hopper/device/address.hpp"

namespace fa3::hopper::inline device {

__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map.opaque) : "memory");
}

template <int rows, int columns>
__device__ __forceinline__ void load_tile(SharedTile<rows, columns>& tile, const TensorMap& map, Coordinates at,
                                          Mbarrier& barrier) {
  using Tile = SharedTile<rows, columns>;
#pragma unroll
  for (int panel = 0; panel < Tile::panels; ++panel) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
            shared_address(&tile) + panel * Tile::panel_bytes),
        "l"(map.opaque), "r"(at.feature + panel * Tile::panel_columns), "r"(at.row), "r"(at.head * map.head_step),
        "r"(at.batch * map.batch_step), "r"(shared_address(&barrier))
        : "memory");
  }
}

template <int rows, int columns>
__device__ __forceinline__ void store_rows(const TensorMap& map, Coordinates at, const SharedTile<rows, columns>& tile,
                                           int first_row) {
  using Tile = SharedTile<rows, columns>;
#pragma unroll
  for (int panel = 0; panel < Tile::panels; ++panel) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map.opaque),
                 "r"(at.feature + panel * Tile::panel_columns), "r"(at.row), "r"(at.head), "r"(at.batch),
                 "r"(shared_address(&tile) + panel * Tile::panel_bytes + first_row * Tile::row_bytes)
                 : "memory");
  }
}

__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

template <int pending>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}


}  // namespace fa3::hopper::inline device
