// fa3 check: runs the correctness cases.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "check/case.hpp"
#include "check/run.hpp"
#include "common.hpp"

namespace fa3::cli {
namespace {

struct CheckOptions {
  std::string cases, device = "auto";
};

std::vector<Device> devices_of(const std::string& name) {
  if (name != "all") return {usable_device(name)};
  std::vector<Device> devices = {Device::cpu};
  const Status cuda = Status::of(fa3_device_available(FA3_DEVICE_CUDA));
  if (cuda)
    devices.push_back(Device::cuda);
  else
    fmt::print("cuda is left out: {}\n", cuda.message());
  return devices;
}

bool run_one(const check::Case& c, Device device) {
  const auto start = std::chrono::steady_clock::now();
  const check::Verdict verdict = check::run_case(c, device);
  const double milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const char* on = device == Device::cuda ? "cuda" : "cpu";
  if (verdict.passed)
    fmt::print("ok   {:<4} {}: O off by {:.2g} of {:.2g} allowed, LSE by {:.2g}, {} rows, {:.0f} ms\n", on, c.name,
               verdict.o_error, verdict.o_allowed, verdict.lse_error, verdict.rows, milliseconds);
  else
    fmt::print("FAIL {:<4} {}: {}\n", on, c.name, verdict.message);
  std::fflush(stdout);
  return verdict.passed;
}

int check_cases(const CheckOptions& options) {
  const std::vector<Device> devices = devices_of(options.device);
  int passed = 0, failed = 0;
  for (const check::Case& c : check::all_cases()) {
    if (!check::name_matches(c.name, options.cases)) continue;
    for (const Device device : devices) {
      if (!check::runs_on(c, static_cast<fa3_device>(device))) continue;
      ++(run_one(c, device) ? passed : failed);
    }
  }
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
  command->add_option("--device", options->device, "auto (the GPU if there is a usable one), cuda, cpu, or all")
      ->option_text("DEVICE")
      ->check(CLI::IsMember({"auto", "cuda", "cpu", "all"}));
  command->callback([&action, options] { action = [options] { return check_cases(*options); }; });
}

}  // namespace fa3::cli
