// The runtime half of the quantiser's description. Plain C++; passed by value to the kernel.
#pragma once

#include <cstdint>

#include "attention/backward_arguments.hpp"

namespace fa3::attention {

/// What stands before the scale.
enum class Transform : std::uint8_t {
  none,
  rotation,  // H D
  embedding  // rotary embedding, and H D if args.rotate
};

/// Rows that share a scale per block, at most.
inline constexpr int scale_rows = 128;

/// Eight features: 16 bytes of x, 8 of y.
inline constexpr int piece_features = 8;

/// How the pieces of a block are shared out.
struct QuantizeShape {
  int slots;  // of a thread, for pieces of a row
  int lanes;  // neighbouring threads that share a row
  int rows;   // of a thread

  constexpr int held() const { return rows * slots; }  // pieces of a thread
  constexpr int threads() const { return scale_rows / rows * lanes; }
  /// A thread has 128 registers where it holds no more than 64 values, else all that there are.
  constexpr int ctas_of_sm() const { return (held() <= 8 ? 512 : 256) / threads(); }
  /// Of two slots each, if the features are rotated.
  constexpr bool three_segments() const { return slots == 6; }
};
/// Indices of quantize_shapes: by the most features, but for 96 and 192 alone, and for more than 128 rotated ones of an
/// order of 16, which has only two lanes.
namespace shape {
inline constexpr int up_to_64 = 0, up_to_128 = 1, up_to_256 = 2, order_16 = 3, of_96 = 4, of_192 = 5;
}
inline constexpr QuantizeShape quantize_shapes[] = {{4, 2, 2}, {8, 2, 1}, {8, 4, 1}, {16, 2, 1}, {6, 2, 1}, {6, 4, 1}};

/// Bits 15 and 31 of `pair[p]` are the signs of features 2p and 2p + 1 of a piece, the others zeros.
struct alignas(16) SignsOfPiece {
  std::uint32_t pair[4];
};

/// n / divisor as a product, for n below 2^31. Why: a thread has some 1000 instructions to do for its values, and a
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
  own_scale,    // the scale is that of the block
  maxima,       // finds the maxima of scales that more blocks share
  from_maxima,  // .. and takes the scale from there
  given
};

struct QuantizeArguments {
  Rows x;
  bool x_whole;  // aligned, and no slot without a piece
  std::uint8_t* y;
  std::int64_t y_stride[3];  // as Rows::stride
  bool y_aligned;            // every piece lies at a multiple of 8 bytes
  bool y_whole;              // the lanes of a row can store 32 bytes at a time that lie side by side
  QuantizeStep step;
  int heads, seqlen, blocks;  // of a head
  Divisor by_heads, by_blocks;
  int items;   // blocks in all
  int pieces;  // of a row
  // The lane of rank t of a row has pieces t + j * lanes, j < slots_used.
  int slots_used;

  float largest;  // |y|
  bool limits;    // products to `largest`, below which neither the scale nor the conversion keeps them
  float* scale;   // null: given, and 1
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
  int segments;          // of H
  int slots_of_segment;  // a power of two; 1 unless rotated
  float norm, mix;
  SignsOfPiece signs[32];  // beyond the last piece those of what stands there in its place (quantize.hpp)
};

}  // namespace fa3::attention
