// The kernel table and the host-side plan: which row, what TMA can address, how much workspace.
#include "kernels/plan.hpp"

#include "error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "kernels/arguments.hpp"
#include "kernels/backward_plan.hpp"
#include "kernels/configs.hpp"

namespace fa3::kernels {
namespace {

TEST(Table, NamesAreUniqueAndTilesFit) {
  std::set<std::string> names;
  for (const ForwardRow& row : forward_rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_LE(shared_tile_bytes(row.config), 226 * 1024) << row.name;
    // What setmaxnreg moves must fit into what the launch allocates, in units of eight registers per thread.
    const int threads = row.config.threads(), at_entry = 65536 / threads / 8 * 8;
    EXPECT_LE(
        128 * (row.config.producer_registers() + row.config.consumer_warpgroups() * row.config.consumer_registers()),
        threads * at_entry)
        << row.name;
  }
}

/// For short and long sequences, with and without a mask.
void check_least_padding(fa3_dtype dtype, int d, int d_v) {
  const auto takes = [&](const ForwardConfig& row) {
    return dtype_of(row.element) == dtype && d <= row.d && d_v <= row.d_v;
  };
  int least = 0;
  for (const ForwardRow& row : forward_rows)
    if (takes(row.config) && (least == 0 || row.config.d + row.config.d_v < least))
      least = row.config.d + row.config.d_v;
  for (const std::int64_t seqlen : {0, 1 << 20})
    for (const bool causal : {false, true}) {
      const int row = select_forward_row(dtype, d, d_v, seqlen, causal);
      ASSERT_GE(row, 0) << seqlen << causal;
      const ForwardConfig& chosen = forward_rows[row].config;
      EXPECT_TRUE(takes(chosen));
      EXPECT_EQ(chosen.d + chosen.d_v, least) << seqlen << causal;
    }
}

TEST(Table, EverySupportedHeadDimHasTheRowWithTheLeastPadding) {
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16, FA3_E4M3})
    for (int d = 8; d <= 256; d += 8)
      for (int d_v = 8; d_v <= 256; d_v += 8) {
        SCOPED_TRACE(testing::Message() << dtype << ' ' << d << ' ' << d_v);
        check_least_padding(dtype, d, d_v);
      }
  EXPECT_EQ(select_forward_row(FA3_F32, 64, 64), -1);
}

TEST(Table, EveryHeadDimOfE4m3HasARowForADMajorV) {
  for (int d = 16; d <= 256; d += 16)
    for (int d_v = 16; d_v <= 256; d_v += 16) {
      EXPECT_GE(select_forward_row(FA3_E4M3, d, d_v), 0);
      const int row = select_forward_row(FA3_E4M3, d, d_v, 1, true, true);
      ASSERT_GE(row, 0);
      EXPECT_TRUE(forward_rows[row].config.v_is_transposed);
      EXPECT_TRUE(d <= forward_rows[row].config.d && d_v <= forward_rows[row].config.d_v);
    }
}

TEST(Table, OInTheRingOfVNeedsAStageForEachWarpgroup) {
  attention::ForwardConfig config = forward_rows[select_forward_row(FA3_E4M3, 128, 128)].config;
  ASSERT_TRUE(config.output == attention::Output::in_v_ring && config.valid());
  config.stages = 2;
  EXPECT_FALSE(config.valid());
  config.output = attention::Output::by_registers;
  EXPECT_TRUE(config.valid());
}

