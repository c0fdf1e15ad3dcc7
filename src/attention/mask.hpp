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

  /// What row `row` sees. For another mask, change this function and its inverse. Causal is aligned bottom-right: the
  /// last row sees all.
  constexpr Interval visible(int row) const {
    if (!causal) return {0, seqlen_k};
    return {0, clamp(row + 1 + (seqlen_k - seqlen_q), 0, seqlen_k)};
  }

  /// The inverse: the rows that see key `key`, an interval whose ends do not fall from key to key either. None see keys
  /// beyond the sequence.
  constexpr Interval seen_by(int key) const {
    if (key >= seqlen_k) return {seqlen_q, seqlen_q};
    if (!causal) return {0, seqlen_q};
    return {clamp(key - seqlen_k + seqlen_q, 0, seqlen_q), seqlen_q};
  }
};

/// The key blocks some of a range of rows sees, [begin, end). Those in [full_begin, full_end) every row sees whole; the
/// others are edge blocks, right (causal) or left (window) of them, and need the mask. Kernels visit from the end to
/// the begin.
struct BlockWalk {
  int begin, end;
  int full_begin, full_end;

  /// Rows [first_row, first_row + rows), clipped to the sequence; none if all lie beyond it. `all_edges`: treat every
  /// block as an edge block.
  static constexpr BlockWalk of(const Mask& mask, int first_row, int rows, int tile_kv, bool all_edges) {
    if (first_row >= mask.seqlen_q) return {0, 0, 0, 0};
    return of(mask.visible(first_row), mask.visible(first_row + minimum(rows, mask.seqlen_q - first_row) - 1), tile_kv,
              all_edges);
  }

  /// `top`, `bottom`: what the first and the last row see.
  static constexpr BlockWalk of(Interval top, Interval bottom, int tile_kv, bool all_edges) {
    BlockWalk walk{};
    walk.begin = top.first / tile_kv;
    walk.end = maximum(blocks_up_to(bottom.end, tile_kv), walk.begin);
    walk.full_begin = clamp(blocks_up_to(bottom.first, tile_kv), walk.begin, walk.end);
    walk.full_end = clamp(top.end / tile_kv, walk.full_begin, walk.end);
    if (all_edges) walk.full_begin = walk.full_end = walk.begin;
    return walk;
  }

  /// Blocks that hold keys [0, key); key near 2^31 must not overflow.
  static constexpr int blocks_up_to(int key, int tile_kv) { return key / tile_kv + (key % tile_kv != 0); }

  constexpr bool empty() const { return begin == end; }
  constexpr bool is_edge(int block) const { return block < full_begin || block >= full_end; }
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
