// The runtime half of a forward kernel's description. Plain C++; passed by value to the kernel.
#pragma once

#include <cstdint>

#include "attention/mask.hpp"
#include "attention/tile_order.hpp"
#include "hopper/tensor_map.hpp"

namespace fa3::attention {

/// Softmax of factor * S in base 2. m is that of sign * S, so a negative scale becomes sign = -1 and
/// scale 0 becomes sign = 0 with scale_log2 = 1; scale_log2 is always positive.
struct Scale {
  float scale_log2;    // |softmax_scale| * log2(e)
  float power_of_two;  // the smallest power of two >= scale_log2; see OnlineSoftmax
  float ratio;         // scale_log2 / power_of_two
  float sign;          // 1, -1 or 0; other than 1 only edge blocks apply it, so every block becomes one
};

/// Scales of an e4m3 tensor, f32.
struct Scales {
  const float* data;       // null: all are 1
  std::int64_t stride[3];  // batch, head, block
  int heads_each;          // neighbouring heads that share one

  constexpr float of(int batch, int head, int block) const {
    return data == nullptr ? 1.0f : data[batch * stride[0] + head / heads_each * stride[1] + block * stride[2]];
  }
};

struct Stamp;

struct ForwardArguments {
  // Boxes of tile_q, tile_kv / cluster, tile_kv / cluster (V^T: d_v) and 16 rows (Output::in_v_ring: 64).
  hopper::TensorMap q, k, v, o;
  std::uint16_t* o_data;     // where registers are stored directly
  std::int64_t o_stride[3];  // batch, head, row
  int o_columns;
  float* lse;                  // null: not wanted
  std::int64_t lse_stride[3];  // batch, head, row
  Mask mask;
  TileOrder order;
  int group;  // query heads per key/value head
  Scale scale;
  unsigned* next_item;               // dynamic schedule: a counter, 0 at launch. Null: a static schedule
  Scales q_scale, k_scale, v_scale;  // e4m3
  bool bf16_output;                  // e4m3: O is bf16, not f16
  Stamp* stamps;  // read only by a row with config.trace: stamps_per_role for each role of CTA 0, or null
  // e4m3: after the items of `order`, which are whole tiles, those of `low_order` from low_first on: LowTiles.
  TileOrder low_order;
  int low_first;

  constexpr int items() const { return order.count() + low_order.count() - low_first; }
  constexpr Item item(int index) const {
    const int low = index - order.count();
    const Tile tile = low < 0 ? order.item(index) : low_order.item(low + low_first);
    const int rows = low < 0 ? order.rows : low_order.rows;
    return {tile, tile.first_row + minimum(rows, mask.seqlen_q - tile.first_row)};
  }
};

}  // namespace fa3::attention
