// Every row of the table of backward kernels on the simulator, over cases made to fit its tiles, under every completion
// policy. Deterministic runs must give the same bits; all must be right (gradients.hpp).
#include <gtest/gtest.h>

#include <cmath>

#include "gradients.hpp"
#include "kernels/backward_configs.hpp"
#include "simulate/backward.hpp"

namespace fa3 {
namespace {

using test::GradientCase;
using test::GradientProblem;
using test::Layout;
using Row = kernels::BackwardRow;

GradientCase base(const Row& row, std::int64_t seqlen_q, std::int64_t seqlen_k, bool causal) {
  GradientCase c;
  c.dtype = row.config.element == hopper::Element::f16 ? FA3_F16 : FA3_BF16;
  c.d = row.config.d;
  c.d_v = row.config.d_v;
  c.seqlen_q = seqlen_q;
  c.seqlen_k = seqlen_k;
  c.causal = causal;
  c.softmax_scale = float(1 / std::sqrt(double(c.d)));
  c.deterministic = row.config.deterministic;
  return c;
}

struct NamedCase {
  const char* name;
  GradientCase (*make)(const Row&);
};

const NamedCase cases[] = {
    {"one_key", [](const Row& row) { return base(row, 1, 1, false); }},
    {"one_row", [](const Row& row) { return base(row, 1, row.config.tile_kv + 1, true); }},
    {"whole_tiles", [](const Row& row) { return base(row, 2 * row.config.tile_q, row.config.tile_kv, false); }},
    {"many_blocks", [](const Row& row) { return base(row, 5 * row.config.tile_q + 3, 50, false); }},
    {"ragged",
     [](const Row& row) {
       GradientCase c = base(row, 2 * row.config.tile_q + 1, row.config.tile_kv + 65, false);
       c.heads = c.kv_heads = 2;
       return c;
     }},
    {"square", [](const Row& row) { return base(row, 2 * row.config.tile_kv, 2 * row.config.tile_kv, true); }},
    {"more_queries_than_keys",
     [](const Row& row) { return base(row, 2 * row.config.tile_q + 70, row.config.tile_kv + 9, true); }},
    {"more_keys_than_queries",
     [](const Row& row) { return base(row, row.config.tile_q + 5, 2 * row.config.tile_kv + 9, true); }},
    {"no_keys",
     [](const Row& row) {
       GradientCase c = base(row, 70, 0, false);
       c.heads = 2;
       return c;
     }},
    {"no_queries", [](const Row& row) { return base(row, 0, 70, true); }},
    {"grouped",
     [](const Row& row) {
       GradientCase c = base(row, row.config.tile_q + 20, row.config.tile_kv + 40, true);
       c.batch = 2;
       c.heads = 6;
       c.kv_heads = 2;
       c.lse_transposed = true;
       return c;
     }},
    {"narrow",
     [](const Row& row) {  // features that TMA pads
       GradientCase c = base(row, 70, 100, true);
       c.d -= 24;
       c.d_v -= 56;
       return c;
     }},
    {"least_features",
     [](const Row& row) {
       GradientCase c = base(row, 70, 100, true);
       c.d = c.d_v = 8;
       return c;
     }},
    {"nonfinite_neighbours",
     [](const Row& row) {
       GradientCase c = base(row, 33, 77, false);
       c.batch = 3;
       c.poisoned_batch = 1;
       return c;
     }},
    {"negative_scale",
     [](const Row& row) {
       GradientCase c = base(row, 70, 150, true);
       c.softmax_scale = -0.3f;
       return c;
     }},
    {"zero_scale",
     [](const Row& row) {
       GradientCase c = base(row, 70, 150, true);
       c.softmax_scale = 0;
       return c;
     }},
    {"large_logits",
     [](const Row& row) {
       GradientCase c = base(row, 70, 150, false);
       c.size = 20;
       return c;
     }},
    {"odd_rows",
     [](const Row& row) {  // every tensor goes through the workspace, or is read and written by elements
       GradientCase c = base(row, 40, row.config.tile_kv + 1, true);
       c.heads = c.kv_heads = 2;
       c.q = c.k = c.v = c.o = c.d_o = c.dq = c.dk = c.dv = Layout::odd_rows;
       return c;
     }},
    {"transposed_and_repeated",
     [](const Row& row) {
       GradientCase c = base(row, 40, 140, true);
       c.batch = c.heads = c.kv_heads = 2;
       c.q = c.o = c.dk = c.dq = Layout::bhsd;
       c.k = c.d_o = Layout::repeat_heads;
       c.v = Layout::repeat_batch;
       return c;
     }},
    {"few_sms",
     [](const Row& row) {  // CTAs take several tiles, but for deterministic rows
       GradientCase c = base(row, 2 * row.config.tile_q, 2 * row.config.tile_kv + 9, true);
       c.heads = c.kv_heads = 2;
       c.sm_margin = row.config.deterministic ? 0 : 1;
       return c;
     }},
};

/// Run 0 is eager, run 1 lazy, the others are random.
void run(int row, const NamedCase& named, int random_seeds) {
  const GradientCase c = named.make(kernels::backward_rows[row]);
  GradientProblem problem(c, 1);
  std::vector<std::uint16_t> bits;
  for (int run = 0; run < 2 + random_seeds; ++run) {
    simulator::Options options;
    options.completion = run == 0   ? simulator::Completion::eager
                         : run == 1 ? simulator::Completion::lazy
                                    : simulator::Completion::random;
    options.seed = std::uint64_t(run);
    problem.clear_gradients();
    ASSERT_NO_THROW(simulator::backward(problem.problem, options, row, 3)) << "run " << run;
    EXPECT_EQ(problem.judge(), "") << "run " << run;
    if (run == 0) bits = problem.all_bits();
    EXPECT_TRUE(problem.all_bits() == bits) << "run " << run << " has other bits";
  }
}

class BackwardRows : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(BackwardRows, AreRight) {
  const auto& [row, index] = GetParam();
  run(row, cases[index], kernels::backward_rows[row].config.element == hopper::Element::f16 ? 2 : 0);
}

INSTANTIATE_TEST_SUITE_P(, BackwardRows,
                         testing::Combine(testing::Range(0, kernels::backward_row_count),
                                          testing::Range(0, int(std::size(cases)))),
                         [](const auto& info) {
                           return std::string(kernels::backward_rows[std::get<0>(info.param)].name) + "_" +
                                  cases[std::get<1>(info.param)].name;
                         });

}  // namespace
}  // namespace fa3
