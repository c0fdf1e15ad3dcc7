// The runtime half of a forward kernel's description. Plain C++; passed by value to the kernel.
#pragma once

#include <cstdint>

#include "attention/mask.hpp"
#include "attention/tile_order.hpp"
#include "hopper/tensor_map.hpp"

namespace fa3::attention {

/// Softmax of factor * S in base 2. The kernel takes row maxima of sign * S, so a negative scale becomes sign = -1 and
/// scale 0 becomes sign = 0 with scale_log2 = 1; scale_log2 is always positive.
struct Scale {
  float scale_log2;    // |softmax_scale| * log2(e)
  float power_of_two;  // the smallest power of two >= scale_log2; see OnlineSoftmax
  float sign;          // 1, -1 or 0; other than 1 only edge blocks apply it, so every block becomes one
};

struct Stamp;

struct ForwardArguments {
  hopper::TensorMap q, k, v, o;  // boxes of tile_q, tile_kv, tile_kv and 16 rows
  float* lse;                    // null: not wanted
  std::int64_t lse_stride[3];    // batch, head, row
  Mask mask;
  TileOrder order;
  int group;  // query heads per key/value head
  Scale scale;
  unsigned* next_tile;  // dynamic scheduler's counter, 0 at launch
  Stamp* stamps;        // read only by a row with config.trace: stamps_per_role for each role of CTA 0, or null
};

}  // namespace fa3::attention
