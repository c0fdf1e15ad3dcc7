// fa3 check: runs the correctness cases.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "check/case.hpp"
#include "check/run.hpp"
#include "common.hpp"
#include "simulate/backward.hpp"
#include "simulate/forward.hpp"

namespace fa3::cli {
namespace {

struct CheckOptions {
  std::string cases, device = "auto";
  std::optional<int> sm_margin;
};

double simulated_seconds(const check::Case& c) {
  const auto seconds = [&](auto p) {
    p.batch = c.batch, p.heads = c.heads, p.seqlen_q = c.seqlen_q, p.seqlen_k = c.seqlen_k, p.d = c.d, p.d_v = c.d_v,
    p.causal = c.causal;
    return simulator::estimate_seconds(p) * c.repeats;
  };
  return c.backward ? seconds(BackwardProblem{}) : seconds(ForwardProblem{});
}

bool runs_on(const Target& target, const check::Case& c) {
  if (!check::runs_on(c, static_cast<fa3_device>(target.like()))) return false;
  // The simulator is for small problems, and its chip is small.
  return !target.simulated || (simulated_seconds(c) < 5 && c.sm_margin < simulator::usual_sm_count);
}

std::vector<Target> targets_of(const std::string& name) {
  if (name != "all") return {usable_target(name)};
  std::vector<Target> devices = {{Device::cpu}};
  const Status cuda = Status::of(fa3_device_available(FA3_DEVICE_CUDA));
  if (cuda)
    devices.push_back({Device::cuda});
  else
    fmt::print("cuda is left out: {}\n", cuda.message());
  return devices;
}

bool run_one(const check::Case& c, const Target& target) {
  const auto start = std::chrono::steady_clock::now();
  const check::Verdict verdict = !target.simulated ? check::run_case(c, target.device)
                                 : c.backward ? check::run_backward_case(c, Device::cpu, simulator::backward_as_device)
                                              : check::run_case(c, Device::cpu, simulator::forward_as_device);
  const double milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const char* on = target.name();
  if (verdict.passed)
    fmt::print("ok   {:<4} {}: {}, {:.0f} ms\n", on, c.name, verdict.summary(), milliseconds);
  else
    fmt::print("FAIL {:<4} {}: {}\n", on, c.name, verdict.message);
  std::fflush(stdout);
  return verdict.passed;
}

/// The simulator is slow: says before it starts how long it will take.
void announce_simulation(const std::vector<check::Case>& cases, const Target& target) {
  double seconds = 0;
  int count = 0;
  for (const check::Case& c : cases) {
    if (!runs_on(target, c)) continue;
    seconds += simulated_seconds(c);
    ++count;
  }
  fmt::print("{} of {} cases are of its types and small enough for the simulator; about {:.0f} s\n", count,
             cases.size(), seconds);
  std::fflush(stdout);
}

int check_cases(const CheckOptions& options) {
  const std::vector<Target> targets = targets_of(options.device);
  std::vector<check::Case> cases = check::all_cases();
  std::erase_if(cases, [&](const check::Case& c) { return !check::name_matches(c.name, options.cases); });
  if (options.sm_margin) {
    if (options.device == "sim" && *options.sm_margin >= simulator::usual_sm_count)
      throw UsageError(fmt::format("--sm-margin is {}; it must be below the simulated chip's number of SMs, {}",
                                   *options.sm_margin, simulator::usual_sm_count));
    for (check::Case& c : cases) c.sm_margin = *options.sm_margin;
  }
  if (options.device == "sim") announce_simulation(cases, targets[0]);
  int passed = 0, failed = 0;
  for (const check::Case& c : cases)
    for (const Target& target : targets)
      if (runs_on(target, c)) ++(run_one(c, target) ? passed : failed);
  if (passed + failed == 0)
    throw UsageError(fmt::format("--cases is {}; no case that runs on this device has such a name", options.cases));
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed ? exit_failed : exit_ok;
}

}  // namespace

void add_check(CLI::App& app, Action& action) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand("check", "Run the correctness cases against fp64");
  command
      ->add_option("--cases", options->cases,
                   "Only cases whose name holds FILTER or, with *, ? or [], matches it as a whole")
      ->option_text("FILTER");
  command
      ->add_option("--device", options->device,
                   "auto (the GPU if there is a usable one), cuda, cpu, sim (the GPU's kernels on the simulator: "
                   "slow), or all (cpu and cuda)")
      ->option_text("DEVICE")
      ->check(CLI::IsMember({"auto", "cuda", "cpu", "sim", "all"}));
  add_sm_margin(*command, options->sm_margin, "SMs each case leaves free, whatever it says itself");
  command->callback([&action, options] { action = [options] { return check_cases(*options); }; });
}

}  // namespace fa3::cli
