// The runtime half of the quantiser's description. Plain C++; passed by value to the kernel.
#pragma once

#include <cstdint>

#include "attention/backward_arguments.hpp"

namespace fa3::attention {

/// A thread has eight features, a piece, in each of its slots: 16 bytes of x, 8 of y.
inline constexpr int piece_features = 8;

/// What stands before the scale; decides what a thread keeps in registers.
enum class Transform : std::uint8_t {
  none,      // values as they were read, in half the registers
  rotation,  // H D
  embedding  // rotary embedding, and H D if args.rotate
};

/// Threads of a CTA, at most: 32 values of f32 in registers, or with 16 slots 128.
constexpr int quantize_threads(int slots) { return slots == 16 ? 256 : 512; }

enum class QuantizeStep : std::uint8_t {
  own_scale,    // the scale is that of the CTA's, or its cluster's, rows
  maxima,       // finds the maxima of scales that more rows share
  from_maxima,  // .. and takes the scale from there
  given
};

struct QuantizeArguments {
  Rows x;
  std::uint8_t* y;
  std::int64_t y_stride[3];  // as Rows::stride
  bool y_aligned;            // every piece lies at a multiple of 8 bytes
  QuantizeStep step;
  int heads, seqlen, blocks;  // of a head
  int pieces;                 // of a row
  // Threads of a row are 1 << lanes_log2 neighbours; the one of rank t has pieces t + (j << lanes_log2), j <
  // slots_used.
  int lanes_log2, slots_used;
  int parts;  // CTAs that have a block; with own_scale a cluster. Each has rows / parts rows
  int rows;   // of a block
  int items;  // blocks in all

  float* scale;  // null: given, and 1
  std::int64_t scale_stride[3];
  int group;         // heads that share one
  unsigned* maxima;  // bits of max|x'| / norm, by batch and group, or one for all
  int maxima_of_batch;

  const float *rope_cos, *rope_sin;  // null: no embedding
  std::int64_t rope_stride;
  int rope_d;
  bool rope_interleaved;
  bool rope_pieces;  // pairs of pieces, or within one, and 16-byte aligned tables

  bool rotate;
  int segments;  // of H; from 3 on a slot has a segment's piece
  float norm, mix;
  // By piece: shifted to the left by p, bits 15 and 31 are the signs of features 2p and 2p + 1.
  std::uint32_t signs[32];
};

}  // namespace fa3::attention
