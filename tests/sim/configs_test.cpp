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

/// Without a producer the consumers wait for loads that one of them has yet to issue.
constexpr attention::ForwardConfig without_producer(attention::ForwardConfig config, attention::Turns turns,
                                                    int q_buffers, int stages) {
  config.loads = attention::Loads::consumer;
  config.turns = turns;
  config.q_buffers = q_buffers;
  config.stages = stages;
  config.output = attention::Output::by_registers;
  return config;
}

constexpr attention::ForwardConfig with_branch(attention::ForwardConfig config) {
  config.edges = attention::Edges::branch;
  return config;
}

/// The tiles have five blocks of keys, or `few` keys: then one block or none.
template <attention::ForwardConfig config>
void expect_right(int row, bool few = false) {
  check::Case c;
  c.name = std::string(kernels::forward_rows[row].name) + "/other_config";
  c.dtype = config.element == hopper::Element::f16 ? FA3_F16 : FA3_BF16;
  c.heads = 2;
  c.d = config.d;
  c.d_v = config.d_v;
  c.seqlen_q = config.tile_q + 70;
  c.seqlen_k = few ? 40 : 5 * config.tile_kv + 9;
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

TEST(OtherConfigs, LoadsByAConsumerInAnyTurnsAndRings) {
  constexpr attention::ForwardConfig product = kernels::forward_rows[row_d128].config;
  for (const bool few : {false, true}) {
    expect_right<without_producer(product, attention::Turns::free_running, 1, 2)>(row_d128, few);
    expect_right<without_producer(product, attention::Turns::softmax, 2, 2)>(row_d128, few);
    expect_right<without_producer(product, attention::Turns::gemm, 1, 3)>(row_d128, few);
    expect_right<without_producer(kernels::forward_rows[row_d64].config, attention::Turns::gemm, 2, 4)>(row_d64, few);
  }
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