TEST(Table, E4m3RowsAreTakenByLeastPadding) {
  bool narrow = false;
  const auto name = [&](std::int64_t d, std::int64_t d_v, std::int64_t seqlen = 512, bool causal = false) {
    return std::string(forward_rows[select_forward_row(FA3_E4M3, d, d_v, seqlen, causal, false, narrow)].name);
  };
  EXPECT_EQ(name(64, 64), "e4m3_d64");
  EXPECT_EQ(name(64, 64, 4095, true), "e4m3_d64_short");
  EXPECT_EQ(name(64, 64, 4096, true), "e4m3_d64");
  EXPECT_EQ(name(64, 64, 16384, true), "e4m3_d64_vt");
  EXPECT_EQ(name(80, 80), "e4m3_d96");
  EXPECT_EQ(name(192, 128), "e4m3_d192v128");
  EXPECT_EQ(name(160, 16), "e4m3_d192v128");
  EXPECT_EQ(name(128, 144), "e4m3_d192");
  EXPECT_EQ(name(192, 208), "e4m3_d256");
  EXPECT_EQ(name(192, 128, 1 << 17), "e4m3_d192v128");
  EXPECT_EQ(name(256, 256, 8192, true), "e4m3_d256_vt");
  EXPECT_EQ(name(256, 256, 4096, true), "e4m3_d256");
  narrow = true;
  EXPECT_EQ(name(64, 64), "e4m3_narrow_d64");
  EXPECT_EQ(name(64, 64, 4095, true), "e4m3_narrow_d64_short");
  EXPECT_EQ(name(64, 64, 4096, true), "e4m3_narrow_d64");
  EXPECT_EQ(name(64, 64, 16384), "e4m3_narrow_d64_vt");
  EXPECT_EQ(name(64, 64, 16384, true), "e4m3_narrow_d64");
  EXPECT_EQ(name(80, 80), "e4m3_narrow_d96");
  EXPECT_EQ(name(192, 128), "e4m3_narrow_d192v128");
  EXPECT_EQ(name(128, 144), "e4m3_narrow_d192");
  EXPECT_EQ(name(256, 256, 8192, true), "e4m3_narrow_d256_vt");
}

/// Rows that add in f16 only where all of q, k and v are promised to be narrow.
TEST(Table, SumsInF16NeedThreePromises) {
  for (int d = 16; d <= 256; d += 16)
    for (const std::int64_t seqlen : {1, 5000, 1 << 20})
      for (const bool causal : {false, true})
        for (const bool d_major : {false, true})
          for (const bool narrow : {false, true}) {
            const int row = select_forward_row(FA3_E4M3, d, d, seqlen, causal, d_major, narrow);
            EXPECT_EQ(forward_rows[row].config.f16_sums, narrow) << d << ' ' << seqlen;
          }
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16})
    EXPECT_EQ(select_forward_row(dtype, 128, 128, 512, true, false, true),
              select_forward_row(dtype, 128, 128, 512, true));
  ForwardProblem p;
  for (int given = 0; given < 8; ++given) {
    p.q_scale.largest = given & 1 ? 15.0f : 16.0f, p.k_scale.largest = given & 2 ? 15.0f : 448.0f;
    p.v_scale.largest = given & 4 ? 1.125f : 2.0f;
    EXPECT_EQ(p.narrow(), given == 7);
  }
}

TEST(BackwardTable, NamesAreUniqueAndRegistersFit) {
  std::set<std::string> names;
  for (const BackwardRow& row : backward_rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    const int threads = row.config.threads(), at_entry = 65536 / threads / 8 * 8;
    EXPECT_LE(row.config.registers(), threads * at_entry) << row.name;
  }
}

TEST(BackwardTable, EverySupportedHeadDimHasTheRowWithTheLeastPadding) {
  for (const bool deterministic : {false, true})
    for (const fa3_dtype dtype : {FA3_F16, FA3_BF16})
      for (int d = 8; d <= 256; d += 8)
        for (int d_v = 8; d_v <= 256; d_v += 8) {
          const int row = select_backward_row(dtype, d, d_v, deterministic);
          ASSERT_GE(row, 0);
          const BackwardConfig& chosen = backward_rows[row].config;
          EXPECT_EQ(chosen.element == Element::f16, dtype == FA3_F16);
          EXPECT_EQ(chosen.deterministic, deterministic);
          EXPECT_TRUE(d <= chosen.d && d_v <= chosen.d_v);
          for (const BackwardRow& other : backward_rows) {
            if (other.config.element == chosen.element && other.config.deterministic == deterministic &&
                d <= other.config.d && d_v <= other.config.d_v) {
              EXPECT_LE(chosen.d + chosen.d_v, other.config.d + other.config.d_v);
            }
          }
        }
  EXPECT_EQ(select_backward_row(FA3_F32, 64, 64, false), -1);
}

/// A dense problem with tensors that nobody reads.
BackwardProblem backward_problem(std::int64_t heads, std::int64_t seqlen, bool causal) {
  static float memory[4];
  BackwardProblem p;
  p.batch = 1;
  p.heads = p.kv_heads = heads;
  p.seqlen_q = p.seqlen_k = seqlen;
  p.d = p.d_v = 128;
  p.softmax_scale = 1;
  p.causal = causal;
  p.deterministic = true;
  for (TensorRef* tensor : {&p.d_o, &p.q, &p.k, &p.v, &p.o, &p.dq, &p.dk, &p.dv}) {
    tensor->data = memory;
    tensor->shape = {1, seqlen, heads, 128};
    tensor->stride = {0, heads * 128, 128, 1};
  }
  p.lse = memory;
  return p;
}

