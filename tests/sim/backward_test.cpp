// Every row of the table of backward kernels on the simulator, over cases made to fit its tiles, under every completion
// policy. All runs of a case must give the same bits, and these must be right (check::judge).
#include <gtest/gtest.h>

#include <limits>

#include "check/case.hpp"
#include "check/run.hpp"
#include "kernels/backward_configs.hpp"
#include "simulate/backward.hpp"
#include "simulate/on_simulator.hpp"

namespace fa3 {
namespace {

using check::Case;
using check::Layout;
using Row = kernels::BackwardRow;

Case base(const Row& row, std::int64_t seqlen_q, std::int64_t seqlen_k, bool causal) {
  Case c;
  c.name = row.name;
  c.dtype = row.config.element == hopper::Element::f16 ? FA3_F16 : FA3_BF16;
  c.d = row.config.d;
  c.d_v = row.config.d_v;
  c.seqlen_q = seqlen_q;
  c.seqlen_k = seqlen_k;
  c.causal = causal;
  c.backward = true;
  c.deterministic = true;  // the simulator takes CTAs in one order
  return c;
}

struct NamedCase {
  const char* name;
  Case (*make)(const Row&);
};

const NamedCase cases[] = {
    {"one_key", [](const Row& row) { return base(row, 1, 1, false); }},
    {"one_row", [](const Row& row) { return base(row, 1, row.config.item_keys() + 1, true); }},
    {"whole_tiles", [](const Row& row) { return base(row, 2 * row.config.tile_q, row.config.item_keys(), false); }},
    {"many_blocks", [](const Row& row) { return base(row, 5 * row.config.tile_q + 3, 50, false); }},
    {"ragged",
     [](const Row& row) {
       Case c = base(row, 2 * row.config.tile_q + 1, row.config.item_keys() + 65, false);
       c.heads = c.kv_heads = 2;
       return c;
     }},
    {"square", [](const Row& row) { return base(row, 2 * row.config.item_keys(), 2 * row.config.item_keys(), true); }},
    {"more_queries_than_keys",
     [](const Row& row) { return base(row, 2 * row.config.tile_q + 70, row.config.item_keys() + 9, true); }},
    {"more_keys_than_queries",
     [](const Row& row) { return base(row, row.config.tile_q + 5, 2 * row.config.item_keys() + 9, true); }},
    {"no_keys",
     [](const Row& row) {
       Case c = base(row, 70, 0, false);
       c.heads = 2;
       return c;
     }},
    {"no_queries", [](const Row& row) { return base(row, 0, 70, true); }},
    {"grouped",
     [](const Row& row) {
       Case c = base(row, row.config.tile_q + 20, row.config.item_keys() + 40, true);
       c.batch = 2;
       c.heads = 6;
       c.kv_heads = 2;
       c.lse = check::LseLayout::transposed;
       return c;
     }},
    {"narrow",
     [](const Row& row) {  // features that TMA pads
       Case c = base(row, 70, 100, true);
       c.d -= 24;
       c.d_v -= 56;
       return c;
     }},
    {"least_features",
     [](const Row& row) {
       Case c = base(row, 70, 100, true);
       c.d = c.d_v = 8;
       return c;
     }},
    {"nonfinite_neighbours",
     [](const Row& row) {
       Case c = base(row, 33, 77, false);
       c.batch = 3;
       for (int tensor = 0; tensor < 4; ++tensor)
         c.patches.push_back({.tensor = tensor, .batch = 1, .value = std::numeric_limits<double>::quiet_NaN()});
       return c;
     }},
    {"negative_scale",
     [](const Row& row) {
       Case c = base(row, 70, 150, true);
       c.softmax_scale = -0.3f;
       return c;
     }},
    {"zero_scale",
     [](const Row& row) {
       Case c = base(row, 70, 150, true);
       c.softmax_scale = 0;
       return c;
     }},
    {"large_logits",
     [](const Row& row) {
       Case c = base(row, 70, 150, false);
       c.q.scale = c.k.scale = 20;
       return c;
     }},
    {"odd_rows",
     [](const Row& row) {  // every tensor goes through the workspace, or is read and written by elements
       Case c = base(row, 40, row.config.item_keys() + 1, true);
       c.heads = c.kv_heads = 2;
       for (check::TensorSpec* tensor : {&c.q, &c.k, &c.v, &c.o, &c.d_o, &c.dq, &c.dk, &c.dv})
         tensor->layout = Layout::padded;
       return c;
     }},
    {"transposed_and_repeated",
     [](const Row& row) {
       Case c = base(row, 40, 140, true);
       c.batch = c.heads = c.kv_heads = 2;
       c.q.layout = c.o.layout = c.dk.layout = c.dq.layout = Layout::bhsd;
       c.k.layout = c.d_o.layout = Layout::repeat_heads;
       c.v.layout = Layout::repeat_batch;
       return c;
     }},
    {"zeroed_ahead",
     [](const Row& row) {  // more heads than are zeroed before, for so few SMs
       Case c = base(row, 40, row.config.tile_kv + 9, true);
       c.batch = 6;
       c.heads = 8;
       c.kv_heads = 4;
       return c;
     }},
    {"few_sms",
     [](const Row& row) {  // CTAs take several tiles
       Case c = base(row, 2 * row.config.tile_q, 2 * row.config.item_keys() + 9, true);
       c.heads = c.kv_heads = 2;
       c.sm_margin = 1;
       return c;
     }},
};

/// Run 0 is eager, run 1 lazy, the others are random.
void run(int row, const NamedCase& named, int random_seeds) {
  Case c = named.make(kernels::backward_rows[row]);
  c.name += std::string("/") + named.name;
  c.repeats = 2 + random_seeds;
  int runs = 0;
  const auto simulate = [&](BackwardProblem problem) {
    simulator::Options options;
    options.completion = runs == 0   ? simulator::Completion::eager
                         : runs == 1 ? simulator::Completion::lazy
                                     : simulator::Completion::random;
    options.seed = std::uint64_t(runs);
    ++runs;
    problem.deterministic = kernels::backward_rows[row].config.deterministic;
    simulator::backward(problem, options, row, 3);
  };
  const check::Verdict verdict = check::run_backward_case(c, Device::cpu, simulator::backward_on_simulator(simulate));
  EXPECT_TRUE(verdict.passed) << c.name << ", run " << runs << ": " << verdict.message;
  EXPECT_EQ(runs, c.repeats);
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
