// The quantiser: blocks of 128 rows of a head, x to y, step by step as docs/numerics.md defines it (FP8: the
// quantiser). A CTA takes one after the other. It reads x once (and, with an embedding, some of it again) and keeps it
// in registers until the scale is known; meanwhile x of its next block is on the way, where there are registers for it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/backward_rows.hpp"
#include "attention/quantize_arguments.hpp"
#include "hopper/hopper.hpp"
#include "quantization.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

struct alignas(8) EightE4m3 {
  std::uint32_t four[2];
};
struct alignas(16) SixteenE4m3 {
  std::uint32_t four[4];
};

struct QuantizeShared {
  SignsOfPiece signs[32];
  std::uint32_t of_warp[2][16];  // bits of a maximum; of every other block
};

struct alignas(16) FourFloats {
  float value[4];
};

HOPPER_FUNCTION int quotient(int n, Divisor divisor) {
  return int(std::uint64_t(std::uint32_t(n)) * divisor.factor >> divisor.shift);
}

inline constexpr std::uint32_t infinity_bits = 0x7f800000u;

HOPPER_FUNCTION bool is_finite(float x) { return (std::bit_cast<std::uint32_t>(x) & 0x7fffffffu) < infinity_bits; }

template <hopper::Element element>
HOPPER_FUNCTION void unpack(float (&value)[8], const EightFeatures& eight) {
  HOPPER_UNROLL
  for (int p = 0; p < 4; ++p) hopper::unpack2<element>(eight.pair[p], value[2 * p], value[2 * p + 1]);
}

/// `count` numbers, 4 or 8, from a multiple of 16 bytes on.
HOPPER_FUNCTION void load_floats(float (&value)[8], const float* from, int count) {
  HOPPER_UNROLL
  for (int i = 0; i < 8; i += 4) {
    if (i >= count) continue;
    const FourFloats four = *reinterpret_cast<const FourFloats*>(from + i);
    HOPPER_UNROLL
    for (int k = 0; k < 4; ++k) value[i + k] = four.value[k];
  }
}

/// Rotary embedding of the piece that begins at `feature` of a row of x. Partners of other pieces come from memory: the
/// thread that has them needs its own to remain.
template <hopper::Element element>
HOPPER_FUNCTION void rope(float (&value)[8], const QuantizeArguments& args, const std::uint16_t* row,
                          std::int64_t position, int feature) {
  if (feature >= args.rope_d) return;
  const int half = args.rope_d / 2;
  const float* const cosines = args.rope_cos + position * args.rope_stride;
  const float* const sines = args.rope_sin + position * args.rope_stride;
  float cosine[8], sine[8], partner[8];
  if (args.rope_pieces) {
    if (args.rope_interleaved) {
      float four_cosines[8], four_sines[8];
      load_floats(four_cosines, cosines + feature / 2, 4);
      load_floats(four_sines, sines + feature / 2, 4);
      HOPPER_UNROLL
      for (int i = 0; i < 8; ++i) {
        cosine[i] = four_cosines[i / 2];
        sine[i] = four_sines[i / 2];
        partner[i] = value[i ^ 1];
      }
    } else {
      const bool first = feature < half;
      load_floats(cosine, cosines + (first ? feature : feature - half), 8);
      load_floats(sine, sines + (first ? feature : feature - half), 8);
      unpack<element>(partner, load_eight(row + (first ? feature + half : feature - half), args.x.aligned));
    }
  } else {
    HOPPER_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int f = feature + i;
      if (f >= args.rope_d) continue;
      const bool first = args.rope_interleaved ? i % 2 == 0 : f < half;
      const int index = args.rope_interleaved ? f / 2 : first ? f : f - half;
      float beyond;
      hopper::unpack2<element>(row[args.rope_interleaved ? f ^ 1 : first ? f + half : f - half], partner[i], beyond);
      cosine[i] = cosines[index];
      sine[i] = sines[index];
    }
  }
  HOPPER_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int f = feature + i;
    if (f >= args.rope_d) continue;
    const bool first = args.rope_interleaved ? i % 2 == 0 : f < half;
    value[i] = first ? hopper::fma(value[i], cosine[i], -(partner[i] * sine[i]))
                     : hopper::fma(partner[i], sine[i], value[i] * cosine[i]);
  }
}

