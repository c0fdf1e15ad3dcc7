// Runs one row's kernel, compiled from headers of which one may hold a fault (mutate.py), under every policy and says
// who noticed. usage: mutant CASE; FA3_MUTANT_ROW is an index of kernels::forward_rows. Exit code 0: some policy
// noticed, 1: none did.
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "check/run.hpp"
#include "few_clusters.hpp"
#include "neighbours.hpp"
#include "simulate/on_simulator.hpp"

namespace {

using namespace fa3;

constexpr attention::ForwardConfig config = kernels::forward_rows[FA3_MUTANT_ROW].config;

struct MutantCase {
  check::Case c;
  int clusters = 1;         // that share the items
  bool neighbours = false;  // a second run with other rows beside the same ones
};

MutantCase case_named(const std::string& name) {
  MutantCase made;
  check::Case& c = made.c;
  c.name = name;
  c.dtype = kernels::dtype_of(config.element);
  if (config.fp8()) c.q.scales = c.k.scales = c.v.scales = check::Scales::block;
  c.narrow = config.f16_sums;
  c.d = config.d;
  c.d_v = config.d_v;
  constexpr int rows = config.cluster * config.tile_q;  // of an item
  const auto patch = [&](int tensor, std::int64_t row, double times) {
    check::Patch hotter;
    hotter.tensor = tensor;
    hotter.row = row;
    hotter.times = times;
    c.patches.push_back(hotter);
  };
  if (name == "full") {  // four heads, blocks enough to go round the ring twice, ragged ends
    c.heads = 4;
    c.kv_heads = 2;
    c.seqlen_q = rows - config.tile_q / 2 + 5;
    c.seqlen_k = (2 * config.stages + 1) * config.tile_kv - 13;
  } else if (name == "causal") {  // edge blocks and blocks without a mask, logits that rise
    c.heads = 2;
    c.seqlen_q = rows + 40;
    c.seqlen_k = c.seqlen_q + 3 * config.tile_kv + 5;
    c.causal = true;
    c.q.scale = 3;
    // Blocks are visited from the last one down: keys that are hotter the earlier they stand make m rise again and
    // again.
    for (int i = 0; 3 + i * config.tile_kv < c.seqlen_k; ++i)
      patch(1, 3 + i * config.tile_kv, (c.narrow ? 8.0 : 40.0) / (1 + i));
    if (c.narrow) {  // the same scores of smaller keys
      c.k.scale = 0.4;
      c.softmax_scale = float(12.5 / std::sqrt(double(c.d)));
    }
  } else if (name == "hidden") {  // the hottest keys are hidden from most rows
    c.seqlen_q = config.tile_q;
    c.seqlen_k = config.tile_q + 2 * config.tile_kv;
    c.causal = true;
    for (int i = 1; i <= 40; ++i) patch(1, c.seqlen_k - i, 60);
  } else if (name == "cold") {  // every logit is about -500
    c.seqlen_q = config.tile_q / 2 + 5;
    c.seqlen_k = 3 * config.tile_kv - 9;
    c.causal = true;
    c.q.scale = c.k.scale = 0.25;
    check::Patch feature;
    feature.feature = 0;
    feature.value = 32;
    c.patches.push_back(feature);
    feature.tensor = 1;
    feature.value = -16 * std::sqrt(double(config.d));
    c.patches.push_back(feature);
  } else if (name == "below_0") {  // every logit is below 0, and they rise from block to block
    c.seqlen_q = 20;
    c.seqlen_k = 3 * config.tile_kv - 9;
    const double unit = std::sqrt(double(config.d)) / 4;
    c.patches = {{.tensor = 0, .feature = 0, .value = 4},
                 {.tensor = 1, .feature = 0, .value = -16 * unit, .slope = -16 * unit / config.tile_kv}};
  } else if (name == "d_major") {  // keys that end within 16
    c.heads = 2;
    c.seqlen_q = 20;
    c.seqlen_k = config.tile_kv + 21;
    c.v.layout = check::Layout::d_major;
  } else if (name == "short") {  // one block per tile: Q and V are the only buffers that hold anybody up
    c.heads = 4;
    c.seqlen_q = config.tile_q;
    c.seqlen_k = config.tile_kv / 2;
  } else if (name ==
             "blind") {  // one tile in which the first rows see nothing and the last ones all, then tiles without keys
    c.seqlen_q = 6 * config.tile_q;
    c.seqlen_k = config.tile_q - 8;
    c.causal = true;
  } else if (name == "one_warpgroup") {  // the others have no rows and skip every block
    c.heads = 2;
    c.seqlen_q = 20;
    c.seqlen_k = (2 * config.stages + 1) * config.tile_kv - 13;
  } else if (name == "shared" || name == "sections") {  // several clusters; with a mask a last section of three heads
    c.heads = 6;
    c.kv_heads = 3;
    c.seqlen_q = 2 * rows + 5;
    c.causal = name == "sections";
    c.seqlen_k = c.causal ? c.seqlen_q : config.tile_kv + 5;
    made.clusters = 2;
  } else if (name == "low_tiles") {  // of the last head, two, the lower one of which the first CTA does not take
    c.heads = c.kv_heads = 5;
    c.seqlen_q = config.tile_q - 5;
    c.seqlen_k = config.tile_kv + 5;
    made.clusters = 2;
  } else if (name == "nan_of_a_key") {  // whose exponentials are polynomials where any are
    c.seqlen_q = 8;
    c.seqlen_k = 3 * config.tile_kv - 9;
    c.patches = {{.tensor = 1, .row = 3, .value = NAN}};
  } else if (name == "items") {  // many items, taken one by one
    c.heads = 7;
    c.seqlen_q = 20;
    c.seqlen_k = 40;
    c.causal = true;
  } else if (name == "clipped") {  // one row less and some columns less than the tile has
    c.heads = 2;
    c.d_v -= config.fp8() ? 16 : 8;
    c.o_dtype = FA3_BF16;  // of e4m3 rows
    c.seqlen_q = config.tile_q - 1;
    c.seqlen_k = config.tile_kv;
  } else if (name == "neighbours") {
    c.seqlen_q = config.tile_q;
    c.seqlen_k = 4 * config.tile_kv;
    made.neighbours = true;
  } else {
    throw std::invalid_argument(
        "case \"" + name +
        "\"; there are full, causal, hidden, cold, below_0, d_major, short, blind, one_warpgroup, shared, "
        "sections, low_tiles, nan_of_a_key, items, clipped and neighbours");
  }
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: mutant CASE\n";
    return 2;
  }
  const MutantCase made = case_named(argv[1]);
  bool noticed = false;
  for (const auto& [completion, seeds] : {std::pair{simulator::Completion::eager, 1},
                                          {simulator::Completion::lazy, 1},
                                          {simulator::Completion::random, 5}}) {
    check::Verdict verdict;
    for (int seed = 1; seed <= seeds && verdict.passed; ++seed) {
      const simulator::Options options{completion, std::uint64_t(seed), false};
      const auto run = [&](const ForwardProblem& problem) {
        test::run_clusters<config>(problem, FA3_MUTANT_ROW, options, made.clusters);
      };
      verdict = check::run_case(made.c, Device::cpu, simulator::on_simulator([&](const ForwardProblem& problem) {
                                  made.neighbours ? test::run_with_other_neighbours(problem, run) : run(problem);
                                }));
    }
    std::cout << simulator::name(completion) << ": " << (verdict.passed ? "passed" : "caught: " + verdict.message)
              << "\n";
    noticed |= !verdict.passed;
  }
  return noticed ? 0 : 1;
}
