// In which order the persistent CTAs take tiles. Plain C++.
#pragma once

#include "attention/mask.hpp"

namespace fa3::attention {

struct Tile {
  int first_row;  // of the query sequence; -1: no more tiles
  int head;
  int batch;
};

/// Heads (of all batch entries) are worked on in sections whose K and V fit into L2 together; within a section the
/// tiles with the most keys (causal: the last rows) come first, so that short ones fill the end.
struct TileOrder {
  int tile_q;
  int q_tiles;    // per head
  int heads;      // per batch entry
  int sequences;  // heads * batch
  int section;    // sequences per section

  constexpr int count() const { return q_tiles * sequences; }

  constexpr Tile tile(int index) const {
    const int section_tiles = section * q_tiles;
    const int first = index / section_tiles * section;  // first sequence of the section
    const int within = index % section_tiles;
    const int here = minimum(section, sequences - first);
    const int sequence = first + within % here;
    return {(q_tiles - 1 - within / here) * tile_q, sequence % heads, sequence / heads};
  }
};

}  // namespace fa3::attention
