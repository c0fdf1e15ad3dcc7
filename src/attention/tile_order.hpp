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

/// A tile whose rows are [first_row, end_row), and no others of those that its CTA has room for.
struct Item : Tile {
  int end_row;
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

/// Lower tiles for the last sequences.
struct LowTiles {
  int sequences;   // how many have them
  int warpgroups;  // their height, in 64 rows
};

/// What a tile takes of which only `warpgroups` of the CTA's have rows, a whole one 1: measured (docs/lab_book.md, 54).
constexpr float time_of_low_tile(int warpgroups, int of) {
  constexpr float times[3][3] = {{0.81f}, {0.56f, 0.71f}, {0.53f, 0.67f, 0.79f}};
  return times[of - 2][warpgroups - 1];
}

/// So many that the last one does not matter.
inline constexpr int many_rounds = 64;

/// For items of equal length: those of the last round, where they are fewer than CTAs, make all others wait. With lower
/// tiles more CTAs share that work. Whole groups of sequences get them, so many that whole tiles fill all rounds but
/// one or two; of these choices the one that takes the least time by count, to which a sequence's ragged last tile is a
/// whole one. None where the last round is one of many. seqlen_q: up to 2^31 - 1024.
constexpr LowTiles choose_low_tiles(int seqlen_q, int warpgroups, int sequences, int group, int resident) {
  const auto tiles = [seqlen_q](int height) { return (seqlen_q + 64 * height - 1) / (64 * height); };
  const auto rounds = [resident](std::int64_t items) { return int((items + resident - 1) / resident); };
  const std::int64_t each = tiles(warpgroups);
  const int uncut = rounds(each * sequences);
  LowTiles best{0, warpgroups};
  if (uncut > many_rounds) return best;
  float least = float(uncut);
  for (int whole_rounds = uncut - 1; whole_rounds >= 0 && whole_rounds >= uncut - 2; --whole_rounds)
    for (int height = warpgroups - 1; height > 0; --height) {
      const std::int64_t whole = whole_rounds * std::int64_t(resident) / (each * group) * group;  // sequences
      const std::int64_t items = whole * each, low = (sequences - whole) * tiles(height);
      const std::int64_t beside = std::int64_t(rounds(items)) * resident - items;  // in the last round of whole tiles
      const float time =
          float(rounds(items)) + float(rounds(low > beside ? low - beside : 0)) * time_of_low_tile(height, warpgroups);
      if (time < least) {
        least = time;
        best = {sequences - int(whole), height};
      }
    }
  return best;
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
