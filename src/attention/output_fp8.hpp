// O of the e4m3 rows on its way out of the registers, where a thread has four neighbouring features of every 16
// (TileTransposer): of group g in value[8 g + 2 r + {0, 4, 1, 5}], r = 0, 1 as in any accumulator.
#pragma once

#include <cstdint>

#include "attention/config.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// Four neighbouring features of O in 16 bits.
struct alignas(8) FourOfO {
  std::uint32_t pair[2];
};

/// This thread's of group `group` of 16, row r.
template <hopper::Element element, int columns>
HOPPER_FUNCTION FourOfO four_of(const hopper::Accumulator<columns>& o, int group, int r) {
  const float* const x = o.value + 8 * group + 2 * r;
  return {{hopper::pack2<element>(x[0], x[4]), hopper::pack2<element>(x[1], x[5])}};
}

/// Which group of a panel of four a row stages as its i-th: odd rows in another order, without which rows 2 i and 2 i +
/// 1 would share their banks. (Half a panel has no other order.)
constexpr int staged_group(int i, int row) { return i ^ (2 * (row % 2)); }
/// Where thread t of a quad has its four features of a group of the first panel, bytes from the tile's begin.
template <class Tile>
constexpr int staged_offset(int row, int t, int group) {
  return Tile::chunk_offset(row, 2 * group + t / 2) + 8 * (t % 2);
}

/// The warpgroup's 64 rows to a tile from which TMA stores them; `row`: this thread's row r = 0 of the 64.
template <hopper::Element element, int columns>
HOPPER_FUNCTION void stage_o(hopper::SharedTile<64, columns>& staged, const hopper::Accumulator<columns>& o, int row) {
  using Tile = hopper::SharedTile<64, columns>;
  constexpr int groups = Tile::panel_columns / 16;
  // Addresses are computed here: they would else be kept from tile to tile.
  row = hopper::recompute(row);
  const auto odd = std::uint32_t(hopper::recompute(-(row % 2)));  // all bits, or none
  const int t = hopper::lane() % 4;
  int offset_of[groups];
  HOPPER_UNROLL
  for (int i = 0; i < groups; ++i) offset_of[i] = staged_offset<Tile>(row, t, staged_group(i, row));
  HOPPER_UNROLL
  for (int first = 0; first < columns / 16; first += groups) {
    const bool whole = first + groups <= columns / 16;
    HOPPER_UNROLL
    for (int i = 0; i < (whole ? groups : columns / 16 % groups); ++i) {
      HOPPER_UNROLL
      for (int r = 0; r < 2; ++r) {
        const FourOfO even_rows = four_of<element>(o, first + i, r);
        const FourOfO odd_rows = four_of<element>(o, first + (whole ? staged_group(i, 1) : i), r);
        FourOfO four;
        HOPPER_UNROLL
        for (int e = 0; e < 2; ++e)
          four.pair[e] = (even_rows.pair[e] & ~odd) | (odd_rows.pair[e] & odd);  // one LOP3; ?: becomes two moves
        const int at = (whole ? offset_of[i] : staged_offset<Tile>(row, t, i)) + first / groups * Tile::panel_bytes +
                       8 * r * Tile::row_bytes;
        hopper::store_shared(*reinterpret_cast<FourOfO*>(reinterpret_cast<unsigned char*>(&staged) + at), four);
      }
    }
  }
}

/// Row r = 0, 1 to global memory, of which `to` is the begin, if `exists`, and of it `o_columns` features. Lanes 2 i
/// and 2 i + 1 exchange halves of two groups, so that each has eight neighbours and a quad stores 64 bytes: what a
/// store takes counts by rows (docs/lab_book.md, 46).
template <hopper::Element element, int columns>
HOPPER_FUNCTION void store_o_row(std::uint16_t* to, const hopper::Accumulator<columns>& o, int r, bool exists,
                                 int o_columns) {
  struct alignas(16) Eight {
    FourOfO four[2];
  };
  const bool odd = hopper::lane() % 2 == 1;
  const int first_column = 16 * (hopper::lane() % 2) + 8 * (hopper::lane() / 2 % 2);  // of this lane
  HOPPER_UNROLL
  for (int group = 0; group < columns / 16; group += 2) {
    const FourOfO even_group = four_of<element>(o, group, r), odd_group = four_of<element>(o, group + 1, r);
    FourOfO theirs;
    HOPPER_UNROLL
    for (int e = 0; e < 2; ++e) theirs.pair[e] = hopper::from_neighbour(odd ? even_group.pair[e] : odd_group.pair[e]);
    const int column = 16 * group + first_column;
    if (exists && column < o_columns)
      *reinterpret_cast<Eight*>(to + column) = odd ? Eight{{theirs, odd_group}} : Eight{{even_group, theirs}};
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
