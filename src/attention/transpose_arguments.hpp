// The runtime half of the description of transpose_values. Plain C++; passed by value to the kernel.
#pragma once

#include "hopper/tensor_map.hpp"

namespace fa3::attention {

inline constexpr int transpose_tile = 128;  // keys, and features; as many keys as a block of scales has
inline constexpr int transpose_threads = 128;
inline constexpr int transpose_box = 16;  // rows of V^T that are stored at a time

struct TransposeArguments {
  // Of pairs of features or, d-major, of keys; boxes of transpose_tile and of transpose_box rows. vt: rows are
  // features, its keys whole blocks.
  hopper::TensorMap v, vt;
  bool d_major;  // v's rows are features
  int features, seqlen;
  int panels;  // tiles side by side along the features
  int blocks;  // and along the keys
  int heads;
  int items;  // CTAs
};

}  // namespace fa3::attention
