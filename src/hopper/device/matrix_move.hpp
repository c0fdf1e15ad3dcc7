#pragma once

#include "hopper/device/address.hpp"
#include "hopper/thread.hpp"

namespace fa3::hopper::inline device {

template <int rows, int columns>
__device__ __forceinline__ void store_matrix(SharedTile<rows, columns>& tile, int row, int column,
                                             const std::uint32_t (&fragment)[4]) {
  // Lane t gives the address of row t % 8 of quarter t / 8.
  const int my_row = row + lane() % 16;
  const int my_chunk = column / 8 + lane() / 16;
  const std::uint32_t address = shared_address(&tile) + SharedTile<rows, columns>::chunk_offset(my_row, my_chunk);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(fragment[0]),
               "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
}

}  // namespace fa3::hopper::inline device
