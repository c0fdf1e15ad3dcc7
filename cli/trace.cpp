// fa3 trace: the schedule of one CTA, from the simulator or from the GPU.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <random>

#include "common.hpp"
#include "dtype.hpp"
#include "error.hpp"
#include "kernels/configs.hpp"
#include "npy.hpp"
#include "simulate/forward.hpp"
#include "simulate/timeline.hpp"
#if defined(FA3_WITH_CUDA)
#include "kernels/traced.hpp"
#endif

namespace fa3::cli {
namespace {

// The drawing fits into a source line behind its label.
constexpr double text_columns = 98, cycles_per_column = 64;

struct TraceOptions {
  std::string row = "f16_d128", device = "sim", out, picture;
  int seqlen = 640, heads = 1;
  bool causal = false, text = false;
  std::vector<double> window;
};

int find_row(const std::string& name) {
  std::string known;
  for (int i = 0; i < kernels::forward_row_count; ++i) {
    if (name == kernels::forward_rows[i].name) return i;
    known += std::string(i ? ", " : "") + kernels::forward_rows[i].name;
  }
  throw UsageError(fmt::format("--row is {}; rows are {}", name, known));
}

/// Random normal data in host memory.
struct SmallProblem {
  std::vector<std::uint16_t> q, k, v, o;
  ForwardProblem problem;

  SmallProblem(const kernels::ForwardConfig& config, int seqlen, int heads, bool causal) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const bool f16 = config.element == hopper::Element::f16;
    problem.dtype = f16 ? FA3_F16 : FA3_BF16;
    problem.batch = 1;
    problem.heads = problem.kv_heads = heads;
    problem.seqlen_q = problem.seqlen_k = seqlen;
    problem.d = config.d;
    problem.d_v = config.d_v;
    problem.softmax_scale = float(1 / std::sqrt(double(config.d)));
    problem.causal = causal;
    const auto fill = [&](std::vector<std::uint16_t>& data, TensorRef& tensor, int d) {
      data.resize(std::size_t(seqlen) * std::size_t(heads) * std::size_t(d));
      for (std::uint16_t& x : data)
        x = f16 ? from_float<Half>(normal(random)).bits : from_float<Bfloat16>(normal(random)).bits;
      tensor = {data.data(), {1, seqlen, heads, d}, {0, seqlen > 1 ? heads * d : 0, heads > 1 ? d : 0, 1}};
    };
    fill(q, problem.q, config.d);
    fill(k, problem.k, config.d);
    fill(v, problem.v, config.d_v);
    fill(o, problem.o, config.d_v);
  }
};

void print_counters(const simulator::Counters& c, double tiles) {
  const auto kib = [&](std::uint64_t bytes) { return double(bytes) / 1024 / tiles; };
  fmt::print(
      "per tile: TMA loads {:.1f} KiB, stores {:.1f} KiB; wgmma {:.0f} instructions, operand reads A {:.1f} KiB, B "
      "{:.1f} KiB; "
      "stmatrix {:.1f} KiB, {} bank conflicts in {} phases; ordinary accesses {:.1f} KiB; exp2 {:.0f}\n",
      kib(c.tma_load_bytes), kib(c.tma_store_bytes), double(c.wgmma_instructions) / tiles, kib(c.wgmma_a_bytes),
      kib(c.wgmma_b_bytes), kib(c.stmatrix_bytes), c.bank_conflicts, c.matrix_phases, kib(c.ordinary_bytes),
      double(c.exp2) / tiles);
}

int trace(const TraceOptions& options) {
  const int row = find_row(options.row);
  const kernels::ForwardConfig& config = kernels::forward_rows[row].config;
  if (options.seqlen < 1 || options.seqlen > 65536)
    throw UsageError(fmt::format("--seqlen is {}; allowed are 1 to 65536", options.seqlen));
  if (options.heads < 1 || options.heads > 65536)
    throw UsageError(fmt::format("--heads is {}; allowed are 1 to 65536", options.heads));
  if (!options.window.empty() && !(options.window[0] < options.window[1]))
    throw UsageError(
        fmt::format("--window is {} {}; the end must be after the begin", options.window[0], options.window[1]));
  const bool simulated = options.device == "sim";
  if (options.text && (!simulated || !options.out.empty() || !options.picture.empty()))
    throw UsageError("--text draws the simulator's schedule and goes with neither --device cuda nor --out nor --svg");
  for (const std::string& path : {options.out, options.picture})
    if (!path.empty()) check_writable(path);
  SmallProblem small(config, options.seqlen, options.heads, options.causal);
  std::vector<simulator::Event> events;
  if (simulated) {
    const double seconds = simulator::estimate_seconds(small.problem);
    if (seconds > 2) fmt::print("this will take about {:.0f} s\n", seconds);
    simulator::Options sim;
    sim.completion = simulator::Completion::timed;
    sim.trace = true;
    const simulator::ForwardRun run = simulator::forward(small.problem, sim, row, 1);
    events = simulator::merged(run.events);
    if (!options.text) {
      fmt::print("{} on the simulator, seqlen {}, {}: {}, times in cycles of a simple model of the machine's rates\n",
                 options.row, options.seqlen, options.causal ? "causal" : "full",
                 config.cluster > 1 ? "the first CTA of one cluster" : "one CTA");
      print_counters(run.counters, double(options.heads) * ((options.seqlen + config.tile_q - 1) / config.tile_q));
    }
  } else {
#if defined(FA3_WITH_CUDA)
    usable_device("cuda");
    events = kernels::trace_forward(small.problem, row);
    fmt::print("{} on {}, seqlen {}, {}: CTA 0, times in cycles of its SM\n", options.row, device_text({Device::cuda}),
               options.seqlen, options.causal ? "causal" : "full");
#else
    throw Error(FA3_NO_DEVICE, "this build of fa3 has no CUDA kernels (it was built without nvcc)");
#endif
  }
  double begin = 0, end = 0;
  for (const simulator::Event& event : events) end = std::max(end, event.end);
  if (options.text) {
    // From the first GEMM on, as many steps as fit into a source line.
    begin = end;
    for (const simulator::Event& event : events)
      if (event.track == "tensor core") begin = std::min(begin, event.begin);
    fmt::print("{}",
               simulator::text_drawing(events, begin, begin + text_columns * cycles_per_column, cycles_per_column));
    return exit_ok;
  }
  if (!options.window.empty()) {
    begin = options.window[0];
    end = options.window[1];
  }
  if (!options.out.empty()) write_text(options.out, simulator::chrome_trace(events));
  if (!options.picture.empty()) write_text(options.picture, simulator::svg(events, begin, end));
  return exit_ok;
}

}  // namespace