TEST(BackwardPlan, DeterministicTilesWaitForLowerItemsOnlyAndFewOfAHeadRunAtOnce) {
  constexpr int sm_count = 132;
  const TensorMapEncoder no_maps = [](const hopper::TensorMapSpec&) { return hopper::TensorMap{}; };
  for (const bool causal : {false, true})
    for (const std::int64_t seqlen : {512, 2048, 16384}) {
      const BackwardProblem problem = backward_problem(16 * 16384 / seqlen, seqlen, causal);
      BackwardPlan plan = plan_backward(problem);
      std::vector<unsigned char> workspace(1);
      const attention::TileOrder order = backward_launch(problem, plan, workspace.data(), sm_count, no_maps).main.order;
      std::map<int, int> next;  // by head: how many tiles have had their turn
      std::vector<int> head_of;
      for (int item = 0; item < order.count(); ++item) {
        const attention::Tile tile = order.item(item);
        // key_tile() counts from the end.
        const int key_tile = order.row_items - 1 - tile.first_row / order.rows;
        ASSERT_EQ(key_tile, next[tile.head]++) << "item " << item;
        head_of.push_back(tile.head);
      }
      for (std::size_t begin = 0; begin + sm_count <= head_of.size(); begin += sm_count) {
        std::map<int, int> running;
        for (std::size_t i = begin; i < begin + sm_count; ++i) EXPECT_LE(++running[head_of[i]], 34);
      }
    }
}

TEST(BackwardPlan, WhatIsZeroedAheadIsByTilesOfLowerItems) {
  const TensorMapEncoder no_maps = [](const hopper::TensorMapSpec&) { return hopper::TensorMap{}; };
  std::vector<unsigned char> workspace(1);
  int some = 0;
  for (const int sm_count : {3, 132})
    for (const bool deterministic : {false, true})
      for (const bool causal : {false, true})
        for (const std::int64_t seqlen : {64, 512, 4096, 16384}) {
          BackwardProblem problem = backward_problem(40 * 16384 / seqlen, seqlen, causal);
          problem.deterministic = deterministic;
          BackwardPlan plan = plan_backward(problem);
          const BackwardLaunch launch = backward_launch(problem, plan, workspace.data(), sm_count, no_maps);
          const attention::BackwardArguments& main = launch.main;
          const attention::TileOrder& order = main.order;
          const std::int64_t floats = launch.before.dq_floats / order.sequences;
          if (main.ahead == order.sequences) {
            EXPECT_EQ(launch.before.kept_begin, launch.before.kept_end);
            continue;
          }
          ++some;
          EXPECT_EQ(launch.before.kept_begin, main.ahead * floats);
          EXPECT_EQ(launch.before.kept_end, main.zeroed_end * floats);
          EXPECT_EQ(main.unasked, 0);                // so that who is waited for has begun
          std::map<int, std::pair<int, int>> items;  // by sequence: the first and the last
          for (int item = 0; item < order.count(); ++item) {
            const attention::Tile tile = order.item(item);
            auto& [first, last] = items.try_emplace(tile.batch * order.heads + tile.head, item, item).first->second;
            last = item;
          }
          for (int sequence = main.ahead; sequence < main.zeroed_end; ++sequence)
            ASSERT_LT(items[sequence - main.ahead].second, items[sequence].first) << "sequence " << sequence;
        }
  EXPECT_GT(some, 16);
}

TEST(BackwardPlan, LastSectionStaysInL2ButLastsTwoRounds) {
  const TensorMapEncoder no_maps = [](const hopper::TensorMapSpec&) { return hopper::TensorMap{}; };
  std::vector<unsigned char> workspace(1);
  const auto last = [&](std::int64_t heads, std::int64_t seqlen, std::int64_t d, bool causal) {
    BackwardProblem problem = backward_problem(heads, seqlen, causal);
    problem.d = problem.d_v = d;
    problem.deterministic = false;
    BackwardPlan plan = plan_backward(problem);
    return backward_launch(problem, plan, workspace.data(), 132, no_maps).main.order.last;
  };
  EXPECT_EQ(last(16, 16384, 128, false), 0);
  EXPECT_EQ(last(16, 16384, 128, true), 3) << "16 MB each, 264 items of 128";
  EXPECT_EQ(last(64, 4096, 128, true), 9) << "4 MB each, 264 items of 32";
  EXPECT_EQ(last(512, 512, 128, true), 66) << "two rounds; 512 KB each";
  EXPECT_EQ(last(512, 2048, 64, true), 32) << "1 MB each";
  EXPECT_EQ(last(8, 16384, 256, true), 2) << "132 items of 128, clusters";
  EXPECT_EQ(last(2, 16384, 128, true), 2);
}

