// What stands before and after the main kernel of the backward pass, row by row of Q. Marks in brackets are the steps
// of docs/algorithm.md, "The backward pass".
#pragma once

#include <limits>

#include "attention/backward_arguments.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// Eight 16-bit features.
struct alignas(16) EightFeatures {
  std::uint32_t pair[4];
};

HOPPER_FUNCTION EightFeatures load_eight(const std::uint16_t* from, bool aligned) {
  EightFeatures eight;
  if (aligned) return *reinterpret_cast<const EightFeatures*>(from);
  HOPPER_UNROLL
  for (int i = 0; i < 4; ++i) eight.pair[i] = from[2 * i] | std::uint32_t(from[2 * i + 1]) << 16;
  return eight;
}
HOPPER_FUNCTION void store_eight(std::uint16_t* to, const EightFeatures& eight, bool aligned) {
  if (aligned) {
    *reinterpret_cast<EightFeatures*>(to) = eight;
    return;
  }
  HOPPER_UNROLL
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = std::uint16_t(eight.pair[i]);
    to[2 * i + 1] = std::uint16_t(eight.pair[i] >> 16);
  }
}

HOPPER_FUNCTION std::uint16_t* row_of(const Rows& tensor, int batch, int head, int row) {
  return tensor.data + batch * tensor.stride[0] + head * tensor.stride[1] + row * tensor.stride[2];
}

/// Index of this thread in its CTA.
HOPPER_FUNCTION int thread_of_cta() {
  return hopper::warpgroup_threads * hopper::warpgroup() + hopper::thread_of_warpgroup();
}

/// [B1] Statistics of rows_of_cta rows of padded sequences (blocks * layout.rows rows each): D = rowsum(dO * O), and
/// -LSE in base 2. Rows without keys and those of the padding get -inf, so that P = 0. Zeroes what the main kernel does
/// not of dQ.
template <hopper::Element element>
HOPPER_FUNCTION void before_backward(const BeforeBackwardArguments& args) {
  hopper::let_next_grid_start();
  const int thread = thread_of_cta();
  const std::int64_t padded = std::int64_t(hopper::cta()) * rows_of_cta + thread / 4;
  const std::int64_t block = padded / args.layout.rows;  // of all sequences
  const int sequence = int(block / args.blocks), within = int(padded % args.layout.rows);
  const int row = int(block % args.blocks) * args.layout.rows + within;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float sum = 0, minus_lse = -infinity;
  if (row < args.seqlen_q) {
    const int batch = sequence / args.heads, head = sequence % args.heads;
    const float lse = args.lse[batch * args.lse_stride[0] + head * args.lse_stride[1] + row * args.lse_stride[2]];
    const std::uint16_t* const d_o = row_of(args.d_o, batch, head, row);
    const std::uint16_t* const o = row_of(args.o, batch, head, row);
    // Two at a time, and without a look at LSE, so that enough loads are under way.
    for (int first = 8 * (thread % 4); first < args.d_v; first += 2 * 32) {
      EightFeatures a[2] = {}, b[2] = {};
      HOPPER_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int feature = first + 32 * i;
        if (feature >= args.d_v) continue;
        a[i] = load_eight(d_o + feature, args.d_o.aligned);
        b[i] = load_eight(o + feature, args.o.aligned);
      }
      HOPPER_UNROLL
      for (int i = 0; i < 8; ++i) {
        float a_low, a_high, b_low, b_high;
        hopper::unpack2<element>(a[i / 4].pair[i % 4], a_low, a_high);
        hopper::unpack2<element>(b[i / 4].pair[i % 4], b_low, b_high);
        sum = hopper::fma(a_low, b_low, sum);
        sum = hopper::fma(a_high, b_high, sum);
      }
    }
    // A row without keys may hold whatever it likes.
    if (lse == -infinity) sum = 0;
    if (lse != -infinity && lse != infinity) minus_lse = hopper::fma(lse, args.ratio_high, lse * args.ratio_low);
  }
  sum = hopper::quad_sum(sum);
  if (thread % 4 == 0) {
    float* const statistics = args.statistics + block * (2 * args.layout.rows) + place_of_statistics(within);
    statistics[0] = minus_lse + args.log2_p_size;
    statistics[args.layout.rows] = -args.d_size * sum;
  }

  const std::int64_t first = std::int64_t(hopper::cta()) * row_threads + thread;
  const std::int64_t step = std::int64_t(hopper::cta_count()) * row_threads;
  FourOfDq* const dq = reinterpret_cast<FourOfDq*>(args.dq);
  for (std::int64_t i = first; i < args.kept_begin / 4; i += step) dq[i] = FourOfDq{};
  for (std::int64_t i = args.kept_end / 4 + first; i < args.dq_floats / 4; i += step) dq[i] = FourOfDq{};
  for (std::int64_t i = first; i < args.count_count; i += step) args.counts[i] = i == 0 ? args.first_count : 0;
}

/// [B13] One block of dQ in 16 bits, times softmax_scale. A thread reads the 64 bytes in which a quad has left eight
/// columns of two rows.
template <hopper::Element element>
HOPPER_FUNCTION void after_backward(const AfterBackwardArguments& args) {
  hopper::wait_for_previous_grid();
  const DqLayout& layout = args.layout;
  const int ctas = args.zero_blocks + args.blocks;  // of a sequence
  // The last ones first: they are still in L2.
  const int place = hopper::cta_count() - 1 - hopper::cta();
  const int sequence = place / ctas, index = place % ctas - args.zero_blocks;
  const int batch = sequence / args.heads, head = sequence % args.heads;
  if (index < 0) {
    const int first_row = (index + args.zero_blocks) * layout.rows, pieces = (args.d + 7) / 8;
    const int rows = minimum(layout.rows, args.zero_rows - first_row);
    for (int i = thread_of_cta(); i < rows * pieces; i += row_threads)
      store_eight(row_of(args.out, batch, head, first_row + i / pieces) + i % pieces * 8, EightFeatures{},
                  args.out.aligned);
    return;
  }
  const int first_row = args.zero_rows + index * layout.rows;
  const float* const block = args.dq + (std::int64_t(sequence) * args.blocks + index) * layout.block_floats();
  const int groups = layout.part_columns / 8;
  for (int i = thread_of_cta(); i < layout.block_floats() / 16; i += row_threads) {
    // From the lowest digit: four groups, the quad, the other groups, the warp, the part. So a warp reads pieces of 512
    // bytes and writes pieces of 64.
    int rest = i / 32;
    const int quad = i / 4 % 8, group = 4 * (rest % (groups / 4)) + i % 4;
    rest /= groups / 4;
    const int warp = rest % 4, part = rest / 4;
    const float* const from = block + (((4 * part + warp) * groups + group) * 32 + 4 * quad) * 4;
    EightFeatures out[2];
    HOPPER_UNROLL
    for (int lane = 0; lane < 4; ++lane) {
      const FourOfDq four = *reinterpret_cast<const FourOfDq*>(from + 4 * lane);
      HOPPER_UNROLL
      for (int r = 0; r < 2; ++r)
        out[r].pair[lane] = hopper::pack2<element>(four.value[2 * r] * args.scale, four.value[2 * r + 1] * args.scale);
    }
    const int column = (layout.split_rows ? 0 : part * layout.part_columns) + 8 * group;
    const int row = first_row + (layout.split_rows ? 64 * part : 0) + 16 * warp + quad;
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r)
      if (row + 8 * r < args.seqlen_q && column < args.d)
        store_eight(row_of(args.out, batch, head, row + 8 * r) + column, out[r], args.out.aligned);
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