/// The mix of segments; `step` slots of each.
template <int step, QuantizeShape shape>
HOPPER_FUNCTION void mix_segments(float (&value)[shape.held()][8], const QuantizeArguments& args) {
  HOPPER_UNROLL
  for (int first = 0; first < shape.held(); ++first) {
    if (first % shape.slots >= step) continue;
    HOPPER_UNROLL
    for (int i = 0; i < 8; ++i) {
      float sum = value[first][i];
      HOPPER_UNROLL
      for (int j = step; j < shape.slots; j += step)
        if (shape.three_segments() || first % shape.slots + j < args.slots_used) sum += value[first + j][i];
      HOPPER_UNROLL
      for (int j = 0; j < shape.slots; j += step) value[first + j][i] = hopper::fma(args.mix, sum, value[first + j][i]);
    }
  }
}

/// Bits of the largest |value|, of what is not NaN.
template <int held>
HOPPER_FUNCTION std::uint32_t largest(const float (&value)[held][8]) {
  float of_half[2] = {};
  HOPPER_UNROLL
  for (int j = 0; j < held; ++j) HOPPER_UNROLL
  for (int i = 0; i < 8; ++i) of_half[i % 2] = hopper::maximum(of_half[i % 2], std::abs(value[j][i]));
  return std::bit_cast<std::uint32_t>(hopper::maximum(of_half[0], of_half[1]));
}

/// The butterflies within a piece and between those of the same slot. By whole warps.
template <int lanes>
HOPPER_FUNCTION void rotate_piece(float (&value)[8]) {
  HOPPER_UNROLL
  for (int step = 1; step < 8; step *= 2) HOPPER_UNROLL
  for (int i = 0; i < 8; ++i)
    if ((i & step) == 0) {
      const float a = value[i], b = value[i + step];
      value[i] = a + b;
      value[i + step] = a - b;
    }
  HOPPER_UNROLL
  for (int mask = 1; mask < lanes; mask *= 2) {
    const float sign = (hopper::lane() & mask) != 0 ? -1.0f : 1.0f;
    HOPPER_UNROLL
    for (int i = 0; i < 8; ++i) value[i] = hopper::fma(value[i], sign, hopper::from_lane_xor(value[i], mask));
  }
}

/// Those between slots, and the mix. The result is largest(), or the bits of some infinity or NaN if there are any.
template <QuantizeShape shape>
HOPPER_FUNCTION std::uint32_t rotate_slots(float (&value)[shape.held()][8], const QuantizeArguments& args) {
  constexpr int held = shape.held();
  const auto butterflies = [&](int step) {
    HOPPER_UNROLL
    for (int j = 0; j < held; ++j) HOPPER_UNROLL
    for (int i = 0; i < 8; ++i)
      if ((j & step) == 0) {
        const float a = value[j][i], b = value[j + step][i];
        value[j][i] = a + b;
        value[j + step][i] = a - b;
      }
  };
  if constexpr (shape.three_segments()) {
    butterflies(1);
    mix_segments<2, shape>(value, args);
    return largest(value);
  } else if (args.slots_of_segment == shape.slots) {
    HOPPER_UNROLL
    for (int step = 1; step < shape.slots / 2; step *= 2) butterflies(step);
    // The larger one of |a + b| and |a - b| is |a| + |b|: half as many for the maximum, which as integers go by two.
    std::uint32_t most = 0;
    constexpr int step = shape.slots / 2;
    HOPPER_UNROLL
    for (int j = 0; j < held; ++j) HOPPER_UNROLL
    for (int i = 0; i < 8; i += 2)
      if ((j & step) == 0) {
        std::uint32_t of_two[2];
        HOPPER_UNROLL
        for (int k = i; k < i + 2; ++k) {
          const float a = value[j][k], b = value[j + step][k];
          of_two[k - i] = std::bit_cast<std::uint32_t>(std::abs(a) + std::abs(b));
          value[j][k] = a + b;
          value[j + step][k] = a - b;
        }
        most = std::max(std::max(of_two[0], of_two[1]), most);
      }
    return most;
  } else {
    HOPPER_UNROLL
    for (int step = 1; step < shape.slots; step *= 2)
      if (step < args.slots_of_segment) butterflies(step);
    if (args.segments > 1) {
      if (args.slots_of_segment == 1)
        mix_segments<1, shape>(value, args);
      else if (args.slots_of_segment == 2)
        mix_segments<2, shape>(value, args);
      else if constexpr (shape.slots == 16)
        mix_segments<4, shape>(value, args);
    }
    return largest(value);
  }
}

