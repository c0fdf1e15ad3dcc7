// What a tile costs in bytes and instructions, against the model in docs/simulator.md.
#include <gtest/gtest.h>

#include "check/case.hpp"
#include "check/run.hpp"
#include "kernels/configs.hpp"
#include "simulate/forward.hpp"
#include "simulate/on_simulator.hpp"

namespace fa3 {
namespace {

class Counters : public testing::TestWithParam<int> {};

TEST_P(Counters, AreThoseOfTheModel) {
  const kernels::ForwardRow& row = kernels::forward_rows[GetParam()];
  const kernels::ForwardConfig& config = row.config;
  check::Case c;
  c.name = std::string(row.name) + "/counters";
  c.dtype = config.element == hopper::Element::f16 ? FA3_F16 : FA3_BF16;
  c.d = config.d;
  c.d_v = config.d_v;
  c.heads = 2;
  c.seqlen_q = config.tile_q + 1;
  c.seqlen_k = 2 * config.tile_kv + 1;
  simulator::ForwardRun run;
  const check::Verdict verdict =
      check::run_case(c, Device::cpu, simulator::on_simulator([&](const ForwardProblem& problem) {
                        run = simulator::forward(problem, {}, GetParam());
                      }));
  ASSERT_TRUE(verdict.passed) << verdict.message;

  const std::uint64_t tiles = 2 * 2, blocks = tiles * 3;  // padding costs as much as data
  const std::uint64_t tile_q = config.tile_q, tile_kv = config.tile_kv, d = config.d, d_v = config.d_v;
  const std::uint64_t moved_d = hopper::stored_columns(config.d), moved_d_v = hopper::stored_columns(config.d_v);
  const std::uint64_t warpgroups = config.consumer_warpgroups(), threads = 128 * warpgroups;
  const simulator::Counters& counters = run.counters;
  EXPECT_EQ(counters.tma_load_bytes, tiles * 2 * tile_q * moved_d + blocks * 2 * tile_kv * (moved_d + moved_d_v));
  EXPECT_EQ(counters.tma_store_bytes, tiles * 2 * tile_q * moved_d_v);
  EXPECT_EQ(counters.stmatrix_bytes, tiles * 2 * tile_q * d_v);
  EXPECT_EQ(counters.wgmma_a_bytes, blocks * 2 * tile_q * d);
  EXPECT_EQ(counters.wgmma_b_bytes, blocks * warpgroups * 2 * tile_kv * (d + d_v));
  EXPECT_EQ(counters.wgmma_instructions, blocks * warpgroups * (d / 16 + tile_kv / 16));
  EXPECT_EQ(counters.wgmma_flops, blocks * 2 * tile_q * tile_kv * (d + d_v));
  // P, and a factor for each row whose m was raised, per thread that holds it.
  EXPECT_GT(counters.exp2, blocks * tile_q * tile_kv);
  EXPECT_LE(counters.exp2, blocks * (tile_q * tile_kv + 2 * threads));
  EXPECT_EQ(counters.bank_conflicts, 0u);
  EXPECT_EQ(counters.ldmatrix_bytes, 0u);
  // A tile's record: written once, read by every consumer thread; each CTA gets one more, which says that there are no
  // more tiles.
  EXPECT_EQ(counters.ordinary_bytes, (tiles + std::uint64_t(run.ctas)) * (1 + threads) * sizeof(attention::Tile));
}

INSTANTIATE_TEST_SUITE_P(Sim, Counters, testing::Range(0, kernels::forward_row_count),
                         [](const auto& info) { return std::string(kernels::forward_rows[info.param].name); });

}  // namespace
}  // namespace fa3
