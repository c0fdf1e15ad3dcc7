// The compile-time choices of one backward kernel, and how it lays out what it leaves in the workspace. As in
// config.hpp, a value is here only if it must be known at compile time.
#pragma once

#include "hopper/element.hpp"
#include "hopper/shared_tile.hpp"

namespace fa3::attention {

struct BackwardConfig {
  hopper::Element element;
  int d;        // features of Q, K, dQ, dK: a multiple of 16
  int d_v;      // features of V, O, dO, dV: likewise
  int tile_q;   // B_r: query rows of a block, 64 or 128
  int tile_kv;  // B_c: keys of a tile; 128: each of two consumer warpgroups has 64 of them; 64: see wide()
  int stages;   // depth of the rings of dS and P, and of Q and dO but for d_o_stages()
  int cluster;  // CTAs that share Q and dO and exchange dS: 1; in wide rows also 2, which have neighbouring tiles
  // Tiles add to dQ in the order of their keys, so that every run gives the same bits.
  bool deterministic;

  constexpr bool operator==(const BackwardConfig&) const = default;

  /// Whether dK and dV of 64 keys take two warpgroups (backward_wide.hpp). Then a third one has dQ.
  constexpr bool wide() const { return tile_kv == 64; }
  /// Keys of a cluster's tiles.
  constexpr int item_keys() const { return cluster * tile_kv; }
  /// Buffers of dO: in clusters what comes from the peer leaves room for one.
  constexpr int d_o_stages() const { return cluster == 1 ? stages : 1; }
  /// Blocks of 64 rows: dS multiplies the P of 16 bits. In f16 that is kept 2^10 times as large, so that weights down
  /// to 2^-24 are normal numbers; dV is divided by it at the end.
  constexpr bool multiplies_p16() const { return tile_q == 64; }
  constexpr float log2_p_size() const { return multiplies_p16() && element == hopper::Element::f16 ? 10.0f : 0.0f; }
  constexpr float inverse_p_size() const {
    return multiplies_p16() && element == hopper::Element::f16 ? 0x1p-10f : 1.0f;
  }
  /// What D is multiplied by, as dP is: wide rows subtract it from dP before.
  constexpr float d_size() const { return wide() ? 1.0f : inverse_p_size(); }
  /// Groups of 64 keys.
  constexpr int key_groups() const { return tile_kv / 64; }
  constexpr int consumer_warpgroups() const { return wide() ? 3 : key_groups(); }
  constexpr int threads() const { return 128 * (1 + consumer_warpgroups()); }
  // As in ForwardConfig: 168 x 384 = 40 x 128 + 232 x 256, 128 x 512 = (32 + 192 + 192 + 96) x 128.
  constexpr int producer_registers() const { return wide() ? 32 : 40; }
  constexpr int consumer_registers(int warpgroup) const {
    constexpr int of_wide[] = {192, 192, 96};
    return wide() ? of_wide[warpgroup] : 232;
  }
  constexpr int registers() const {
    int sum = producer_registers();
    for (int i = 0; i < consumer_warpgroups(); ++i) sum += consumer_registers(i);
    return 128 * sum;
  }

  constexpr bool valid() const {
    if (wide())
      return d % 64 == 0 && d_v % 64 == 0 && d >= 128 && d_v >= 128 && d <= 256 && d_v <= 256 && tile_q == 64 &&
             stages >= 2 && (cluster == 1 || (cluster == 2 && d % 128 == 0));
    return cluster == 1 && d % 16 == 0 && d_v % 16 == 0 && d <= 128 && d_v <= 128 && (tile_q == 64 || tile_q == 128) &&
           tile_kv == 128 && stages >= 2 && stages % 2 == 0;
  }
};

/// Where the kernels keep dQ in f32: blocks of `rows` query rows. Every warpgroup that computes dQ, in a cluster that
/// of every CTA, has a part of the block: 64 rows, or all rows and some columns; every one of its warps a share of the
/// part, 16 rows. A share is what the warp's accumulator holds (hopper::Accumulator): groups of eight columns, a group
/// 32 lanes, a lane's four numbers rows r and r + 8 of two neighbouring columns. So what is added at a time is
/// contiguous.
struct DqLayout {
  int rows;  // of a block
  int parts;
  bool split_rows;   // among the parts; else the columns
  int part_columns;  // a multiple of 32

  constexpr int part_floats() const { return part_columns * 64; }
  constexpr int block_floats() const { return parts * part_floats(); }
};

constexpr DqLayout dq_layout(const BackwardConfig& config) {
  const int parts = config.cluster * config.key_groups();
  const bool split_rows = config.tile_q == 64 * parts;
  const int columns = hopper::stored_columns(config.d);
  return {config.tile_q, parts, split_rows, split_rows ? config.d : columns / parts};
}

/// What a lane has of a group.
struct alignas(16) FourOfDq {
  float value[4];
};

/// Where the statistic of a block's row stands: of every 16 rows the four that are columns of one thread's accumulator
/// together, so that a thread reads 16 bytes, and a warp without bank conflicts.
constexpr int place_of_statistics(int row) { return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2; }

}  // namespace fa3::attention
