#include "common.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <system_error>

#include "cpu/forward.hpp"
#include "dtype.hpp"
#include "error.hpp"
#include "npy.hpp"

namespace fa3::cli {

Device usable_device(const std::string& name) {
  if (name == "cpu") return Device::cpu;
  const Status cuda = Status::of(fa3_device_available(FA3_DEVICE_CUDA));
  if (cuda) return Device::cuda;
  if (name == "cuda") throw Error(cuda.code(), cuda.message());
  return Device::cpu;
}

Target usable_target(const std::string& name) {
  if (name == "sim") return {Device::cpu, true};
  return {usable_device(name)};
}

std::string device_text(const Target& target) {
  if (target.simulated) return "sim: the GPU's kernels on the simulator";
  if (target.device == Device::cuda) return "cuda: " + check::device_name(target.device);
  return fmt::format("cpu: {}, {}, {} threads", check::device_name(target.device), cpu::simd_name(),
                     check::host_threads());
}

std::string kernel_name(const Target& target, ConstTensor q, ConstTensor k, ConstTensor v, Tensor o,
                        std::optional<RowTensor> lse, ForwardOptions options) {
  // The question is about the arguments alone: for the simulator they stand for a GPU's.
  q.device = k.device = v.device = o.device = target.like();
  if (lse) lse->device = target.like();
  for (ScalesView* scale : {&options.q_scale, &options.k_scale, &options.v_scale}) scale->device = target.like();
  const char* name = nullptr;
  if (const Status s = forward_kernel(q, k, v, o, lse, options, name); !s) throw Error(s.code(), s.message());
  return name;
}

void add_sm_margin(CLI::App& command, std::optional<int>& sm_margin, const std::string& text) {
  command.add_option("--sm-margin", sm_margin, text + "; nothing on the cpu")
      ->option_text("N")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
}

void allow_only(const CLI::App& command, const std::string& mode, const std::vector<std::string>& allowed) {
  const std::string own = mode.substr(0, mode.find(' '));
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() > 0 && name != own && std::ranges::count(allowed, name) == 0)
      throw UsageError(fmt::format("{} is given; {} allows only {}", name, mode, fmt::join(allowed, ", ")));
  }
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw FileError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  fmt::print("wrote {}\n", path);
}

fa3_dtype parse_dtype(const std::string& name) {
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16, FA3_E4M3, FA3_F32})
    if (name == dtype_name(dtype)) return dtype;
  throw UsageError(fmt::format("--dtype is {}; allowed are f16, bf16, e4m3 and f32", name));
}

check::Buffer normal_tensor(Device device, fa3_dtype dtype, std::int64_t elements, std::mt19937_64& random) {
  return with_dtype(dtype, [&]<class T>(T) {
    std::vector<T> host(static_cast<std::size_t>(elements));
    std::normal_distribution<float> normal;
    constexpr std::size_t period = 1'000'003;  // enough to look random to the hardware, and quick to make
    for (std::size_t i = 0; i < host.size(); ++i)
      host[i] = i < period ? from_float<T>(normal(random)) : host[i - period];
    check::Buffer buffer(device, host.size() * sizeof(T));
    buffer.upload(host.data());
    return buffer;
  });
}

Progress::Progress(std::string what) {
  const auto speak = [this, what = std::move(what)] {
    using namespace std::chrono_literals;
    // A terminal's line is written over once a second; elsewhere every line stays, so there are fewer.
    const bool terminal = isatty(STDERR_FILENO);
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, 2s, [this] { return done_; })) return;
    int seconds = 2;
    do {
      if (terminal || seconds == 2 || seconds % 10 == 0)
        std::fputs(fmt::format("{}fa3: {}, {} s{}", terminal ? "\r" : "", what, seconds, terminal ? "" : "\n").c_str(),
                   stderr);
      ++seconds;
    } while (!wake_.wait_for(lock, 1s, [this] { return done_; }));
    if (terminal) std::fputs("\n", stderr);
  };
  try {
    thread_ = std::thread(speak);
  } catch (const std::system_error&) {
    // No more threads: the work goes on in silence.
  }
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

}  // namespace fa3::cli
