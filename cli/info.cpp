// fa3 info: what this fa3 is and what it can run on.
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "check/device.hpp"
#include "common.hpp"
#include "cpu/forward.hpp"
#include "dtype.hpp"
#include "kernels/configs.hpp"

namespace fa3::cli {
namespace {

std::string cuda_version_text(int version) {
  return version ? fmt::format("{}.{}", version / 1000, version % 1000 / 10) : "none";
}

void print_cuda() {
  const check::CudaMachine machine = check::cuda_machine();
  fmt::print("cuda:    driver for CUDA {}, runtime {}\n", cuda_version_text(machine.driver_version),
             cuda_version_text(machine.runtime_version));
  for (std::size_t i = 0; i < machine.devices.size(); ++i) {
    const check::CudaDevice& device = machine.devices[i];
    fmt::print("  {} {}: compute capability {}.{}, {} SMs, {} GiB{}\n", i, device.name, device.major, device.minor,
               device.multiprocessors, device.memory_bytes >> 30, device.current ? ", current" : "");
  }
  const Status available = Status::of(fa3_device_available(FA3_DEVICE_CUDA));
  fmt::print("  {}\n", available ? "the current device is usable" : "not usable: " + available.message());
}

/// When dispatch takes a row, in the order full, causal.
std::string condition(const kernels::ForwardRow& row) {
  const auto from = [](int seqlen) { return seqlen == kernels::always ? "always" : fmt::format(">= {}", seqlen); };
  return row.full_from == row.causal_from ? from(row.full_from)
                                          : fmt::format("{}, causal {}", from(row.full_from), from(row.causal_from));
}

void print_kernels() {
  fmt::print(
      "kernels (forward; other head dims up to the row's are padded with zeros; causal, GQA and any strides in every "
      "row; of rows of the same head dims the last one whose sequence length holds):\n"
      "  {:<17} {:<5} {:>4} {:>4} {:>7} {:>8} {:>7} {:>10} {:>8} {:>8} {:>20} {:>8} {:<13} {}\n",
      "name", "dtype", "d", "d_v", "tile_q", "tile_kv", "stages", "q_buffers", "cluster", "threads",
      "registers prod/cons", "shared", "turns", "sequences");
  for (const kernels::ForwardRow& row : kernels::forward_rows) {
    const kernels::ForwardConfig& config = row.config;
    fmt::print("  {:<17} {:<5} {:>4} {:>4} {:>7} {:>8} {:>7} {:>10} {:>8} {:>8} {:>20} {:>4} KiB {:<13} {}\n", row.name,
               dtype_name(kernels::dtype_of(config.element)), config.d, config.d_v, config.tile_q,
               config.tile_kv, config.stages, config.q_buffers, config.cluster, config.threads(),
               fmt::format("{}/{}", config.producer_registers(), config.consumer_registers()),
               kernels::shared_tile_bytes(config) / 1024,
               config.turns == attention::Turns::gemm ? "ping-pong" : "free-running", condition(row));
  }
  fmt::print("  {:<17} f16, bf16, f32, e4m3 (forward), d and d_v up to 256\n", cpu::kernel_name());
}

int info() {
  fmt::print("fa3 {}.{}.{}, sources {}\n", FA3_VERSION_MAJOR, FA3_VERSION_MINOR, FA3_VERSION_PATCH, fa3_source_hash());
  fmt::print("{}\n", device_text({Device::cpu}));
  print_cuda();
  print_kernels();
  return exit_ok;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  app.add_subcommand("info", "Print version, devices and the table of kernels")->callback([&action] { action = info; });
}

}  // namespace fa3::cli
