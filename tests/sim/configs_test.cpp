// Choices of ForwardConfig that no row of the table makes today, on the simulator: they are there for rows to come.
#include <gtest/gtest.h>

#include "check/case.hpp"
#include "check/run.hpp"
#include "few_clusters.hpp"
#include "kernels/configs.hpp"
#include "simulate/on_simulator.hpp"

namespace fa3 {
namespace {

constexpr attention::ForwardConfig without_turns(attention::ForwardConfig config) {
  config.turns = attention::Turns::free_running;
  return config;
}

constexpr attention::ForwardConfig o_over_q(attention::ForwardConfig config) {
  config.output = attention::Output::over_q;
  config.q_buffers = 1;
  return config;
}

constexpr attention::ForwardConfig o_from_registers(attention::ForwardConfig config) {
  config.output = attention::Output::by_registers;
  return config;
}

constexpr attention::ForwardConfig with_branch(attention::ForwardConfig config) {
  config.edges = attention::Edges::branch;
  return config;
}

template <attention::ForwardConfig config>
void expect_right(int row) {
  check::Case c;
  c.name = std::string(kernels::forward_rows[row].name) + "/other_config";
  c.dtype = config.element == hopper::Element::f16 ? FA3_F16 : FA3_BF16;
  c.heads = 2;
  c.d = config.d;
  c.d_v = config.d_v;
  c.seqlen_q = config.tile_q + 70;
  c.seqlen_k = 5 * config.tile_kv + 9;
  c.causal = true;
  for (const simulator::Completion completion :
       {simulator::Completion::eager, simulator::Completion::lazy, simulator::Completion::random}) {
    const check::Verdict verdict =
        check::run_case(c, Device::cpu, simulator::on_simulator([&](const ForwardProblem& problem) {
                          test::run_clusters<config>(problem, row, {completion, 1, false}, 1);
                        }));
    EXPECT_TRUE(verdict.passed) << simulator::name(completion) << ": " << verdict.message;
  }
}

constexpr int row_d64 = kernels::select_forward_row(FA3_F16, 64, 64);
constexpr int row_d128 = kernels::select_forward_row(FA3_BF16, 128, 128);
constexpr int row_cluster = kernels::select_forward_row(FA3_F16, 128, 128, 1 << 17);
static_assert(kernels::forward_rows[row_cluster].config.cluster == 2);

TEST(OtherConfigs, FreeRunningWarpgroups) {
  expect_right<without_turns(kernels::forward_rows[row_d64].config)>(row_d64);
  expect_right<without_turns(kernels::forward_rows[row_d128].config)>(row_d128);
}

TEST(OtherConfigs, OStagedOverQWithThreeConsumers) {
  expect_right<o_over_q(kernels::forward_rows[row_d64].config)>(row_d64);
}

TEST(OtherConfigs, OFromRegistersWithThreeConsumers) {
  expect_right<with_branch(o_from_registers(kernels::forward_rows[row_d64].config))>(row_d64);
}

TEST(OtherConfigs, Clusters) {
  constexpr attention::ForwardConfig cluster = kernels::forward_rows[row_cluster].config;
  expect_right<without_turns(cluster)>(row_cluster);
  expect_right<o_over_q(with_branch(cluster))>(row_cluster);
  expect_right<o_from_registers(cluster)>(row_cluster);
}

}  // namespace
}  // namespace fa3