TEST(BackwardPlan, CountsAreResetWhereTheyAreUsed) {
  const TensorMapEncoder no_maps = [](const hopper::TensorMapSpec&) { return hopper::TensorMap{}; };
  std::vector<unsigned char> workspace(1);
  for (const bool deterministic : {false, true}) {
    BackwardProblem problem = backward_problem(3, 200, true);
    problem.deterministic = deterministic;
    problem.sm_margin = 127;
    BackwardPlan plan = plan_backward(problem);
    const attention::DqLayout layout = attention::dq_layout(plan.config);
    const BackwardLaunch launch = backward_launch(problem, plan, workspace.data(), 132, no_maps);
    EXPECT_EQ(launch.main_ctas, 5);
    EXPECT_EQ(plan.turn_count, deterministic ? 3 * 4 * layout.parts : 0);  // blocks of 64 rows
    const unsigned* const counts = launch.before.counts;
    EXPECT_EQ(launch.main.next_item, counts);
    EXPECT_EQ(launch.main.turns, counts + 1);
    EXPECT_EQ(launch.main.zeroed, counts + 1 + plan.turn_count);
    EXPECT_EQ(launch.before.count_count, 1 + plan.turn_count + 3);
    EXPECT_EQ(launch.main.ahead, 3);
    EXPECT_EQ(launch.main.unasked, deterministic ? 0 : 5);
    EXPECT_EQ(launch.before.first_count, unsigned(launch.main.unasked));

    problem.sm_margin = 132;
    EXPECT_THROW(backward_launch(problem, plan, workspace.data(), 132, no_maps), Error);

    // Without query rows there is no kernel before the main one: no counter, and a CTA for every tile.
    problem.sm_margin = 0;
    problem.seqlen_q = 0;
    for (TensorRef* tensor : {&problem.d_o, &problem.q, &problem.o, &problem.dq}) tensor->shape[1] = 0;
    plan = plan_backward(problem);
    const BackwardLaunch empty = backward_launch(problem, plan, workspace.data(), 4, no_maps);
    EXPECT_EQ(empty.before_ctas, 0);
    EXPECT_EQ(empty.main_ctas, 6);
    EXPECT_EQ(empty.main.next_item, nullptr);
  }
}

TEST(BackwardPlan, ClustersTakePairsOfTiles) {
  static std::map<std::string, std::uint32_t> box_rows;
  const TensorMapEncoder note = [](const hopper::TensorMapSpec& spec) {
    box_rows[spec.name] = spec.box_rows;
    return hopper::TensorMap{};
  };
  for (const bool deterministic : {false, true}) {
    BackwardProblem problem = backward_problem(3, 200, false);
    problem.deterministic = deterministic;
    problem.d = problem.d_v = 256;
    BackwardPlan plan = plan_backward(problem);
    ASSERT_EQ(plan.config.cluster, 2);
    std::vector<unsigned char> workspace(1);
    const BackwardLaunch launch = backward_launch(problem, plan, workspace.data(), 9, note);
    EXPECT_EQ(box_rows["Q"], 32u);
    EXPECT_EQ(box_rows["dO"], 32u);
    EXPECT_EQ(box_rows["K"], 64u);
    EXPECT_EQ(launch.main.order.count(), 3 * 2);  // 128 keys each
    EXPECT_EQ(launch.main.order.rows, 128);
    EXPECT_EQ(launch.main_ctas, 8);  // a cluster needs two SMs
    const attention::DqLayout layout = attention::dq_layout(plan.config);
    EXPECT_EQ(layout.parts, 2);
    EXPECT_EQ(layout.part_columns, 128);
    EXPECT_FALSE(layout.split_rows);
    problem.sm_margin = 8;  // one SM is left, and one cluster runs all the same
    EXPECT_EQ(backward_launch(problem, plan, workspace.data(), 9, note).main_ctas, 2);
  }
}

TEST(BackwardPlan, StatisticsOfAThreadStandTogether) {
  for (int row = 0; row < 128; ++row) {
    const int lane = row % 8 / 2, j = row / 8, e = row % 2;  // the thread whose column it is, and which of its columns
    EXPECT_EQ(attention::place_of_statistics(row), 16 * (j / 2) + 4 * lane + 2 * (j % 2) + e);
  }
}

