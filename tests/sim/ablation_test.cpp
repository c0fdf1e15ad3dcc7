// Every row of the ablation's table on the simulator: as rows_test.cpp, with cases for what these rows do otherwise.
#include <gtest/gtest.h>

#include "check/case.hpp"
#include "check/run.hpp"
#include "simulate/ablation.hpp"
#include "simulate/on_simulator.hpp"

namespace fa3 {
namespace {

using Row = kernels::ForwardRow;

check::Case base(const Row& row, const std::string& name, std::int64_t seqlen_q, std::int64_t seqlen_k, bool causal) {
  check::Case c;
  c.name = std::string(row.name) + "/" + name;
  c.d = row.config.d;
  c.d_v = row.config.d_v;
  c.seqlen_q = seqlen_q;
  c.seqlen_k = seqlen_k;
  c.causal = causal;
  return c;
}

struct NamedCase {
  const char* name;
  check::Case (*make)(const Row&, const char* name);
};

const NamedCase cases[] = {
    {"few_keys",
     [](const Row& row, const char* name) {  // tiles of one block, so that buffers of Q are what holds up
       check::Case c = base(row, name, row.config.tile_q + 30, 40, false);
       c.heads = 4;
       c.kv_heads = 2;
       return c;
     }},
    {"no_keys",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 2 * row.config.tile_q + 3, 0, false);
       c.heads = 3;
       return c;
     }},
    {"two_blocks", [](const Row& row, const char* name) { return base(row, name, 70, 2 * row.config.tile_kv, false); }},
    {"ragged",  // an odd number of blocks, more than the ring holds
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, row.config.tile_q + 1, 5 * row.config.tile_kv - 1, false);
       c.heads = c.kv_heads = 2;
       return c;
     }},
    {"causal_with_offset",  // an even number for the last rows; the first warpgroup skips blocks
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, row.config.tile_q + 40, 6 * row.config.tile_kv - 7, true);
       c.heads = 2;
       return c;
     }},
    {"more_queries_than_keys",  // tiles and warpgroups without a key between others
     [](const Row& row, const char* name) {
       return base(row, name, 3 * row.config.tile_q + 70, row.config.tile_kv + 9, true);
     }},
    {"rising_logits",  // m has to be raised under products that run
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 90, 5 * row.config.tile_kv + 5, false);
       c.q.scale = 3;
       for (int i = 0; 3 + i * row.config.tile_kv < c.seqlen_k; ++i) {
         check::Patch hotter;
         hotter.tensor = 1;
         hotter.row = 3 + i * row.config.tile_kv;
         hotter.times = 40.0 / (1 + i);
         c.patches.push_back(hotter);
       }
       return c;
     }},
    {"negative_scale",
     [](const Row& row, const char* name) {
       check::Case c = base(row, name, 50, 2 * row.config.tile_kv + 5, true);
       c.softmax_scale = -0.3f;
       return c;
     }},
};

class Ablation : public testing::TestWithParam<std::tuple<int, std::string>> {};

/// Run 0 is eager, run 1 lazy, the others are random; the number of SMs varies. All must give the same bits.
TEST_P(Ablation, IsRight) {
  const auto& [row, name] = GetParam();
  check::Case c;
  for (const NamedCase& named : cases)
    if (named.name == name) c = named.make(kernels::ablation_rows[row], named.name);
  c.repeats = 5;
  int runs = 0;
  const auto simulate = [&](const ForwardProblem& problem) {
    simulator::Options options;
    options.completion = runs == 0   ? simulator::Completion::eager
                         : runs == 1 ? simulator::Completion::lazy
                                     : simulator::Completion::random;
    options.seed = std::uint64_t(runs);
    simulator::forward_ablation(row, problem, options, 1 + runs % 3);
    ++runs;
  };
  const check::Verdict verdict = check::run_case(c, Device::cpu, simulator::on_simulator(simulate));
  EXPECT_TRUE(verdict.passed) << c.name << ", run " << runs << ": " << verdict.message;
  EXPECT_EQ(runs, c.repeats);
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const NamedCase& named : cases) names.push_back(named.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(
    Sim, Ablation, testing::Combine(testing::Range(0, kernels::ablation_row_count), testing::ValuesIn(case_names())),
    [](const auto& info) {
      return std::string(kernels::ablation_rows[std::get<0>(info.param)].name) + "_" + std::get<1>(info.param);
    });

}  // namespace
}  // namespace fa3
