// What the subcommands share: exit codes, the device option, progress, the description of what runs a problem.
#pragma once

#include <CLI/CLI.hpp>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check/device.hpp"
#include "fa3/fa3.hpp"
#include "problem.hpp"

namespace fa3::cli {

enum ExitCode : int {
  exit_ok = 0,
  exit_failed = 1,     // a check failed, or the work itself did
  exit_bad_input = 2,  // bad usage, a bad file, arguments the library refuses
  exit_no_device = 3   // no usable GPU where one was asked for
};

/// Options that make no sense together.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The subcommand that was chosen; returns the exit code.
using Action = std::function<int()>;

void add_run(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_accuracy(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_ablate(CLI::App& app, Action& action);
void add_trace(CLI::App& app, Action& action);

/// "auto", "cuda" or "cpu" as a device that can be used. Throws Error(FA3_NO_DEVICE) for cuda if it cannot.
Device usable_device(const std::string& name);

/// Where the command runs a problem: a device of the library, or the GPU's kernels on the simulator, in host memory.
struct Target {
  Device device = Device::cpu;  // where its memory is
  bool simulated = false;

  /// The device whose types and kernels it has.
  Device like() const { return simulated ? Device::cuda : device; }
  const char* name() const { return simulated ? "sim" : device == Device::cuda ? "cuda" : "cpu"; }
};

/// As usable_device, and "sim".
Target usable_target(const std::string& name);

/// "cpu: AMD EPYC, avx2, 2 threads" or "cuda: NVIDIA H200".
std::string device_text(const Target& target);

/// Name of the kernel that runs this there. Throws Error for what the library refuses.
std::string kernel_name(const Target& target, ConstTensor q, ConstTensor k, ConstTensor v, Tensor o,
                        std::optional<RowTensor> lse, ForwardOptions options);

/// Adds --sm-margin to a command.
void add_sm_margin(CLI::App& command, std::optional<int>& sm_margin, const std::string& text);

/// Throws UsageError if another option is given than that of `mode` ("--op quantize") and those it allows.
void allow_only(const CLI::App& command, const std::string& mode, const std::vector<std::string>& allowed);

/// Writes a file and says so. Throws FileError.
void write_text(const std::string& path, const std::string& text);

fa3_dtype parse_dtype(const std::string& name);

/// Normal numbers of `dtype` on the device. Why not zeros: a chip at its power limit is faster on them.
check::Buffer normal_tensor(Device device, fa3_dtype dtype, std::int64_t elements, std::mt19937_64& random);

/// Says on stderr what is being done and for how long, from two seconds on and while it lives; nothing if no thread can
/// be created for it.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace fa3::cli