TEST(Table, HeadDimsOfModelsGetTheirRows) {
  struct {
    int d, d_v, row_d, row_d_v;
  } const expected[] = {{64, 64, 64, 64},     {72, 72, 96, 96},     {80, 80, 96, 96},     {96, 96, 96, 96},
                        {128, 128, 128, 128}, {64, 128, 128, 128},  {96, 128, 128, 128},  {192, 128, 192, 128},
                        {192, 96, 192, 128},  {160, 160, 192, 192}, {128, 192, 192, 192}, {192, 192, 192, 192},
                        {200, 128, 256, 256}, {256, 256, 256, 256}};
  for (const auto& [d, d_v, row_d, row_d_v] : expected) {
    const ForwardConfig& chosen = forward_rows[select_forward_row(FA3_BF16, d, d_v)].config;
    EXPECT_EQ(std::pair(chosen.d, chosen.d_v), std::pair(row_d, row_d_v)) << d << ", " << d_v;
  }
}

TEST(Table, ClusterRowsAreTakenFromTheirThresholdsOn) {
  int clusters = 0;
  for (int i = 0; i < forward_row_count; ++i) {
    const ForwardRow& row = forward_rows[i];
    const fa3_dtype dtype = row.config.element == Element::f16 ? FA3_F16 : FA3_BF16;
    const auto select = [&](std::int64_t seqlen, bool causal) {
      return select_forward_row(dtype, row.config.d, row.config.d_v, seqlen, causal);
    };
    EXPECT_EQ(forward_rows[select(0, false)].config.cluster, 1) << row.name;
    if (row.config.cluster == 1) continue;
    ++clusters;
    for (const bool causal : {false, true}) {
      const int from = causal ? row.causal_from : row.full_from;
      ASSERT_GT(from, 0) << row.name;
      EXPECT_EQ(select(from - 1, causal), select(0, causal)) << row.name;
      EXPECT_EQ(select(from, causal), i) << row.name;
    }
  }
  EXPECT_GT(clusters, 0);
}

TensorRef tensor(std::uintptr_t address, std::array<std::int64_t, 4> shape, std::array<std::int64_t, 4> stride) {
  return {reinterpret_cast<void*>(address), shape, stride};
}

TEST(TmaCanAddress, AlignmentAndOverlap) {
  const std::array<std::int64_t, 4> shape = {2, 100, 4, 64};
  EXPECT_TRUE(tma_can_address(tensor(0x1000, shape, {25600, 256, 64, 1})));
  EXPECT_TRUE(tma_can_address(tensor(0x1000, shape, {25600, 64, 6400, 1}))) << "heads outside rows";
  EXPECT_TRUE(tma_can_address(tensor(0x1000, shape, {25600, 256, 0, 1}))) << "one head repeated";
  EXPECT_TRUE(tma_can_address(tensor(0x1000, shape, {0, 256, 64, 1}))) << "one batch entry repeated";
  EXPECT_TRUE(tma_can_address(tensor(0x1000, {1, 1, 1, 64}, {0, 0, 0, 1})));
  EXPECT_FALSE(tma_can_address(tensor(0x1002, shape, {25600, 256, 64, 1}))) << "base";
  EXPECT_FALSE(tma_can_address(tensor(0x1000, shape, {27200, 272, 68, 1}))) << "head stride of 136 bytes";
  EXPECT_FALSE(tma_can_address(tensor(0x1000, shape, {25600, 0, 64, 1}))) << "one row repeated";
  EXPECT_FALSE(tma_can_address(tensor(0x1000, shape, {25600, 8, 6400, 1}))) << "rows overlap";
  EXPECT_FALSE(tma_can_address(tensor(0x1000, shape, {std::int64_t(1) << 39, 256, 64, 1}))) << "2^40 bytes";
}

ForwardProblem problem() {
  ForwardProblem p;
  p.batch = 2, p.heads = 4, p.kv_heads = 2, p.seqlen_q = 100, p.seqlen_k = 60, p.d = 64, p.d_v = 32;
  p.q = tensor(0x10000, {2, 100, 4, 64}, {25600, 256, 64, 1});
  p.k = tensor(0x20000, {2, 60, 2, 64}, {7680, 128, 64, 1});
  p.v = tensor(0x30000, {2, 60, 2, 32}, {3840, 64, 32, 1});
  p.o = tensor(0x40000, {2, 100, 4, 32}, {12800, 128, 32, 1});
  return p;
}

