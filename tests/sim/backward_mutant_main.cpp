// As mutant_main.cpp, for a row of kernels::backward_rows. Deterministic rows, and the case "ahead", run a second time
// with the tiles in the opposite order, where the first must find that it waits for ever. usage: mutant CASE.
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>

#include "check/case.hpp"
#include "check/run.hpp"
#include "simulate/backward.hpp"
#include "simulate/on_simulator.hpp"

namespace {

using namespace fa3;

constexpr attention::BackwardConfig config = kernels::backward_rows[FA3_MUTANT_ROW].config;

check::Case case_named(const std::string& name) {
  check::Case c;
  c.name = name;
  c.backward = true;
  c.dtype = config.element == hopper::Element::f16 ? FA3_F16 : FA3_BF16;
  c.d = config.d;
  c.d_v = config.d_v;
  if (name == "full") {  // two query heads of one key head, blocks enough to go round the rings twice, ragged ends
    c.heads = 2;
    c.seqlen_q = 4 * config.tile_q + 5;
    c.seqlen_k = 2 * config.item_keys() - 13;
  } else if (name == "causal") {  // edge blocks and blocks without a mask
    c.seqlen_q = 4 * config.tile_q + 30;
    c.seqlen_k = c.seqlen_q + 20;
    c.causal = true;
  } else if (name == "tiles") {  // CTAs take several tiles of one block; too few heads for zeros ahead
    c.heads = c.kv_heads = 2;
    c.seqlen_q = config.tile_q - 3;
    c.seqlen_k = 2 * config.item_keys() + 9;
    c.sm_margin = 1;
  } else if (name == "ahead") {  // most of dQ is zeroed by the tiles of other heads
    c.heads = c.kv_heads = 16;
    c.seqlen_q = config.tile_q - 3;
    c.seqlen_k = config.item_keys() + 9;
  } else {
    throw std::invalid_argument("case \"" + name + "\"; there are full, causal, tiles and ahead");
  }
  return c;
}

/// backwards: clusters do not ask for items but have one each, the last of all the first. That must not add anything,
/// but wait for ever.
template <bool backwards>
void run_cluster(const attention::BackwardArguments& args, const simulator::Options& options, int index, int count,
                 simulator::Counters& counters, std::vector<simulator::Event>& events) {
  if (!backwards) return simulator::run_backward_cluster<config>(args, options, index, count, counters, events);
  attention::BackwardArguments changed = args;
  changed.next_item = nullptr;
  count = config.cluster * args.order.count();
  const std::int64_t bytes = std::int64_t(args.order.sequences) * args.group * args.blocks *
                             attention::dq_layout(config).block_floats() * std::int64_t(sizeof(float));
  const std::string before(reinterpret_cast<const char*>(args.dq), std::size_t(bytes));
  try {
    simulator::run_backward_cluster<config>(changed, options, count - config.cluster - index, count, counters, events);
  } catch (const simulator::Failure&) {
    if (std::memcmp(before.data(), args.dq, before.size()) != 0) throw simulator::Failure("dQ is added to early");
    throw;
  }
}

template <bool backwards>
check::Verdict run(const check::Case& c, const simulator::Options& options) {
  return check::run_backward_case(c, Device::cpu, simulator::backward_on_simulator([&](BackwardProblem problem) {
                                    problem.deterministic = config.deterministic;
                                    simulator::backward_with(&run_cluster<backwards>,
                                                             kernels::plan_backward(problem, FA3_MUTANT_ROW), problem,
                                                             options, 3);
                                  }));
}

/// "" or what somebody noticed.
std::string notice(const check::Case& c, const simulator::Options& options) {
  if (const check::Verdict verdict = run<false>(c, options); !verdict.passed) return verdict.message;
  const bool ahead = c.name == "ahead";
  if (!config.deterministic && !ahead) return "";
  if (run<true>(c, options).message.find("deadlock") != std::string::npos) return "";
  return ahead ? "what has not been zeroed is added to"
               : "the order of the additions to dQ is left to chance: tiles of later keys do not wait for earlier ones";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: mutant CASE\n";
    return 2;
  }
  const check::Case c = case_named(argv[1]);
  bool noticed = false;
  for (const auto& [completion, seeds] : {std::pair{simulator::Completion::eager, 1},
                                          {simulator::Completion::lazy, 1},
                                          {simulator::Completion::random, 5}}) {
    std::string message;
    for (int seed = 1; seed <= seeds && message.empty(); ++seed)
      message = notice(c, {completion, std::uint64_t(seed), false});
    std::cout << simulator::name(completion) << ": " << (message.empty() ? "passed" : "caught: " + message) << "\n";
    noticed |= !message.empty();
  }
  return noticed ? 0 : 1;
}
