// Every row of the kernel table on the simulator, over cases made to fit its tiles, under every completion policy (bf16
// rows, and e4m3 rows in the cases that all have, under the random one in the full suite only). All
// runs of a case must give the same bits, and these must be right (check::judge).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "check/case.hpp"
#include "check/run.hpp"
#include "kernels/configs.hpp"
#include "neighbours.hpp"
#include "simulate/forward.hpp"
#include "simulate/on_simulator.hpp"

namespace fa3 {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();
using Row = kernels::ForwardRow;
enum { q_tensor, k_tensor, v_tensor };

check::Case base(const Row& row, const std::string& name, std::int64_t seqlen_q, std::int64_t seqlen_k, bool causal) {
  check::Case c;
  c.name = std::string(row.name) + "/" + name;
  c.dtype = kernels::dtype_of(row.config.element);
  if (row.config.fp8()) c.q.scales = c.k.scales = c.v.scales = check::Scales::block;
  c.narrow = row.config.f16_sums;
  c.d = row.config.d;
  c.d_v = row.config.d_v;
  c.seqlen_q = seqlen_q;
  c.seqlen_k = seqlen_k;
  c.causal = causal;
  return c;
}

/// Adds begin + slope * key to the logits, in base 2. Blocks are visited from the last key down. Where q and k must be
/// narrow they are small beside, and the scale of the softmax large.
void add_to_logits(check::Case& c, double begin, double slope) {
  constexpr double log2_e = 1.4426950408889634;
  double q = 4, scale = 1 / std::sqrt(double(c.d));
  if (c.narrow) {
    q = 15, c.q.scale = c.k.scale = 0.25;
    scale = std::max(std::abs(begin), std::abs(begin + slope * double(c.seqlen_k))) / (15 * q * log2_e);
    c.softmax_scale = float(scale);
  }
  const double unit = 1 / (q * log2_e * scale);
  c.patches = {{.tensor = q_tensor, .feature = 0, .value = q},
               {.tensor = k_tensor, .feature = 0, .value = begin * unit, .slope = slope * unit}};
}

struct NamedCase {
  const char* name;
  check::Case (*make)(const Row&, const char* name);
};

const NamedCase cases[] = {
    {"one_key", [](const Row& row, const char* name) { return base(row, name, 1, 1, false); }},
    {"one_row", [](const Row& row, const char* name) { return base(row, name, 1, row.config.tile_kv + 1, true); }},
    {"no_keys",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, row.config.tile_q + 3, 0, false);
       c.heads = 2;
       return c;
     }},
    {"whole_tiles",
     [](const Row& row, const char* name) { return base(row, name, row.config.tile_q, 2 * row.config.tile_kv, true); }},
    {"ragged",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, row.config.tile_q + 1, (row.config.stages + 1) * row.config.tile_kv - 1, false);
       c.heads = c.kv_heads = 2;
       return c;
     }},
    {"more_queries_than_keys",
     [](const Row& row, const char* name) {
       return base(row, name, 2 * row.config.tile_q + 70, row.config.tile_kv + 9, true);
     }},
    {"more_keys_than_queries",
     [](const Row& row, const char* name) { return base(row, name, 60, 4 * row.config.tile_kv + 9, true); }},
    {"grouped_queries",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 20, 40, true);
       c.batch = 2;
       c.heads = 6;
       c.kv_heads = 2;
       return c;
     }},
    {"padded_features",
     [](const Row& row, const char* name) {  // by TMA
       check::Case c = base(row, name, 70, row.config.tile_kv + 30, true);
       c.d = row.config.fp8() ? c.d - 48 : std::max<std::int64_t>(8, c.d - 56);
       c.d_v = row.config.fp8() ? c.d_v - 16 : std::max<std::int64_t>(8, c.d_v - 24);
       c.lse = check::LseLayout::transposed;
       return c;
     }},
    {"nonfinite_neighbours",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 33, row.config.tile_kv - 5, false);
       c.batch = c.heads = c.kv_heads = 2;
       c.patches = {{.tensor = k_tensor, .batch = 1, .value = nan},
                    {.tensor = v_tensor, .batch = 1, .value = nan},
                    {.tensor = v_tensor, .batch = 0, .head = 1, .value = c.narrow ? nan : infinity},
                    {.tensor = q_tensor, .batch = 0, .row = 7, .head = 0, .value = nan}};
       return c;
     }},
    {"negative_scale",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 50, 2 * row.config.tile_kv + 5, true);
       c.softmax_scale = -0.3f;
       return c;
     }},
    {"zero_scale",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 50, 2 * row.config.tile_kv + 5, true);
       c.softmax_scale = 0.0f;
       return c;
     }},
    {"large_logits",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 50, 3 * row.config.tile_kv, false);
       c.q.scale = c.k.scale = c.narrow ? 2.5 : 30;
       c.q.quantum = c.k.quantum = 1;
       if (c.narrow) c.softmax_scale = float(48 / std::sqrt(double(c.d)));
       return c;
     }},
    {"rising_logits",
     [](const Row& row,
        const char* name) {  // m is raised in every block, and many rows see their first key in a later one
       check::Case c = base(row, name, row.config.tile_q, 3 * row.config.tile_kv + 32, true);
       add_to_logits(c, 0, -20.0 / row.config.tile_kv);
       return c;
     }},
    {"jumping_logits",
     [](const Row& row, const char* name) {  // P of the blocks after the first is infinite until m is raised
       check::Case c = base(row, name, 70, 3 * row.config.tile_kv - 7, false);
       add_to_logits(c, 0, -300.0 / row.config.tile_kv);
       return c;
     }},
    {"very_negative_logits",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 70, 2 * row.config.tile_kv - 7, true);
       add_to_logits(c, -500, 0);
       return c;
     }},
    {"rising_negative_logits",
     [](const Row& row, const char* name) {  // m is raised in every block, by scores below 0
       check::Case c = base(row, name, 70, 3 * row.config.tile_kv - 7, false);
       add_to_logits(c, -20, -20.0 / row.config.tile_kv);
       return c;
     }},
    {"unaligned_rows",
     [](const Row& row,
        const char* name) {  // all tensors go through the workspace, of e4m3 rows O only
       check::Case c = base(row, name, 40, row.config.tile_kv + 1, true);
       c.heads = c.kv_heads = 2;
       c.o.layout = check::Layout::padded;
       if (!row.config.fp8()) c.q.layout = c.k.layout = c.v.layout = check::Layout::padded;
       return c;
     }},
    {"transposed_and_repeated",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 40, row.config.tile_kv + 1, true);
       c.batch = c.heads = c.kv_heads = 2;
       c.q.layout = check::Layout::bhsd;
       c.k.layout = check::Layout::repeat_heads;
       c.v.layout = check::Layout::repeat_batch;
       c.o.layout = check::Layout::gapped;
       c.lse = check::LseLayout::none;
       return c;
     }},
    {"many_tiles",
     [](const Row& row, const char* name) {  // short ones, so that every buffer is the bottleneck at some time
       check::Case c = base(row, name, row.config.tile_q + 30, row.config.tile_kv + 40, true);
       c.heads = 4;
       c.kv_heads = 2;
       return c;
     }},
};

