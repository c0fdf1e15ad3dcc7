// Runs one row's kernel, compiled from headers of which one may hold a fault (mutate.py), under every policy and says
// who noticed. usage: mutant CASE; FA3_MUTANT_ROW is an index of kernels::forward_rows. Exit code 0: some policy
// noticed, 1: none did.
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "check/run.hpp"
#include "one_cluster.hpp"
#include "simulate/on_simulator.hpp"

namespace {

using namespace fa3;

constexpr attention::ForwardConfig config = kernels::forward_rows[FA3_MUTANT_ROW].config;

check::Case case_named(const std::string& name) {
  check::Case c;
  c.name = name;
  c.dtype = config.element == hopper::Element::f16 ? FA3_F16 : FA3_BF16;
  c.d = config.d;
  c.d_v = config.d_v;
  if (name == "full") {  // four heads, blocks enough to go round the ring twice, ragged ends
    c.heads = 4;
    c.kv_heads = 2;
    c.seqlen_q = config.tile_q / 2 + 5;
    c.seqlen_k = (2 * config.stages + 1) * config.tile_kv - 13;
  } else if (name == "causal") {  // edge blocks and blocks without a mask, logits that rise
    c.heads = 2;
    c.seqlen_q = config.tile_q + 40;
    c.seqlen_k = c.seqlen_q + 3 * config.tile_kv + 5;
    c.causal = true;
    c.q.scale = 3;
    // Blocks are visited from the last one down: keys that are hotter the earlier they stand make m rise again and
    // again.
    for (int i = 0; 3 + i * config.tile_kv < c.seqlen_k; ++i) {
      check::Patch hotter;
      hotter.tensor = 1;
      hotter.row = 3 + i * config.tile_kv;
      hotter.times = 40.0 / (1 + i);
      c.patches.push_back(hotter);
    }
  } else if (name == "short") {  // one block per tile: Q and V are the only buffers that hold anybody up
    c.heads = 4;
    c.seqlen_q = config.tile_q;
    c.seqlen_k = config.tile_kv / 2;
  } else if (name ==
             "blind") {  // one tile in which the first rows see nothing and the last ones all, then tiles without keys
    c.seqlen_q = 6 * config.tile_q;
    c.seqlen_k = config.tile_q - 8;
    c.causal = true;
  } else {
    throw std::invalid_argument("case \"" + name + "\"; there are full, causal, short and blind");
  }
  return c;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: mutant CASE\n";
    return 2;
  }
  bool noticed = false;
  for (const auto& [completion, seeds] : {std::pair{simulator::Completion::eager, 1},
                                          {simulator::Completion::lazy, 1},
                                          {simulator::Completion::random, 5}}) {
    check::Verdict verdict;
    for (int seed = 1; seed <= seeds && verdict.passed; ++seed) {
      const simulator::Options options{completion, std::uint64_t(seed), false};
      verdict =
          check::run_case(case_named(argv[1]), Device::cpu, simulator::on_simulator([&](const ForwardProblem& problem) {
                            test::run_one_cluster<config>(problem, FA3_MUTANT_ROW, options);
                          }));
    }
    std::cout << simulator::name(completion) << ": " << (verdict.passed ? "passed" : "caught: " + verdict.message)
              << "\n";
    noticed |= !verdict.passed;
  }
  return noticed ? 0 : 1;
}