TEST(Plan, NarrowTensorsTakeARowWithSumsInF16) {
  ForwardProblem p = problem();
  p.dtype = FA3_E4M3;
  EXPECT_FALSE(plan_forward(p).config.f16_sums);
  p.q_scale.largest = p.k_scale.largest = FA3_E4M3_NARROW_QK;
  EXPECT_FALSE(plan_forward(p).config.f16_sums);
  p.v_scale.largest = FA3_E4M3_NARROW_V;
  EXPECT_TRUE(plan_forward(p).config.f16_sums);
}

TEST(Plan, AlignedTensorsNeedOnlyTheCounter) {
  const ForwardPlan plan = plan_forward(problem());
  EXPECT_EQ(plan.workspace_bytes, 256u);
  EXPECT_FALSE(plan.q.copied || plan.k.copied || plan.v.copied || plan.o.copied);
}

TEST(Plan, WhatTmaCannotAddressIsCopiedWithoutDuplicatingRepeatedHeads) {
  ForwardProblem p = problem();
  p.q.data = reinterpret_cast<void*>(0x10002);
  p.k.stride = {60 * 68, 68, 0, 1};  // one head of 68-element rows, seen as two
  const ForwardPlan plan = plan_forward(p);
  EXPECT_TRUE(plan.q.copied && plan.k.copied);
  EXPECT_EQ(plan.q.offset, 256u);
  EXPECT_EQ(plan.k.offset, 256u + 2 * 100 * 4 * 64 * 2);
  EXPECT_EQ(plan.workspace_bytes, plan.k.offset + 2 * 60 * 64 * 2);
  EXPECT_EQ(plan.k.tensor.stride[2], 0);
  EXPECT_TRUE(tma_can_address(tensor(0x1000, plan.k.tensor.shape, plan.k.tensor.stride)));
}

TEST(Plan, VTransposedIsWholeBlocksOfKeysAndNotDuplicated) {
  ForwardProblem p;
  p.dtype = FA3_E4M3;
  p.batch = 2, p.heads = 6, p.kv_heads = 3, p.seqlen_q = 70, p.seqlen_k = 301, p.d = p.d_v = 80;
  alignas(16) static unsigned char memory[16];
  const std::int64_t row = 304;
  p.q = {memory, {2, 70, 6, 80}, {70 * 6 * 80, 6 * 80, 80, 1}};
  p.k = {memory, {2, 301, 3, 80}, {301 * 3 * 80, 3 * 80, 80, 1}};
  p.v = {memory, {2, 301, 3, 80}, {3 * 80 * row, 1, 80 * row, row}};
  p.o = {memory, {2, 70, 6, 80}, {70 * 6 * 80, 6 * 80, 80, 1}};
  const auto expect = [&](std::size_t copies) {
    const ForwardPlan plan = plan_forward(p);
    EXPECT_TRUE(plan.config.v_is_transposed);
    EXPECT_EQ(plan.v.offset % 256, 0u);
    EXPECT_EQ(plan.workspace_bytes, plan.v.offset + copies * 80 * 384);
    EXPECT_EQ(plan.v.tensor.shape, (std::array<std::int64_t, 4>{2, 80, 3, 192}));
  };
  expect(6);
  p.sm_margin = 3;
  expect(6);
  p.v.stride[2] = 0;
  expect(2);
  p.v.stride[0] = 0;
  expect(1);
  EXPECT_THROW(plan_forward(p, select_forward_row(FA3_E4M3, 80, 80)), Error);  // a row that transposes V itself
}

TEST(KernelScale, PowerOfTwoIsTheSmallestThatIsNotBelow) {
  for (int exponent = -100; exponent <= 60; ++exponent)
    for (int ulps = -8; ulps <= 8; ++ulps) {
      float scale = std::ldexp(1.0f, exponent);
      for (int i = 0; i < std::abs(ulps); ++i) scale = std::nextafter(scale, ulps < 0 ? 0.0f : INFINITY);
      for (const float sign : {1.0f, -1.0f}) {
        const attention::Scale kernel = kernel_scale(sign * scale);
        EXPECT_EQ(kernel.sign, sign);
        EXPECT_GE(kernel.power_of_two, kernel.scale_log2);
        EXPECT_LT(kernel.power_of_two, 2 * kernel.scale_log2);
        int ignored;
        EXPECT_EQ(std::frexp(kernel.power_of_two, &ignored), 0.5f);
      }
    }
  EXPECT_EQ(kernel_scale(0).sign, 0.0f);
  EXPECT_EQ(kernel_scale(0).scale_log2, 1.0f);
}