/// For rows with clusters only.
const NamedCase cluster_cases[] = {
    {"one_item",
     [](const Row& row, const char* name) {
       return base(row, name, row.config.tile_q + 5, row.config.tile_kv + 9, false);
     }},
    {"rank_without_rows",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 2 * row.config.tile_q + 9, 3 * row.config.tile_kv - 9, false);
       c.heads = 2;
       return c;
     }},
    {"ranks_see_different_keys",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 3 * row.config.tile_q - 9, 3 * row.config.tile_q + 60, true);
       c.heads = 2;
       return c;
     }},
    {"rank_without_keys",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 2 * row.config.tile_q, row.config.tile_q - 40, true);
       c.heads = c.kv_heads = 2;
       return c;
     }},
    {"many_items_dynamic",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, row.config.tile_q + 9, 40, true);
       c.batch = 2;
       c.heads = 6;
       c.kv_heads = 2;
       return c;
     }},
    {"many_items_static",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, row.config.tile_q + 9, 40, false);
       c.batch = 2;
       c.heads = 6;
       c.kv_heads = 2;
       return c;
     }},
};

/// One warpgroup has rows, `keys` keys, and O is bf16.
check::Case of_keys(const Row& row, const char* name, std::int64_t keys) {
  check::Case c = base(row, name, 64, keys, false);
  c.o_dtype = FA3_BF16;
  return c;
}