/// The largest bits of all threads of the CTA. `maxima`: of QuantizeShared, not those of the block before, which others
/// may be reading; of the one before that all has been read, as everybody has passed the barrier since.
template <QuantizeShape shape>
HOPPER_FUNCTION std::uint32_t maximum_of_block(std::uint32_t (&maxima)[16], int thread, std::uint32_t of_thread) {
  const std::uint32_t of_warp = hopper::warp_max(of_thread);
  if (hopper::lane() == 0) hopper::store_shared(maxima[thread / hopper::warp_threads], of_warp);
  hopper::cta_sync();
  constexpr int warps = shape.threads() / hopper::warp_threads;
  return hopper::warp_max(hopper::lane() < warps ? hopper::load_shared(maxima[hopper::lane()]) : 0);
}

struct PlaceOfBlock {
  int batch, head, block;  // of the head
};

/// What args.step says of this CTA's blocks. `transform` is that of the whole problem.
template <hopper::Element element, Transform transform, QuantizeShape shape>
HOPPER_FUNCTION void quantize(QuantizeShared& shared, const QuantizeArguments& args) {
  constexpr int slots = shape.slots, lanes = shape.lanes, held = shape.held();
  constexpr int apart = scale_rows / shape.rows;  // of a thread's rows
  // The embedding and rotated rows of 16 pieces have no registers to spare.
  constexpr bool loads_ahead = transform == Transform::none || (transform == Transform::rotation && shape.slots <= 8);
  const bool rotates = transform == Transform::rotation || (transform == Transform::embedding && args.rotate);
  const int thread = thread_of_cta();
  const int first_row = thread / lanes, first_piece = thread % lanes;

  const auto place_of = [&](int item) {
    // What step `maxima` read last is still in L2.
    if (args.step == QuantizeStep::from_maxima) item = args.items - 1 - item;
    const int blocks = quotient(item, args.by_heads), batch = quotient(blocks, args.by_blocks);
    return PlaceOfBlock{batch, item - blocks * args.heads, blocks - batch * args.blocks};
  };
  const auto row_of_block = [&](const PlaceOfBlock& at, int r) {
    return at.block * scale_rows + first_row + r * apart;
  };
  // In the place of a row that is not there stands the last one, in that of a piece another one of the same row: so no
  // value need be left out of the maximum.
  const auto row_within = [&](const PlaceOfBlock& at, int r) {
    const int row = row_of_block(at, r);
    return row < args.seqlen ? row : args.seqlen - 1;
  };
  const auto has = [&](int j) { return first_piece + j % slots * lanes < args.pieces; };
  const auto piece_within = [&](int j) {
    return first_piece + (has(j) ? j % slots : j & (args.slots_of_segment - 1)) * lanes;
  };

  EightFeatures given[held];
  struct RowsOfX {
    const std::uint16_t* first[shape.rows];  // this lane's first piece
  };
  const auto rows_of = [&](const PlaceOfBlock& at) {
    RowsOfX rows;
    HOPPER_UNROLL
    for (int r = 0; r < shape.rows; ++r)
      rows.first[r] = row_of(args.x, at.batch, at.head, row_within(at, r)) + piece_features * first_piece;
    return rows;
  };
  const auto load = [&](const RowsOfX& rows, int first, int count) {
    if (args.x_whole) {
      HOPPER_UNROLL
      for (int j = first; j < first + count; ++j)
        given[j] = load_eight(rows.first[j / slots] + piece_features * lanes * (j % slots), true);
    } else {
      HOPPER_UNROLL
      for (int j = first; j < first + count; ++j)
        given[j] = load_eight(rows.first[j / slots] + piece_features * (piece_within(j) - first_piece), args.x.aligned);
    }
  };
  // What is done with a few pieces before the next ones. ptxas keeps to it because there is a branch in between; with
  // all exchanges in a row the warps, which are at about the same place, would wait for the shuffle unit.
  constexpr int together = transform == Transform::rotation ? 2 : held;

  int parity = 0;
  PlaceOfBlock next = place_of(hopper::cta());
  if (loads_ahead) load(rows_of(next), 0, held);
  if constexpr (transform != Transform::none) {
    if (thread < slots * lanes) hopper::store_shared(shared.signs[thread], args.signs[thread]);
    hopper::cta_sync();
  }
  for (int item = hopper::cta(); item < args.items;) {
    parity ^= 1;
    const PlaceOfBlock at = next;
    if (!loads_ahead) load(rows_of(at), 0, held);
    item += hopper::cta_count();
    RowsOfX next_rows{};
    if (item < args.items) {
      next = place_of(item);
      if (loads_ahead) next_rows = rows_of(next);
    }
    float value[held][8];
    HOPPER_UNROLL
    for (int first = 0; first < held; first += together) {
      HOPPER_UNROLL
      for (int j = first; j < first + together; ++j) {
        SignsOfPiece signs;
        if constexpr (transform != Transform::none)
          signs = hopper::load_shared(shared.signs[first_piece + j % slots * lanes]);
        if constexpr (transform == Transform::rotation) {
          HOPPER_UNROLL
          for (int p = 0; p < 4; ++p) given[j].pair[p] ^= signs.pair[p];
        }
        unpack<element>(value[j], given[j]);
        if constexpr (transform == Transform::embedding) {
          const int row = row_within(at, j / slots);
          rope<element>(value[j], args, row_of(args.x, at.batch, at.head, row), row, piece_features * piece_within(j));
          HOPPER_UNROLL
          for (int i = 0; i < 8; ++i)
            value[j][i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value[j][i]) ^
                                               (signs.pair[i / 2] << (i % 2 == 0 ? 16 : 0) & 0x80000000u));
        }
      }
      if (loads_ahead && item < args.items) load(next_rows, first, together);
      if constexpr (transform != Transform::none)
        if (rotates) {
          HOPPER_UNROLL
          for (int j = first; j < first + together; ++j) rotate_piece<lanes>(value[j]);
        }
    }

    std::uint32_t most;
    if constexpr (transform == Transform::none)
      most = largest(value);
    else
      most = rotates ? rotate_slots<shape>(value, args) : largest(value);
    // Infinities become NaN. Those need no care: the maximum ignores them, and their products are NaN.
    if (most >= infinity_bits) {
      HOPPER_UNROLL
      for (int j = 0; j < held; ++j) HOPPER_UNROLL
      for (int i = 0; i < 8; ++i)
        if (!is_finite(value[j][i])) value[j][i] = std::numeric_limits<float>::quiet_NaN();
      most = largest(value);
    }

    const int group = quotient(at.head, args.by_group);
    float scale = 1;
    const bool reads_scale = args.step == QuantizeStep::given && args.scale != nullptr;
    bool writes_scale = false;
    if (args.step != QuantizeStep::given) {
      const auto place_of_maximum = [&]() -> unsigned& { return args.maxima[at.batch * args.maxima_of_batch + group]; };
      std::uint32_t bits;
      writes_scale = thread == 0;
      if (args.step == QuantizeStep::from_maxima) {
        bits = place_of_maximum();
        writes_scale = writes_scale && at.block == 0 && at.head == group * args.group &&
                       (at.batch == 0 || args.maxima_of_batch != 0);
      } else {
        bits = maximum_of_block<shape>(shared.of_warp[parity], thread, most);
      }
      if (args.step == QuantizeStep::maxima) {
        // Mostly another block's is larger, and a look is cheaper than an atomic; the value only grows.
        if (thread == 0 && bits > place_of_maximum()) hopper::atomic_max(&place_of_maximum(), bits);
        continue;
      }
      scale = scale_of(args.norm * std::bit_cast<float>(bits), args.largest);
    }
    if (reads_scale || writes_scale) {
      float& place =
          args.scale[at.batch * args.scale_stride[0] + group * args.scale_stride[1] + at.block * args.scale_stride[2]];
      if (reads_scale)
        scale = place;
      else
        place = scale;
    }

    float factor = args.norm * (1.0f / scale);
    // In a loop of its own: products with a scale that was found here need no limit, and shall not pay for one. It is
    // one of the products because a bound of the values would be rounded, and be 0 for an infinite factor.
    if (args.limits) {
      HOPPER_UNROLL
      for (int j = 0; j < held; ++j) HOPPER_UNROLL
      for (int i = 0; i < 8; ++i) value[j][i] = limited(value[j][i] * factor, args.largest);
      factor = 1;
    }
    const auto quantized = [&](const float(&v)[8]) {
      EightE4m3 out;
      HOPPER_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float* const four = v + 4 * half;
        out.four[half] = hopper::pack4_e4m3(four[0] * factor, four[1] * factor, four[2] * factor, four[3] * factor);
      }
      return out;
    };
    HOPPER_UNROLL
    for (int r = 0; r < shape.rows; ++r) {
      const int row = row_of_block(at, r);
      std::uint8_t* const y = args.y + at.batch * args.y_stride[0] + at.head * args.y_stride[1] +
                              row * args.y_stride[2] + piece_features * first_piece;
      if (args.y_whole) {
        // Of two lanes and two slots the even lane stores the first slot's pieces and the odd lane the second one's:
        // else a warp would store halves of sectors.
        const bool second = first_piece != 0, stores = row < args.seqlen;
        HOPPER_UNROLL
        for (int j = 0; j < slots; j += lanes == 2 ? 2 : 1) {
          const EightE4m3 a = quantized(value[r * slots + j]);
          if constexpr (lanes == 2) {
            const EightE4m3 b = quantized(value[r * slots + j + 1]);
            SixteenE4m3 out;
            HOPPER_UNROLL
            for (int i = 0; i < 2; ++i) {
              const std::uint32_t other = hopper::from_neighbour(second ? a.four[i] : b.four[i]);
              out.four[i] = second ? other : a.four[i];
              out.four[2 + i] = second ? b.four[i] : other;
            }
            if (stores && j < args.slots_used)
              *reinterpret_cast<SixteenE4m3*>(y + piece_features * (2 * j + first_piece)) = out;
          } else {
            if (stores && j < args.slots_used) *reinterpret_cast<EightE4m3*>(y + piece_features * lanes * j) = a;
          }
        }
        continue;
      }
      HOPPER_UNROLL
      for (int j = 0; j < slots; ++j) {
        const EightE4m3 out = quantized(value[r * slots + j]);
        if (row >= args.seqlen || !has(j)) continue;
        std::uint8_t* const to = y + piece_features * lanes * j;
        if (args.y_aligned) {
          *reinterpret_cast<EightE4m3*>(to) = out;
          continue;
        }
        HOPPER_UNROLL
        for (int i = 0; i < 8; ++i) to[i] = std::uint8_t(out.four[i / 4] >> 8 * (i % 4));
      }
    }
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
