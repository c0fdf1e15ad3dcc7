// The quantiser: 128 rows of a head, x to y, step by step as docs/numerics.md defines it (FP8: the quantiser). A CTA,
// or a cluster of two, has a block; it reads x once and keeps it in registers until the scale is known.
#pragma once

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
  EightE4m3 staged[256 * 16];  // of y: rows of a warp side by side, 32 pieces of each slot
  std::uint32_t of_warp[16];   // bits of a maximum
  std::uint32_t of_peer;
  hopper::Mbarrier from_peer;  // 4 bytes, and the expectation of them: of_peer has come
};

struct alignas(16) FourFloats {
  float value[4];
};

HOPPER_FUNCTION int quotient(int n, Divisor divisor) { return int(std::uint64_t(n) * divisor.factor >> divisor.shift); }

HOPPER_FUNCTION bool is_finite(float x) { return (std::bit_cast<std::uint32_t>(x) & 0x7fffffffu) < 0x7f800000u; }

/// A pair of 16 bits with NaN in place of infinities.
template <hopper::Element element>
HOPPER_FUNCTION std::uint32_t without_infinity(std::uint32_t pair) {
  constexpr std::uint32_t infinity = element == hopper::Element::f16 ? 0x7c00 : 0x7f80;
  if ((pair & 0x7fff) == infinity) pair |= 1;
  if ((pair >> 16 & 0x7fff) == infinity) pair |= 0x10000;
  return pair;
}

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

/// (values D) H without its factor; D has been applied. By whole warps.
template <int slots>
HOPPER_FUNCTION void rotate(float (&value)[slots][8], const QuantizeArguments& args) {
  HOPPER_UNROLL
  for (int j = 0; j < slots; ++j) {
    if (j >= args.slots_used) continue;
    HOPPER_UNROLL
    for (int step = 1; step < 8; step *= 2) HOPPER_UNROLL
    for (int i = 0; i < 8; ++i)
      if ((i & step) == 0) {
        const float a = value[j][i], b = value[j][i + step];
        value[j][i] = a + b;
        value[j][i + step] = a - b;
      }
  }
  HOPPER_NO_UNROLL
  for (int mask = 1; mask < 1 << args.lanes_log2; mask *= 2) {
    const float sign = (hopper::lane() & mask) != 0 ? -1.0f : 1.0f;
    HOPPER_UNROLL
    for (int j = 0; j < slots; ++j) {
      if (j >= args.slots_used) continue;
      HOPPER_UNROLL
      for (int i = 0; i < 8; ++i)
        value[j][i] = hopper::fma(value[j][i], sign, hopper::from_lane_xor(value[j][i], mask));
    }
  }
  if (args.segments > 1) {
    HOPPER_UNROLL
    for (int i = 0; i < 8; ++i) {
      float sum = value[0][i];
      HOPPER_UNROLL
      for (int j = 1; j < slots; ++j)
        if (j < args.slots_used) sum += value[j][i];
      HOPPER_UNROLL
      for (int j = 0; j < slots; ++j)
        if (j < args.slots_used) value[j][i] = hopper::fma(args.mix, sum, value[j][i]);
    }
  } else if constexpr (slots <= 4) {  // 16 slots are for segments
    HOPPER_UNROLL
    for (int step = 1; step < slots; step *= 2) {
      if (step >= args.slots_used) continue;
      HOPPER_UNROLL
      for (int j = 0; j < slots; ++j) HOPPER_UNROLL
      for (int i = 0; i < 8; ++i)
        if ((j & step) == 0) {
          const float a = value[j][i], b = value[j + step][i];
          value[j][i] = a + b;
          value[j + step][i] = a - b;
        }
    }
  }
}