/// For e4m3 rows only.
const NamedCase fp8_cases[] = {
    {"keys_127", [](const Row& row, const char* name) { return of_keys(row, name, 127); }},
    {"keys_129", [](const Row& row, const char* name) { return of_keys(row, name, 129); }},
    {"keys_300", [](const Row& row, const char* name) { return of_keys(row, name, 300); }},
    {"bf16_output",
     [](const Row& row, const char* name) {  // the last columns of both are clipped
       check::Case c = base(row, name, 129, 257, true);
       c.o_dtype = FA3_BF16;
       c.d_v -= 16;
       c.o.layout = check::Layout::bhsd;
       return c;
     }},
    {"no_scales",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 70, 300, false);
       c.q.scales = c.k.scales = c.v.scales = check::Scales::none;
       return c;
     }},
    {"head_scales",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 70, 130, true);
       c.batch = c.kv_heads = 2;
       c.heads = 4;
       c.q.scales = c.k.scales = c.v.scales = check::Scales::head;
       return c;
     }},
    {"wild_scales",
     [](const Row& row, const char* name) {  // in more blocks than there are stages; of q two blocks in a tile
       check::Case c = base(row, name, 140, (row.config.stages + 1) * row.config.tile_kv - 9, true);
       c.heads = 2;
       c.o_dtype = FA3_BF16;
       c.q.scales = check::Scales::transposed;
       c.k.scales = c.v.scales = check::Scales::wild;
       return c;
     }},
    {"nan_of_one_head",
     [](const Row& row, const char* name) {  // the tiles before and after it use the same buffers
       check::Case c = base(row, name, 20, 2 * row.config.tile_kv + 7, false);
       c.batch = 2;
       c.heads = 4;
       c.kv_heads = 2;
       c.patches = {{.tensor = v_tensor, .batch = 0, .row = 5, .head = 1, .feature = 3, .value = nan},
                    {.tensor = k_tensor, .batch = 1, .row = -1, .head = 0, .value = nan}};
       return c;
     }},
};

check::Case of_d_major(const Row& row, const char* name, std::int64_t keys) {
  check::Case c = base(row, name, 70, keys, true);
  c.v.layout = check::Layout::d_major;
  return c;
}

/// For rows that take V^T only.
const NamedCase v_transposed_cases[] = {
    {"d_major_one_key", [](const Row& row, const char* name) { return of_d_major(row, name, 1); }},
    {"d_major_odd", [](const Row& row, const char* name) { return of_d_major(row, name, 2 * row.config.tile_kv + 5); }},
    {"d_major_whole", [](const Row& row, const char* name) { return of_d_major(row, name, 2 * row.config.tile_kv); }},
    {"repeated",
     [](const Row& row, const char* name) {  // one head and one batch entry is transposed
       check::Case c = of_d_major(row, name, row.config.tile_kv + 38);
       c.batch = 2;
       c.heads = c.kv_heads = 2;
       c.v.layout = check::Layout::repeat_heads;
       return c;
     }},
    {"d_major_heads",
     [](const Row& row, const char* name) {
       check::Case c = of_d_major(row, name, row.config.tile_kv + 38);
       c.batch = 2;
       c.heads = 6;
       c.kv_heads = 3;
       c.d_v -= 16;
       c.patches = {{.tensor = v_tensor, .batch = 1, .row = 5, .head = 1, .value = nan}};
       return c;
     }},
};

/// Run 0 is eager, run 1 lazy, the others are random; there are one to three SMs, or as many clusters.
void run(int row, check::Case c, int random_seeds) {
  c.repeats = 2 + random_seeds;
  int runs = 0;
  const auto simulate = [&](const ForwardProblem& problem) {
    simulator::Options options;
    options.completion = runs == 0   ? simulator::Completion::eager
                         : runs == 1 ? simulator::Completion::lazy
                                     : simulator::Completion::random;
    options.seed = std::uint64_t(runs);
    simulator::forward(problem, options, row, kernels::forward_rows[row].config.cluster * (1 + runs % 3));
    ++runs;
  };
  const check::Verdict verdict = check::run_case(c, Device::cpu, simulator::on_simulator(simulate));
  EXPECT_TRUE(verdict.passed) << c.name << ", run " << runs << ": " << verdict.message;
  EXPECT_EQ(runs, c.repeats);
}

void run(int row, const std::string& name, int random_seeds) {
  for (const auto& list : {std::span<const NamedCase>(cases), std::span<const NamedCase>(cluster_cases),
                           std::span<const NamedCase>(fp8_cases), std::span<const NamedCase>(v_transposed_cases)})
    for (const NamedCase& named : list)
      if (named.name == name) return run(row, named.make(kernels::forward_rows[row], named.name), random_seeds);
  FAIL() << "no case is called " << name;
}

