// A mask with a left edge, which no mask of the product has: the kernel compiled against a copy of attention/mask.hpp
// in which a causal row sees its last `window` keys only (CMakeLists.txt writes it). Other names than the library's,
// whose mask is another.
#define attention attention_with_window
#define kernels kernels_with_window

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <type_traits>
#include <vector>

#include "dtype.hpp"
#include "hopper/sim/tensor_map.hpp"
#include "simulate/row.hpp"

namespace fa3 {
namespace {

constexpr int window = FA3_WINDOW;

template <attention::ForwardConfig config>
void expect_right(int clusters) {
  constexpr int seqlen_q = 2 * config.tile_q + 70, seqlen_k = seqlen_q + window, d = config.d, d_v = config.d_v;
  using In = std::conditional_t<config.fp8(), E4m3, Half>;
  static_assert((config.fp8() || config.element == hopper::Element::f16) && !config.v_is_transposed &&
                seqlen_k > window + 2 * config.tile_kv);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto made = [&](int elements, float factor) {
    std::vector<In> data((std::size_t(elements)));
    for (In& x : data) x = from_float<In>(factor * normal(random));
    return data;
  };
  std::vector<In> q = made(seqlen_q * d, 1), k = made(seqlen_k * d, 1),
                  v = made(seqlen_k * d_v, config.f16_sums ? 0.1875f : 1);  // narrow
  const auto value = [](const auto& x, int i) { return double(to_float(x[std::size_t(i)])); };
  const double scale = 1 / std::sqrt(double(d));
  std::vector<double> o_expected(seqlen_q * d_v), lse_expected(seqlen_q);
  for (int row = 0; row < seqlen_q; ++row) {
    const int end = row + 1 + seqlen_k - seqlen_q;
    double l = 0;
    for (int key = std::max(end - window, 0); key < end; ++key) {
      double s = 0;
      for (int c = 0; c < d; ++c) s += value(q, row * d + c) * value(k, key * d + c);
      const double p = std::exp(s * scale);
      l += p;
      for (int c = 0; c < d_v; ++c) o_expected[std::size_t(row * d_v + c)] += p * value(v, key * d_v + c);
    }
    for (int c = 0; c < d_v; ++c) o_expected[std::size_t(row * d_v + c)] /= l;
    lse_expected[std::size_t(row)] = std::log(l);
  }

  for (const simulator::Completion completion :
       {simulator::Completion::eager, simulator::Completion::lazy, simulator::Completion::random}) {
    SCOPED_TRACE(simulator::name(completion));
    std::vector<Half> o(seqlen_q * d_v, Half{0xffff});
    std::vector<float> lse(seqlen_q, NAN);
    // TMA knows pairs of e4m3.
    const auto map = [&](const char* name, auto& data, int features, int box_rows) {
      const std::uint64_t row = sizeof(data[0]) * std::uint64_t(features);
      hopper::TensorMap made_map = simulator::encode({name,
                                                      data.data(),
                                                      hopper::Element::f16,
                                                      {row / 2, data.size() / std::size_t(features), 1, 1},
                                                      {row, row, row},
                                                      64,
                                                      std::uint32_t(box_rows),
                                                      128});
      made_map.head_step = made_map.batch_step = 0;
      return made_map;
    };
    attention::ForwardArguments args{};
    args.q = map("Q", q, d, config.tile_q);
    args.k = map("K", k, d, config.tile_kv / config.cluster);
    args.v = map("V", v, d_v, config.tile_kv / config.cluster);
    args.o = map("O", o, d_v, config.output == attention::Output::in_v_ring ? 64 : 16);
    args.o_data = &o[0].bits;
    args.o_stride[2] = d_v;
    args.o_columns = d_v;
    args.lse = lse.data();
    args.lse_stride[2] = 1;
    args.mask = {seqlen_q, seqlen_k, true};
    const int rows = config.cluster * config.tile_q;
    args.order = attention::make_tile_order(rows, (seqlen_q + rows - 1) / rows, 1, 1, 1, clusters, 1);
    args.group = 1;
    const float scale_log2 = float(scale * 1.4426950408889634);
    args.scale = {scale_log2, 1.0f, scale_log2, 1.0f};
    alignas(256) unsigned next_item = 0;
    args.next_item = &next_item;
    simulator::Counters counters;
    std::vector<simulator::Event> events;
    const int ctas = clusters * config.cluster;
    for (int cta = 0; cta < ctas; cta += config.cluster)
      simulator::run_cluster<config>(args, {completion, 1, false}, cta, ctas, counters, events);

    for (int row = 0; row < seqlen_q; ++row)
      ASSERT_NEAR(lse[std::size_t(row)], lse_expected[std::size_t(row)], config.f16_sums ? 2e-3 : 1e-4)
          << "row " << row;
    // P of e4m3 has three bits of mantissa.
    for (int i = 0; i < seqlen_q * d_v; ++i)
      ASSERT_NEAR(value(o, i), o_expected[std::size_t(i)], config.fp8() ? 3e-2 : 2e-3)
          << "row " << i / d_v << ", feature " << i % d_v;
  }
}

template <int row>
constexpr attention::ForwardConfig config_of = kernels::forward_rows[row].config;

constexpr int row_named(std::string_view name) {
  for (int i = 0; i < kernels::forward_row_count; ++i)
    if (kernels::forward_rows[i].name == name) return i;
  return -1;
}

TEST(Window, LoopsForEdgesOnBothSides) { expect_right<config_of<row_named("f16_d64")>>(1); }
TEST(Window, BranchForEdgesOnBothSides) { expect_right<config_of<row_named("f16_d256")>>(1); }
TEST(Window, CtasOfAClusterSkipBlocksOnBothSides) {
  expect_right<config_of<row_named("f16_d128_cluster")>>(1);
  expect_right<config_of<row_named("f16_d256_cluster")>>(2);
}

TEST(Window, Fp8WithTurnsAndWithout) {
  expect_right<config_of<row_named("e4m3_d64_short")>>(1);
  expect_right<config_of<row_named("e4m3_d64")>>(2);
}
TEST(Window, Fp8WithSumsInF16) {
  expect_right<config_of<row_named("e4m3_narrow_d64")>>(1);
  expect_right<config_of<row_named("e4m3_narrow_d256")>>(2);
}
TEST(Window, Fp8WithOInTheRing) {
  expect_right<config_of<row_named("e4m3_d128")>>(1);
  expect_right<config_of<row_named("e4m3_d256")>>(2);
}

}  // namespace
}  // namespace fa3
