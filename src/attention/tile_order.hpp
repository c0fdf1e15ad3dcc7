// In which order the persistent CTAs take tiles. Plain C++.
#pragma once

#include <cstdint>

#include "attention/mask.hpp"

namespace fa3::attention {

struct Tile {
  int first_row;  // of the query sequence; -1: no more tiles
  int head;
  int batch;
};

/// Items of work: `rows` query rows of one head, a tile for each CTA of a cluster. Heads (of all batch entries) are
/// worked on in sections; within a section the items with the most keys (causal: the last rows) come first. Small
/// sections keep few keys in use, which then stay in L2 and are read from memory once; the last section is large enough
/// for its short items to fill the end.
struct TileOrder {
  int rows;       // of an item
  int row_items;  // per head
  int heads;      // per batch entry
  int sequences;  // heads * batch
  int section;    // sequences per section
  int last;       // sequences of the last section

  constexpr int count() const { return row_items * sequences; }

  constexpr Tile item(int index) const {
    const int before = sequences - last;  // sequences
    int first = 0, here = section;
    if (index < before * row_items) {
      first = index / (section * row_items) * section;
      here = minimum(section, before - first);
    } else {
      first = before;
      here = last;
    }
    const int within = index - first * row_items;
    const int sequence = first + within % here;
    return {(row_items - 1 - within / here) * rows, sequence % heads, sequence / heads};
  }
};

/// Up to so many items per cluster a static schedule is as good as a dynamic one, and the last section holds so many.
inline constexpr int few_rounds = 4;

/// Sections of `group` sequences, which share their keys, and a last one of `few_rounds` times as many items as run at
/// once (`resident`): it begins with its longest items, and others must be left to fill the end. But it has no more
/// than `most` sequences, because all their keys are in use at the same time.
constexpr TileOrder make_tile_order(int rows, int row_items, int heads, int sequences, int group, int resident,
                                    int most) {
  const int last = minimum((few_rounds * resident + row_items - 1) / row_items, most);
  return {rows, row_items, heads, sequences, group, minimum(sequences, last)};
}

/// That `most`. Without a mask items are equal, and nothing has to be filled. With one, the keys and values of a
/// section, `key_bytes` for each group, should stay in half of the 50 MB of L2; where they do not, they are read from
/// memory, of which 16 groups at once take a fifth: an SM reads 32 bytes of them per cycle.
constexpr int most_in_last_section(bool causal, int group, std::int64_t key_bytes) {
  if (!causal) return group;
  const std::int64_t fit = key_bytes == 0 ? 16 : (std::int64_t(25) << 20) / key_bytes;
  return group * int(fit < 16 ? 16 : fit > 1 << 16 ? 1 << 16 : fit);
}

/// A static schedule: in round r, cluster c takes item r * clusters + static_place(c, r, ..). Items that get shorter
/// are dealt out forwards and backwards in turn; equal ones shifted by one place a round, so that a cluster gets
/// different rows of the heads even if a head's items divide the number of clusters.
constexpr int static_place(int cluster, int round, int clusters, bool shrinking) {
  if (shrinking) return round % 2 == 0 ? cluster : clusters - 1 - cluster;
  return (cluster + round) % clusters;
}

}  // namespace fa3::attention