// Which CTA takes a tile, and after which other tiles, must not show in its bits.
TEST(SmMargin, ChangesTheNumberOfCtasAndNoBit) {
  constexpr int row = kernels::select_forward_row(FA3_F16, 128, 128), sm_count = 5;
  const kernels::ForwardConfig& config = kernels::forward_rows[row].config;
  check::Case c = base(kernels::forward_rows[row], "sm_margin", config.tile_q + 30, config.tile_kv + 40, true);
  c.heads = c.kv_heads = 3;
  c.repeats = sm_count;
  int margin = 0;
  const auto simulate = [&](ForwardProblem problem) {
    problem.sm_margin = margin;
    EXPECT_EQ(simulator::forward(problem, {}, row, sm_count).ctas, sm_count - margin);
    ++margin;
  };
  const check::Verdict verdict = check::run_case(c, Device::cpu, simulator::on_simulator(simulate));
  EXPECT_TRUE(verdict.passed) << verdict.message;
  EXPECT_EQ(margin, sm_count);
}

TEST(SmMargin, ThatLeavesNoSmIsRefusedBeforeAnythingIsWritten) {
  check::Case c = base(kernels::forward_rows[0], "sm_margin", 20, 20, false);
  c.sm_margin = simulator::usual_sm_count;
  const check::Verdict verdict = check::run_case(c, Device::cpu, simulator::forward_as_device);
  EXPECT_EQ(verdict.message, "sm_margin is 2; it must be below the device's number of SMs, 2");
}

class Rows : public testing::TestWithParam<std::tuple<int, std::string>> {};
class RowsFull : public Rows {};
class Fp8Rows : public Rows {};
class Neighbours : public testing::TestWithParam<int> {};
class SameBits : public testing::TestWithParam<int> {};
class LowTiles : public testing::TestWithParam<int> {};
class SeedsFull : public testing::TestWithParam<int> {};

/// Random completion for f16 only: bf16 rows run the same code but for the instructions' type.
TEST_P(Rows, AreRight) {
  const auto& [row, name] = GetParam();
  run(row, name, kernels::forward_rows[row].config.element == hopper::Element::f16 ? 2 : 0);
}

TEST_P(Fp8Rows, AreRight) { run(std::get<0>(GetParam()), std::get<1>(GetParam()), 2); }

TEST_P(RowsFull, AreRightWithManySeeds) { run(std::get<0>(GetParam()), std::get<1>(GetParam()), 20); }

/// m is raised row by row: a row whose m lags behind keeps its bits if others of its warp are raised.
TEST_P(Neighbours, ChangeNoBit) {
  const Row& row = kernels::forward_rows[GetParam()];
  const check::Case c = base(row, "neighbours", row.config.tile_q, 3 * row.config.tile_kv, false);
  const auto simulate = [](const ForwardProblem& problem) { simulator::forward(problem, {}, GetParam()); };
  const check::Verdict verdict =
      check::run_case(c, Device::cpu, simulator::on_simulator([&](const ForwardProblem& problem) {
                        test::run_with_other_neighbours(problem, simulate);
                      }));
  EXPECT_TRUE(verdict.passed) << verdict.message;
}

/// The row that dispatch takes for head dims of `row` and what it adds in where sequences are short.
int row_for_short(const Row& row, bool causal) {
  return kernels::select_forward_row(kernels::dtype_of(row.config.element), row.config.d, row.config.d_v, 0, causal,
                                     false, row.config.f16_sums);
}

/// sm_margin takes a call from a row for long sequences to the one for short ones, and must not change a bit.
TEST_P(SameBits, AsTheRowForShortSequences) {
  const Row& row = kernels::forward_rows[GetParam()];
  check::Case c = base(row, "same_bits", 2 * row.config.tile_q + 9, 2 * row.config.tile_q + 90, true);
  c.heads = 2;
  c.repeats = 2;
  const int other = row_for_short(row, c.causal);
  ASSERT_NE(other, GetParam());
  int runs = 0;
  const auto simulate = [&](const ForwardProblem& problem) {
    simulator::forward(problem, {}, runs++ == 0 ? GetParam() : other);
  };
  const check::Verdict verdict = check::run_case(c, Device::cpu, simulator::on_simulator(simulate));
  EXPECT_TRUE(verdict.passed) << verdict.message;
  EXPECT_EQ(runs, 2);
}