// The neighbour that a cluster needs may be an SM that is to stay free.
TEST(Plan, TakesClustersForLongSequencesOnTheWholeChip) {
  ForwardProblem p = problem();
  p.d = p.d_v = 128;
  const auto cluster = [&](std::int64_t seqlen_q, std::int64_t seqlen_k, int sm_margin) {
    p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k, p.sm_margin = sm_margin;
    return forward_rows[plan_forward(p).row].config.cluster;
  };
  for (const bool causal : {false, true}) {
    p.causal = causal;
    EXPECT_EQ(cluster(1 << 17, 1 << 17, 0), 2);
    EXPECT_EQ(cluster(1 << 17, 1 << 17, 1), 1);
    EXPECT_EQ(cluster(64, 1 << 17, 0), 1);
    EXPECT_EQ(cluster(1 << 17, 64, 0), 1);
  }
}

attention::ForwardArguments arguments(const ForwardProblem& p, void* workspace, int sm_count = 132) {
  ForwardPlan plan = plan_forward(p);
  return forward_arguments(p, plan, workspace, sm_count,
                           [](const hopper::TensorMapSpec&) { return hopper::TensorMap{}; });
}

ForwardProblem shape(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t seqlen_q,
                     std::int64_t seqlen_k, std::int64_t d, std::int64_t d_v, bool causal) {
  const auto dense = [](std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
    return tensor(0x10000, {b, s, h, d}, {s * h * d, h * d, d, 1});
  };
  ForwardProblem p;
  p.batch = batch, p.heads = heads, p.kv_heads = kv_heads, p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k, p.d = d;
  p.d_v = d_v, p.causal = causal, p.softmax_scale = 1;
  p.q = dense(batch, seqlen_q, heads, d), p.o = dense(batch, seqlen_q, heads, d_v);
  p.k = dense(batch, seqlen_k, kv_heads, d), p.v = dense(batch, seqlen_k, kv_heads, d_v);
  return p;
}

TEST(ForwardArguments, SectionsKeepTheirKeysInL2) {
  alignas(256) std::byte workspace[256];
  const auto last = [&](const ForwardProblem& p) { return arguments(p, workspace).order.last; };
  EXPECT_EQ(last(shape(32, 8, 8, 512, 512, 256, 256, false)), 1);
  EXPECT_EQ(last(shape(32, 8, 8, 512, 512, 256, 256, true)), 50);
  EXPECT_EQ(last(shape(8, 64, 8, 2048, 2048, 128, 128, true)), 33) << "four items for each of 132 SMs";
  EXPECT_EQ(last(shape(64, 16, 2, 512, 4096, 128, 128, true)), 128) << "twelve groups of 2 MB fit, sixteen may be read";
  EXPECT_EQ(last(shape(32, 16, 16, 512, 1024, 192, 128, true)), 40) << "of 640 KB each";
  EXPECT_EQ(last(shape(4, 8, 8, 512, 512, 256, 256, true)), 32) << "few items: all";
}

// Also where the last sequences have lower tiles.
TEST(ForwardArguments, ItemsHaveEveryRowOnce) {
  alignas(256) std::byte workspace[256];
  int low = 0;
  for (const fa3_dtype dtype : {FA3_F16, FA3_E4M3})
    for (const int d : {64, 128, 256})
      for (const int seqlen : {1, 130, 700, 1024, 5000})
        for (const auto& [batch, heads, kv_heads] : {std::tuple{1, 1, 1}, {3, 8, 2}, {2, 20, 20}, {5, 7, 1}})
          for (const auto& [causal, sm_count] : {std::pair{false, 132}, {false, 40}, {false, 7}, {true, 132}}) {
            ForwardProblem p = shape(batch, heads, kv_heads, seqlen, seqlen, d, d, causal);
            p.dtype = dtype, p.o_dtype = FA3_F16;
            const attention::ForwardArguments args = arguments(p, workspace, sm_count);
            low += args.low_order.count() > 0;
            const int tile_q = forward_rows[plan_forward(p).row].config.tile_q;
            std::vector<int> seen(std::size_t(batch * heads * seqlen), 0);
            for (int i = 0; i < args.items(); ++i) {
              const attention::Item item = args.item(i);
              ASSERT_TRUE(item.head >= 0 && item.head < heads && item.batch >= 0 && item.batch < batch);
              ASSERT_TRUE(item.first_row < item.end_row && item.end_row <= seqlen);
              ASSERT_LE(item.end_row - item.first_row, 2 * tile_q);  // of a cluster
              for (int row = item.first_row; row < item.end_row; ++row)
                ++seen[std::size_t((item.batch * heads + item.head) * seqlen + row)];
            }
            ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }))
                << "d " << d << ", seqlen " << seqlen << ", heads " << heads << ", causal " << causal;
          }
  EXPECT_GT(low, 60);
}

