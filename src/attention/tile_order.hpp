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
/// sections keep few keys in use, which then stay in L2 and are read from memory once. With a causal mask the last
/// section is larger, so that its short items fill the end.
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

/// Up to so many items per cluster a static schedule is as good as a dynamic one.
inline constexpr int few_rounds = 4;

/// Sections of `group` sequences, which share their keys, and a last one of `few_rounds` times as many items as run at
/// once (`resident`), but no more than `most` sequences.
constexpr TileOrder make_tile_order(int rows, int row_items, int heads, int sequences, int group, int resident,
                                    int most) {
  const int last = minimum((few_rounds * resident + row_items - 1) / row_items, most);
  return {rows, row_items, heads, sequences, group, minimum(sequences, last)};
}

/// `most` of make_tile_order for items of unequal length that are taken one by one. All keys of a section are in use at
/// the same time: those of `key_bytes`, keys and values of a group, should stay in half of the 50 MB of L2. Where they
/// do not, 16 groups at once may be read from memory: by an estimate a fifth of what it delivers.
constexpr int most_in_last_section(int group, std::int64_t key_bytes) {
  const std::int64_t fit = (std::int64_t(25) << 20) / (key_bytes > 0 ? key_bytes : 1);
  const std::int64_t most = group * (fit > 16 ? fit : 16);
  return most < 1 << 30 ? int(most) : 1 << 30;
}

/// A static schedule: in round r, cluster c takes item r * clusters + static_place(c, r, ..). Items that get shorter
/// are dealt out forwards and backwards in turn; equal ones shifted by one place a round, so that a cluster gets
/// different rows of the heads even if a head's items divide the number of clusters.
constexpr int static_place(int cluster, int round, int clusters, bool shrinking) {
  if (shrinking) return round % 2 == 0 ? cluster : clusters - 1 - cluster;
  return (cluster + round) % clusters;
}

}  // namespace fa3::attention