/// How high tiles are, which depends on the number of SMs, must not show either.
TEST_P(LowTiles, ChangeNoBit) {
  using enum simulator::Completion;
  const Row& row = kernels::forward_rows[GetParam()];
  check::Case c = base(row, "low_tiles", row.config.tile_q - 5, row.config.tile_kv + 30, false);
  c.heads = c.kv_heads = 3;
  struct Run {
    int sm_count, low_sequences;
    simulator::Completion completion;
  };
  const Run runs[] = {{1, 0, eager}, {2, 1, eager}, {2, 1, lazy}, {2, 1, random}, {13, 3, lazy}};
  c.repeats = int(std::size(runs));
  std::vector<std::uint64_t> flops;
  const auto simulate = [&](const ForwardProblem& problem) {
    const Run& run = runs[flops.size()];
    EXPECT_EQ(
        attention::choose_low_tiles(int(c.seqlen_q), row.config.consumer_warpgroups(), 3, 1, run.sm_count).sequences,
        run.low_sequences);
    const simulator::Options options{run.completion, 7, false};
    flops.push_back(simulator::forward(problem, options, GetParam(), run.sm_count).counters.wgmma_flops);
  };
  const check::Verdict verdict = check::run_case(c, Device::cpu, simulator::on_simulator(simulate));
  EXPECT_TRUE(verdict.passed) << verdict.message;
  EXPECT_EQ(flops, std::vector(std::size(runs), flops[0])) << "warpgroups without rows should compute nothing";
}

/// Two items, edge blocks and full ones, once around the K ring.
TEST_P(SeedsFull, Thousand) {
  const Row& row = kernels::forward_rows[GetParam()];
  check::Case c = base(row, "seeds", row.config.cluster * row.config.tile_q - row.config.tile_q / 2,
                       row.config.stages * row.config.tile_kv + 5, true);
  c.heads = 2;
  run(GetParam(), c, 1000);
}

std::vector<std::string> names_of(std::span<const NamedCase> list) {
  std::vector<std::string> names;
  for (const NamedCase& named : list) names.push_back(named.name);
  return names;
}

std::vector<int> rows_that(bool (*are)(const Row&)) {
  std::vector<int> rows;
  for (int i = 0; i < kernels::forward_row_count; ++i)
    if (are(kernels::forward_rows[i])) rows.push_back(i);
  return rows;
}
const std::vector<int> rows_with_clusters = rows_that([](const Row& row) { return row.config.cluster > 1; });
const std::vector<int> rows_of_v_transposed = rows_that([](const Row& row) { return row.config.v_is_transposed; });
const std::vector<int> rows_beside_others =
    rows_that([](const Row& row) { return &kernels::forward_rows[row_for_short(row, true)] != &row; });

const auto all_rows = testing::Range(0, kernels::forward_row_count);
const auto all_cases = testing::Combine(all_rows, testing::ValuesIn(names_of(cases)));
const auto all_cluster_cases =
    testing::Combine(testing::ValuesIn(rows_with_clusters), testing::ValuesIn(names_of(cluster_cases)));
const auto all_fp8_cases = testing::Combine(testing::Range(kernels::rows_of_16_bits, kernels::forward_row_count),
                                            testing::ValuesIn(names_of(fp8_cases)));
const auto all_v_transposed_cases =
    testing::Combine(testing::ValuesIn(rows_of_v_transposed), testing::ValuesIn(names_of(v_transposed_cases)));
const auto both_names = [](const auto& info) {
  return std::string(kernels::forward_rows[std::get<0>(info.param)].name) + "_" + std::get<1>(info.param);
};
const auto row_name = [](const auto& info) { return std::string(kernels::forward_rows[info.param].name) + "_"; };
INSTANTIATE_TEST_SUITE_P(Sim, Rows, all_cases, both_names);
INSTANTIATE_TEST_SUITE_P(SimClusters, Rows, all_cluster_cases, both_names);
INSTANTIATE_TEST_SUITE_P(Sim, Fp8Rows, all_fp8_cases, both_names);
INSTANTIATE_TEST_SUITE_P(SimVTransposed, Fp8Rows, all_v_transposed_cases, both_names);
INSTANTIATE_TEST_SUITE_P(Sim, RowsFull, all_cases, both_names);
INSTANTIATE_TEST_SUITE_P(SimClusters, RowsFull, all_cluster_cases, both_names);
INSTANTIATE_TEST_SUITE_P(SimFp8, RowsFull, all_fp8_cases, both_names);
INSTANTIATE_TEST_SUITE_P(SimVTransposed, RowsFull, all_v_transposed_cases, both_names);
INSTANTIATE_TEST_SUITE_P(Sim, Neighbours, all_rows, row_name);
INSTANTIATE_TEST_SUITE_P(Sim, SameBits, testing::ValuesIn(rows_beside_others), row_name);
INSTANTIATE_TEST_SUITE_P(Sim, LowTiles, testing::Range(kernels::rows_of_16_bits, kernels::forward_row_count), row_name);
INSTANTIATE_TEST_SUITE_P(Sim, SeedsFull, all_rows, row_name);

}  // namespace
}  // namespace fa3