// Few causal items are dealt out for good: no CTA may get much more than the others.
TEST(ForwardArguments, StaticSchedulesAreBalanced) {
  alignas(256) std::byte workspace[256];
  for (const int d : {64, 96, 128, 192, 256})
    for (const int seqlen : {512, 1024, 1536, 2048, 3072})
      for (const int heads : {8, 16, 24, 32, 64, 128}) {
        const ForwardProblem p = shape(1, heads, heads, seqlen, seqlen, d, d, true);
        const attention::ForwardArguments args = arguments(p, workspace);
        const ForwardConfig& config = forward_rows[plan_forward(p).row].config;
        const int ctas = cta_count(args.items(), 1, 132, 0);
        if (args.next_item != nullptr || args.order.count() < 2 * ctas) continue;
        std::vector<double> work(std::size_t(ctas), 0.0);
        double sum = 0;
        for (int round = 0; round * ctas < args.order.count(); ++round)
          for (int cta = 0; cta < ctas; ++cta) {
            const int item = round * ctas + attention::static_place(cta, round, ctas, true);
            if (item >= args.order.count()) continue;
            // Blocks, and what a tile takes beside them.
            const attention::Tile tile = args.order.item(item);
            const double cost =
                0.8 + attention::BlockWalk::of(args.mask, tile.first_row, config.tile_q, config.tile_kv, false).end;
            work[std::size_t(cta)] += cost;
            sum += cost;
          }
        EXPECT_LE(*std::max_element(work.begin(), work.end()), 1.2 * sum / ctas)
            << "d " << d << ", seqlen " << seqlen << ", heads " << heads;
      }
}

TEST(Plan, HugeDenseCopyIsRefusedInWords) {
  ForwardProblem p = problem();
  p.batch = p.heads = p.kv_heads = 1 << 15, p.seqlen_q = 1, p.seqlen_k = 1 << 30, p.d = p.d_v = 8;
  p.q = tensor(0x10000, {1 << 15, 1, 1 << 15, 8}, {8 << 15, 0, 8, 1});
  p.o = tensor(0x10000, {1 << 15, 1, 1 << 15, 8}, {8 << 15, 0, 8, 1});
  p.k = p.v = tensor(0x20000, {1 << 15, 1 << 30, 1 << 15, 8}, {1, 1, 1, 1});  // overlapping elements, 2 GiB in memory
  try {
    plan_forward(p);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, FA3_NOT_SUPPORTED);
    EXPECT_NE(std::strstr(error.what(), "k: TMA"), nullptr) << error.what();
  }
}

TEST(CtaCount, IsThatOfTheTilesOrOfTheSmsThatAreNotLeftFree) {
  EXPECT_EQ(cta_count(1000, 1, 132, 0), 132);
  EXPECT_EQ(cta_count(1000, 1, 132, 16), 116);
  EXPECT_EQ(cta_count(1000, 1, 132, 131), 1);
  EXPECT_EQ(cta_count(116, 1, 132, 15), 116);
  EXPECT_EQ(cta_count(3, 1, 132, 16), 3);
  EXPECT_EQ(cta_count(1000, 2, 132, 0), 132);
  EXPECT_EQ(cta_count(1000, 2, 131, 0), 130);
  EXPECT_EQ(cta_count(3, 2, 132, 0), 6);
  for (const int margin : {132, 133, 1 << 30}) {
    try {
      cta_count(3, 1, 132, margin);
      ADD_FAILURE() << margin;
    } catch (const Error& error) {
      EXPECT_EQ(error.code, FA3_INVALID_ARGUMENT);
      EXPECT_EQ(error.what(),
                "sm_margin is " + std::to_string(margin) + "; it must be below the device's number of SMs, 132");
    }
  }
}

TEST(Plan, TooManyTilesIsRefusedInWords) {
  ForwardProblem p = problem();
  p.batch = 1 << 30;
  try {
    plan_forward(p);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, FA3_NOT_SUPPORTED);
    EXPECT_NE(std::strstr(error.what(), "tiles"), nullptr);
  }
}

}  // namespace
}  // namespace fa3::kernels
