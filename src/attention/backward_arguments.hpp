// The runtime half of the backward kernels' description. Plain C++; passed by value to the kernels.
#pragma once

#include <cstdint>

#include "attention/backward_config.hpp"
#include "attention/mask.hpp"
#include "attention/tile_order.hpp"
#include "hopper/tensor_map.hpp"

namespace fa3::attention {

inline constexpr int row_threads = 256;              // of a CTA of the kernels before and after
inline constexpr int rows_of_cta = row_threads / 4;  // before: a quad has a row

/// A tensor as ordinary loads and stores see it: strides of batch, head and row in elements, features contiguous.
struct Rows {
  std::uint16_t* data;
  std::int64_t stride[3];
  bool aligned;  // every eight features lie at a multiple of 16 bytes
};

/// Before the main kernel: what it needs of every query row, and zeros in the dQ that it begins with.
struct BeforeBackwardArguments {
  Rows d_o, o;
  const float* lse;
  std::int64_t lse_stride[3];  // batch, head, row
  // -LSE of the main kernel is (ratio_high + ratio_low) * LSE, rounded once.
  float ratio_high, ratio_low;
  float log2_p_size, d_size;  // of BackwardConfig
  int heads;
  int seqlen_q, d_v;
  int blocks;  // of tile_q rows in a sequence
  DqLayout layout;
  // Written: by sequence and block, tile_q times -LSE in base 2, plus log2_p_size, then tile_q times -D *
  // d_size, both in the order of place_of_statistics().
  float* statistics;
  float* dq;  // DqLayout by sequence and block, dq_floats in all: zeroed but for [kept_begin, kept_end)
  std::int64_t dq_floats, kept_begin, kept_end;
  unsigned* counts;  // count_count of them: the first is set to first_count, the others are zeroed
  std::int64_t count_count;
  unsigned first_count;
};

struct BackwardArguments {
  // Boxes of tile_q / cluster (q, d_o), tile_kv (k, v) and 16 rows (dk, dv).
  hopper::TensorMap q, d_o, k, v, dk, dv;
  const float* statistics;
  float* dq;
  // Deterministic: how many tiles have added to each part of a block of dQ.
  unsigned* turns;
  // The next item that clusters ask for; at launch `unasked`. Null: no item has query rows, and every one its cluster.
  unsigned* next_item;
  // Items that clusters begin with, without having asked: one each, or none, where tiles wait for others.
  int unasked;
  // Key/value sequences (with the query heads of their group): the tiles of s zero the dQ of s + ahead, each its share,
  // so that it is in L2 when it is added to; the kernel before this one has zeroed that of those below `ahead` and from
  // zeroed_end on.
  int ahead, zeroed_end;
  // By such a sequence: how many tiles have.
  unsigned* zeroed;
  int blocks;  // of tile_q rows in a sequence
  int heads, group;
  Mask mask;
  TileOrder order;   // of the key tiles, a tile for each CTA of a cluster; it counts them from the end
  float scale;       // softmax_scale
  float scale_log2;  // softmax_scale * log2(e), of either sign
};

/// After the main kernel: dQ to 16 bits.
struct AfterBackwardArguments {
  const float* dq;
  Rows out;
  int heads;
  int zero_rows;    // the first rows of a sequence, which the other kernels leave out: their dQ is 0
  int zero_blocks;  // layout.rows of them each
  int seqlen_q, d;  // seqlen_q with zero_rows
  int blocks;       // of the rows behind
  DqLayout layout;
  float scale;
};

}  // namespace fa3::attention
