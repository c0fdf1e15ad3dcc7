// Masks. Every mask is one interval of visible keys per row, whose ends do not fall from row to row. Blocks that all
// rows of a tile see whole need no mask; only edge blocks apply it. Plain C++.
#pragma once

#include <cstdint>

namespace fa3::attention {

// Why not std::min and friends: they take references, for which nvcc 13.0 leaves stores to local memory in the kernel.
constexpr int minimum(int a, int b) { return a < b ? a : b; }
constexpr int maximum(int a, int b) { return a < b ? b : a; }
constexpr int clamp(int x, int low, int high) { return minimum(maximum(x, low), high); }

/// Keys [first, end).
struct Interval {
  int first, end;
};

struct Mask {
  int seqlen_q, seqlen_k;
  bool causal;

  /// What row `row` sees. The one function to change for another mask. Causal is aligned bottom-right: the last row
  /// sees all.
  constexpr Interval visible(int row) const {
    if (!causal) return {0, seqlen_k};
    return {0, clamp(row + 1 + (seqlen_k - seqlen_q), 0, seqlen_k)};
  }
};

/// The key blocks a tile of rows has to visit, in order: edge blocks first (right edge from the end, then left edge),
/// so that the loop over them and the unmasked loop over the rest are one after the other.
struct BlockWalk {
  int begin, end;            // blocks some row sees
  int full_begin, full_end;  // blocks every row sees whole

  /// Rows [first_row, first_row + rows), clipped to the sequence. `all_edges`: treat every block as an edge block.
  constexpr BlockWalk(const Mask& mask, int first_row, int rows, int tile_kv, bool all_edges)
      : BlockWalk(mask.visible(first_row), mask.visible(first_row + minimum(rows, mask.seqlen_q - first_row) - 1),
                  tile_kv, all_edges) {}

  /// `top`, `bottom`: what the first and the last row see.
  constexpr BlockWalk(Interval top, Interval bottom, int tile_kv, bool all_edges) {
    begin = top.first / tile_kv;
    end = maximum(blocks_up_to(bottom.end, tile_kv), begin);
    full_begin = clamp(blocks_up_to(bottom.first, tile_kv), begin, end);
    full_end = clamp(top.end / tile_kv, full_begin, end);
    if (all_edges) full_begin = full_end = begin;
  }

  /// Blocks that hold keys [0, key); key near 2^31 must not overflow.
  static constexpr int blocks_up_to(int key, int tile_kv) { return key / tile_kv + (key % tile_kv != 0); }

  constexpr int count() const { return end - begin; }
  /// The first edges() blocks of the walk need the mask.
  constexpr int edges() const { return count() - (full_end - full_begin); }
  /// Block number of step i, 0 <= i < count().
  constexpr int block(int i) const {
    const int right = end - full_end, left = full_begin - begin;
    if (i < right) return end - 1 - i;
    if (i < right + left) return full_begin - 1 - (i - right);
    return full_end - 1 - (i - right - left);
  }
};

/// Bit 2 j + e is set if the interval contains column 8 j + column + e (e = 0, 1): the columns of an accumulator row
/// that a thread holds, column = 2 (t % 4), for blocks of up to 128 keys. The interval is relative to the block.
constexpr std::uint32_t visible_word(Interval interval, int column) {
  // Bits below `limit`: two for each whole group of eight columns, and those of the group the limit falls into.
  const auto below = [column](int limit) -> std::uint32_t {
    const int rest = clamp(limit - column, 0, 128);
    const int bits = 2 * (rest / 8) + minimum(rest % 8, 2);
    return bits >= 32 ? ~std::uint32_t(0) : (std::uint32_t(1) << bits) - 1;
  };
  return below(interval.end) & ~below(interval.first);
}

}  // namespace fa3::attention