/// The largest bits of all threads of the CTA and, with own_scale, of its cluster.
HOPPER_FUNCTION std::uint32_t maximum_of_block(QuantizeShared& shared, const QuantizeArguments& args, int thread,
                                               float of_thread) {
  const std::uint32_t of_warp = hopper::warp_max(std::bit_cast<std::uint32_t>(of_thread));
  if (hopper::lane() == 0) hopper::store_shared(shared.of_warp[thread / hopper::warp_threads], of_warp);
  hopper::cta_sync();
  const int warps = (args.rows << args.lanes_log2) / hopper::warp_threads;
  const std::uint32_t most =
      hopper::warp_max(hopper::lane() < warps ? hopper::load_shared(shared.of_warp[hopper::lane()]) : 0);
  if (args.step != QuantizeStep::own_scale || args.parts_log2 == 0) return most;
  if (thread == 0) hopper::send_word(shared.of_peer, most, shared.from_peer, 1 - hopper::cluster_rank());
  shared.from_peer.wait(0);
  const std::uint32_t of_peer = hopper::load_shared(shared.of_peer);
  return of_peer > most ? of_peer : most;
}

/// What args.step says of a block, or of the CTA's half of it. `transform` is that of the whole problem,
/// args.slots_used at most `slots`.
template <hopper::Element element, Transform transform, int slots>
HOPPER_FUNCTION void quantize(QuantizeShared& shared, const QuantizeArguments& args) {
  const int thread = thread_of_cta();
  const int part = hopper::cta() & ((1 << args.parts_log2) - 1);
  // What step `maxima` read last is still in L2.
  int item = hopper::cta() >> args.parts_log2;
  if (args.step == QuantizeStep::from_maxima) item = args.items - 1 - item;
  const int blocks = quotient(item, args.by_heads), head = item - blocks * args.heads;  // blocks of a head before it
  const int batch = quotient(blocks, args.by_blocks), block = blocks - batch * args.blocks;
  const int row = ((block << args.parts_log2) + part) * args.rows + (thread >> args.lanes_log2);
  const int first_piece = thread & ((1 << args.lanes_log2) - 1);
  const auto piece = [&](int j) { return first_piece + (j << args.lanes_log2); };
  const auto has = [&](int j) { return row < args.seqlen && piece(j) < args.pieces; };
  const std::uint16_t* const x = row_of(args.x, batch, head, row);
  const bool exchanges = args.step == QuantizeStep::own_scale && args.parts_log2 != 0;

  EightFeatures given[slots];
  HOPPER_UNROLL
  for (int j = 0; j < slots; ++j)
    given[j] = has(j) ? load_eight(x + piece_features * piece(j), args.x.aligned) : EightFeatures{};
  if (exchanges) {
    if (thread == 0) {
      shared.from_peer.init(1);
      hopper::fence_barrier_init();
      shared.from_peer.arrive_expect_bytes(sizeof(shared.of_peer));
    }
    hopper::cluster_sync();
  }

  constexpr bool packed = transform == Transform::none;
  float value[packed ? 1 : slots][8];
  if constexpr (!packed) {
    HOPPER_UNROLL
    for (int j = 0; j < slots; ++j) {
      const std::uint32_t signs = args.rotate && has(j) ? args.signs[piece(j)] : 0;
      if constexpr (transform == Transform::rotation) {
        HOPPER_UNROLL
        for (int p = 0; p < 4; ++p) given[j].pair[p] ^= signs << p & 0x80008000u;
        unpack<element>(value[j], given[j]);
      } else {
        unpack<element>(value[j], given[j]);
        if (has(j)) rope<element>(value[j], args, x, row, piece_features * piece(j));
        HOPPER_UNROLL
        for (int i = 0; i < 8; ++i)
          value[j][i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value[j][i]) ^
                                             (signs << (i / 2 + (i % 2 == 0 ? 16 : 0)) & 0x80000000u));
      }
    }
    if (args.rotate) rotate(value, args);
  }
  // The values of a slot, as often as they are asked for.
  const auto for_each_slot = [&](const auto& f) {
    HOPPER_UNROLL
    for (int j = 0; j < slots; ++j) {
      if constexpr (!packed) {
        f(j, value[j]);
      } else {
        EightFeatures again;  // unpacked anew, so that it is kept packed
        HOPPER_UNROLL
        for (int p = 0; p < 4; ++p) again.pair[p] = std::uint32_t(hopper::recompute(int(given[j].pair[p])));
        unpack<element>(value[0], again);
        f(j, value[0]);
      }
    }
  };

  float most;
  const auto find_most = [&] {
    most = 0;
    for_each_slot([&](int, const float(&v)[8]) {
      HOPPER_UNROLL
      for (int i = 0; i < 8; ++i) most = hopper::maximum(most, std::abs(v[i]));
    });
  };
  find_most();
  // Infinities become NaN. Those need no care: the maximum ignores them, and their products are NaN.
  if (!is_finite(most)) {
    HOPPER_UNROLL
    for (int j = 0; j < slots; ++j) {
      if constexpr (packed) {
        HOPPER_UNROLL
        for (int p = 0; p < 4; ++p) given[j].pair[p] = without_infinity<element>(given[j].pair[p]);
      } else {
        HOPPER_UNROLL
        for (int i = 0; i < 8; ++i)
          if (!is_finite(value[j][i])) value[j][i] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    find_most();
  }

  const int group = quotient(head, args.by_group);
  const auto place_of_scale = [&]() -> float& {
    return args.scale[batch * args.scale_stride[0] + group * args.scale_stride[1] + block * args.scale_stride[2]];
  };
  float scale = 1;
  if (args.step == QuantizeStep::given) {
    if (args.scale != nullptr) scale = place_of_scale();
  } else {
    const auto place_of_maximum = [&]() -> unsigned& { return args.maxima[batch * args.maxima_of_batch + group]; };
    std::uint32_t bits;
    bool writes = thread == 0 && part == 0;
    if (args.step == QuantizeStep::from_maxima) {
      bits = place_of_maximum();
      writes = writes && block == 0 && head == group * args.group && (batch == 0 || args.maxima_of_batch != 0);
    } else {
      bits = maximum_of_block(shared, args, thread, most);
    }
    if (args.step == QuantizeStep::maxima) {
      // Mostly another block's is larger, and a look is cheaper than an atomic; the value only grows.
      if (thread == 0 && bits > place_of_maximum()) hopper::atomic_max(&place_of_maximum(), bits);
      return;
    }
    scale = scale_of(args.norm * std::bit_cast<float>(bits));
    if (writes) place_of_scale() = scale;
  }

  const float factor = args.norm * (1.0f / scale);
  std::uint8_t* const y = args.y + batch * args.y_stride[0] + head * args.y_stride[1] + row * args.y_stride[2];
  // Where a row has two threads, a warp's rows go through shared memory: from registers it would store halves of
  // sectors.
  EightE4m3* const staged = shared.staged + thread / hopper::warp_threads * (hopper::warp_threads * slots);
  const int row_of_warp = hopper::lane() >> args.lanes_log2;
  for_each_slot([&](int j, const float(&v)[8]) {
    if (!has(j)) return;
    EightE4m3 out;
    HOPPER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float* const four = v + 4 * half;
      out.four[half] = hopper::pack4_e4m3(four[0] * factor, four[1] * factor, four[2] * factor, four[3] * factor);
    }
    if (args.y_staged) {
      hopper::store_shared(staged[row_of_warp * args.pieces + piece(j)], out);
      return;
    }
    std::uint8_t* const to = y + piece_features * piece(j);
    if (args.y_aligned) {
      *reinterpret_cast<EightE4m3*>(to) = out;
      return;
    }
    HOPPER_UNROLL
    for (int i = 0; i < 8; ++i) to[i] = std::uint8_t(out.four[i / 4] >> 8 * (i % 4));
  });
  if (!args.y_staged) return;
  hopper::warp_sync();
  const int rows = hopper::warp_threads >> args.lanes_log2, per_row = args.pieces / 2;
  const int left = args.seqlen - (row - row_of_warp);
  for (int i = hopper::lane(); i < (left < rows ? left : rows) * per_row; i += hopper::warp_threads) {
    const int at = i / per_row;
    *reinterpret_cast<SixteenE4m3*>(y + (at - row_of_warp) * args.y_stride[2] + 16 * (i - at * per_row)) =
        hopper::load_shared(*reinterpret_cast<const SixteenE4m3*>(staged + 2 * i));
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
