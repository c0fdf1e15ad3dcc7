// What a forward pass costs in bytes and instructions, against the model in docs/simulator.md.
#include <gtest/gtest.h>

#include "check/case.hpp"
#include "check/run.hpp"
#include "kernels/configs.hpp"
#include "simulate/forward.hpp"
#include "simulate/on_simulator.hpp"

namespace fa3 {
namespace {

std::uint64_t ceil_div(std::int64_t a, std::int64_t b) { return std::uint64_t((a + b - 1) / b); }

/// Of one head. Full or causal: what a range of rows needs is the blocks of its last row, from the first block on.
struct Work {
  std::uint64_t items = 0, tiles = 0;
  std::uint64_t loaded = 0;     // key blocks per CTA: those any row of its item sees
  std::uint64_t computed = 0;   // key blocks per warpgroup: those any of its rows sees
  std::uint64_t masked = 0;     // of these, those that not all of its rows see whole
  std::uint64_t attending = 0;  // warpgroups that compute any
  std::uint64_t redone = 0;  // key blocks per warp: those in which rows see their first keys, but for its first block
  std::uint64_t raised = 0;  // rows that do

  Work(const kernels::ForwardConfig& config, const ForwardProblem& problem) {
    const std::int64_t rows_per_item = config.cluster * config.tile_q;
    items = ceil_div(problem.seqlen_q, rows_per_item);
    tiles = items * std::uint64_t(config.cluster);
    const auto blocks = [&](std::int64_t first_row, std::int64_t rows) {
      if (first_row >= problem.seqlen_q) return std::uint64_t(0);
      return ceil_div(problem.visible_keys(std::min(first_row + rows, problem.seqlen_q) - 1), config.tile_kv);
    };
    const std::int64_t end = std::int64_t(items) * rows_per_item;
    for (std::int64_t item = 0; item < end; item += rows_per_item)
      loaded += std::uint64_t(config.cluster) * blocks(item, rows_per_item);
    for (std::int64_t warpgroup = 0; warpgroup < end; warpgroup += 64) {
      const std::uint64_t walk = blocks(warpgroup, 64);
      computed += walk;
      if (walk > 0) masked += walk - std::uint64_t(problem.visible_keys(warpgroup) / config.tile_kv);
      attending += walk > 0;
      for (std::int64_t warp = warpgroup; warp < warpgroup + 64; warp += 16)
        for (std::uint64_t block = 0; block + 1 < walk; ++block) {
          std::uint64_t first_keys = 0;
          for (std::int64_t row = warp; row < warp + 16; ++row) {
            const std::int64_t keys = problem.visible_keys(row);
            first_keys += keys > 0 && std::uint64_t(keys - 1) / std::uint64_t(config.tile_kv) == block;
          }
          redone += first_keys > 0;
          raised += first_keys;
        }
    }
  }
};

class Counters : public testing::TestWithParam<int> {
 protected:
  void expect_those_of_the_model(bool causal) {
    const kernels::ForwardRow& row = kernels::forward_rows[GetParam()];
    const kernels::ForwardConfig& config = row.config;
    check::Case c;
    c.name = std::string(row.name) + "/counters";
    c.dtype = kernels::dtype_of(config.element);
    c.narrow = config.f16_sums;
    if (config.fp8()) c.k.scales = check::Scales::head;  // stored and read for every block whatever they are
    c.d = config.d;
    c.d_v = config.d_v;
    // With a causal mask more items than a static schedule deals out.
    c.heads = causal ? 5 : 2;
    c.seqlen_q = config.cluster * config.tile_q + 1;
    c.seqlen_k = 2 * config.tile_kv + 1;
    c.causal = causal;
    c.q.scale = 0.1;  // no score outgrows the first ones
    simulator::ForwardRun run;
    ForwardProblem problem;
    const check::Verdict verdict =
        check::run_case(c, Device::cpu, simulator::on_simulator([&](const ForwardProblem& given) {
                          problem = given;
                          run = simulator::forward(problem, {}, GetParam());
                        }));
    ASSERT_TRUE(verdict.passed) << verdict.message;

    const Work head(config, problem);  // low tiles are as many here as whole ones would be
    const std::uint64_t heads = std::uint64_t(c.heads), items = heads * head.items, tiles = heads * head.tiles;
    const std::uint64_t loaded = heads * head.loaded, computed = heads * head.computed;
    ASSERT_TRUE(!causal || items > std::uint64_t(attention::few_rounds * run.ctas / config.cluster));
    const std::uint64_t tile_q = config.tile_q, tile_kv = config.tile_kv, d = config.d, d_v = config.d_v;
    const std::uint64_t moved_d = hopper::stored_columns(config.stored_d());
    const std::uint64_t moved_d_v = hopper::stored_columns(config.stored_d_v());
    const std::uint64_t threads = 128 * std::uint64_t(config.consumer_warpgroups());
    const simulator::Counters& counters = run.counters;
    // V^T: of every feature all keys of a block, 128 bytes.
    const std::uint64_t v_bytes = config.v_is_transposed ? d_v * tile_kv : 2 * tile_kv * moved_d_v;
    EXPECT_EQ(counters.tma_load_bytes, tiles * 2 * tile_q * moved_d + loaded * (2 * tile_kv * moved_d + v_bytes));
    EXPECT_EQ(counters.wgmma_flops, computed * 2 * 64 * tile_kv * (d + d_v));
    EXPECT_EQ(counters.bank_conflicts, 0u);
    // Each CTA gets one more record than tiles, which says that there are no more.
    const std::uint64_t records = tiles + std::uint64_t(run.ctas),
                        record = config.fp8() ? sizeof(attention::Item) : sizeof(attention::Tile);
    if (config.fp8()) {
      // V is read in pieces of 64 keys of 16 features, two at a time by each of three warps; beyond the end the last
      // one again.
      std::uint64_t read = 0;
      const std::uint64_t pieces = tile_kv / 64 * (d_v / 16);
      for (std::uint64_t warp = 0; warp < 3; ++warp) read += 2 * ((pieces - warp + 5) / 6);
      const std::uint64_t transposed = config.transposes_v() ? loaded : 0;
      const std::uint64_t staged = config.output == attention::Output::in_v_ring ? tiles : 0;
      // By warpgroups that have rows.
      const std::uint64_t stored = staged > 0 ? heads * ceil_div(c.seqlen_q, 64) * 64 : 0;
      EXPECT_EQ(counters.tma_store_bytes, stored * 2 * hopper::stored_columns(config.d_v));
      EXPECT_EQ(counters.ldmatrix_bytes, transposed * read * 64 * 16);
      EXPECT_EQ(counters.stmatrix_bytes, transposed * tile_kv * d_v);
      EXPECT_EQ(counters.wgmma_a_bytes, computed * 64 * d);
      EXPECT_EQ(counters.wgmma_b_bytes, computed * tile_kv * (d + d_v));
      EXPECT_EQ(counters.wgmma_instructions,
                computed * (d / 32 + d_v / std::uint64_t(config.pv_columns) * tile_kv / 32));
      // Every row gets its m once. Four threads hold it.
      const std::uint64_t pairs = computed * 64 * tile_kv / 2, one_in = std::uint64_t(config.pairs_per_polynomial());
      const std::uint64_t polynomials = one_in > 0 ? pairs / one_in : 0;
      EXPECT_EQ(counters.exp2, 2 * (pairs - polynomials) + heads * head.attending * 64 * 4);
      // A record, with the scales of Q, is written once. Every consumer thread reads the tile when it comes, for each
      // masked block and twice at the tile's end, and a scale with each block.
      const std::uint64_t of_records = records * (record + threads / 128 * 4 + threads * record) +
                                       heads * head.masked * 128 * record + computed * 128 * 4 +
                                       2 * tiles * threads * record;
      // A block's two scales; of every block and the end of them what it is, for the 96 transposers (every tile has
      // some); O, where it is staged.
      const std::uint64_t turns = config.transposes_v() ? loaded + std::uint64_t(run.ctas) : 0;
      EXPECT_EQ(counters.ordinary_bytes,
                of_records + loaded * 8 + computed * 128 * 8 + turns * (1 + 96) * 4 + staged * tile_q * d_v * 2);
      return;
    }
    const std::uint64_t staged = config.output == attention::Output::by_registers ? 0 : tiles;
    EXPECT_EQ(counters.tma_store_bytes, staged * 2 * tile_q * moved_d_v);
    EXPECT_EQ(counters.stmatrix_bytes, staged * 2 * tile_q * d_v);
    EXPECT_EQ(counters.wgmma_a_bytes, computed * 2 * 64 * d);
    EXPECT_EQ(counters.wgmma_b_bytes, computed * 2 * tile_kv * (d + d_v));
    EXPECT_EQ(counters.wgmma_instructions, computed * (d / 16 + tile_kv / 16));
    // Four threads hold a row, and each needs the factor from no m to the first.
    EXPECT_EQ(counters.exp2, computed * 64 * tile_kv + heads * (head.redone * 16 * tile_kv + head.raised * 4));
    EXPECT_EQ(counters.ldmatrix_bytes, 0u);
    // A cluster that asks for its items hands each over, and that there are no more: one word.
    const std::uint64_t handed_over = config.cluster > 1 && causal ? items : 0;
    // A record is written once, and read by every consumer thread.
    EXPECT_EQ(counters.ordinary_bytes, records * (1 + threads) * record + handed_over * 2 * 4);
  }
};

TEST_P(Counters, AreThoseOfTheModel) { expect_those_of_the_model(false); }
TEST_P(Counters, AreThoseOfTheModelWhereRowsSeeDifferentKeys) { expect_those_of_the_model(true); }

INSTANTIATE_TEST_SUITE_P(Sim, Counters, testing::Range(0, kernels::forward_row_count),
                         [](const auto& info) { return std::string(kernels::forward_rows[info.param].name); });

}  // namespace
}  // namespace fa3
