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

/// Threads of a CTA, at most; a thread has 4 slots, or 16 where there are more than 4 segments.
constexpr int quantize_threads(int slots) { return slots == 16 ? 256 : 512; }

/// n / divisor as a product, for n below 2^31. Why: a thread has some 500 instructions to do for its values, and a
/// division is 20 more.
struct Divisor {
  std::uint32_t factor;
  std::uint32_t shift;
};
/// 1 <= divisor < 2^31.
constexpr Divisor make_divisor(std::uint32_t divisor) {
  std::uint32_t log2 = 0;  // of the next power of two
  while (std::uint64_t(1) << log2 < divisor) ++log2;
  // Too large by less than divisor <= 2^log2, so n times that is less than the power of two of a whole quotient.
  return {std::uint32_t(((std::uint64_t(1) << (31 + log2)) + divisor - 1) / divisor), 31 + log2};
}

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
  bool y_staged;             // it goes through shared memory; every two pieces lie at a multiple of 16 bytes
  QuantizeStep step;
  int heads, seqlen, blocks;  // of a head
  Divisor by_heads, by_blocks;
  int pieces;  // of a row
  // Threads of a row are 1 << lanes_log2 neighbours; the one of rank t has pieces t + (j << lanes_log2), j <
  // slots_used.
  int lanes_log2, slots_used;
  int parts_log2;  // of the CTAs that have a block, 1 or 2; with own_scale a cluster
  int rows;        // of a CTA
  int items;       // blocks in all

  float* scale;  // null: given, and 1
  std::int64_t scale_stride[3];
  int group;  // heads that share one
  Divisor by_group;
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