void add_trace(CLI::App& app, Action& action) {
  auto options = std::make_shared<TraceOptions>();
  CLI::App* command =
      app.add_subcommand("trace", "Draw the schedule of a kernel: who computes, who waits, what overlaps");
  command
      ->add_option("--row", options->row,
                   "Row of the kernel table, see fa3 info; on cuda the f16 rows (default f16_d128)")
      ->option_text("NAME");
  command->add_option("--seqlen", options->seqlen, "Queries and keys per head (default 640)");
  command
      ->add_option("--heads", options->heads,
                   "Heads; with more tiles than the chip has SMs, a CTA does several (default 1)")
      ->option_text("N");
  command->add_flag("--causal", options->causal, "Causal mask");
  command
      ->add_option(
          "--device", options->device,
          "sim: the simulator, in modelled cycles; cuda (or gpu): one CTA on the GPU, in its cycles (default sim)")
      ->option_text("DEVICE")
      ->check(CLI::IsMember({"sim", "cuda", "gpu"}));
  command->add_option("--out", options->out, "Write a trace for Perfetto or chrome://tracing")
      ->option_text("FILE.json");
  command->add_option("--svg", options->picture, "Write a picture")->option_text("FILE.svg");
  command->add_option("--window", options->window, "Begin and end of the picture, in cycles")
      ->expected(2)
      ->option_text("BEGIN END");
  command->add_flag("--text", options->text, "Print the drawing that stands on top of src/attention/forward.hpp");
  command->callback([&action, options] { action = [options] { return trace(*options); }; });
}

}  // namespace fa3::cli
