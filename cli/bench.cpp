// fa3 bench: times a pass over a grid of shapes; docs/benchmarks.md has the format of the result.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <vector>

#include "check/device.hpp"
#include "common.hpp"
#include "dtype.hpp"
#include "error.hpp"
#include "fp8.hpp"
#include "npy.hpp"
#include "scripts.hpp"

namespace fa3::cli {
namespace {

namespace fs = std::filesystem;
using std::int64_t;

struct BenchOptions {
  std::vector<int64_t> d, seqlen;
  std::vector<std::string> dtype;
  int64_t d_v = 0, batch = 0, heads = 0, kv_heads = 0;  // 0: d, or from the grid
  bool causal = false, full = false, peers = false, deterministic = false;
  std::optional<int> sm_margin;
  std::string op = "forward", mode = "short", device = "auto", out, lib, plot;

  bool backward() const { return op == "backward"; }
};

/// Throws UsageError for options of a pass that do not go together.
void check_pass(const BenchOptions& options) {
  if (options.deterministic && !options.backward()) throw UsageError("--deterministic is for --op backward");
  if (options.op != "forward" && std::ranges::count(options.dtype, "e4m3"))
    throw UsageError("--dtype e4m3 is for --op forward");
}

struct Cell {
  fa3_dtype dtype;
  int64_t d, d_v, seqlen, batch, heads, kv_heads;
  bool causal;

  /// Of the forward pass; the backward pass counts as 2.5 times that, as in the paper.
  double flops(bool backward) const {
    return (backward ? 5.0 : 2.0) * double(seqlen) * double(seqlen) * double(d + d_v) * double(heads) * double(batch) /
           (causal ? 2 : 1);
  }
};

/// The paper's grid, 16,384 tokens and hidden size 2048; on the cpu a sixteenth of both.
std::vector<Cell> cells_of(const BenchOptions& options, Device device) {
  const bool cuda = device == Device::cuda;
  const int64_t tokens = cuda ? 16384 : 1024, hidden = cuda ? 2048 : 256;
  const auto or_default = [](const auto& given, auto otherwise) { return given.empty() ? otherwise : given; };
  const auto dtypes = or_default(
      options.dtype, cuda ? std::vector<std::string>{"f16", "bf16"} : std::vector<std::string>{"f32", "f16"});
  const auto dims = or_default(options.d, cuda ? std::vector<int64_t>{64, 128, 256} : std::vector<int64_t>{64, 128});
  const auto seqlens = or_default(options.seqlen, cuda ? std::vector<int64_t>{512, 1024, 2048, 4096, 8192, 16384}
                                                       : std::vector<int64_t>{256, 512, 1024});
  std::vector<Cell> cells;
  for (const std::string& dtype : dtypes)
    for (const int64_t d : dims)
      for (const bool causal : {false, true}) {
        if (causal ? options.full : options.causal) continue;
        for (const int64_t seqlen : seqlens) {
          const int64_t batch = options.batch ? options.batch : std::max<int64_t>(1, tokens / seqlen);
          const int64_t heads = options.heads ? options.heads : std::max<int64_t>(1, hidden / d);
          cells.push_back({parse_dtype(dtype), d, options.d_v ? options.d_v : d, seqlen, batch, heads,
                           options.kv_heads ? options.kv_heads : heads, causal});
        }
      }
  return cells;
}

struct Timed {
  std::string kernel;
  double seconds;
};

/// Random tensors of a cell on the device, and its passes over them.
class CellTensors {
 public:
  CellTensors(const Cell& c, Device device, int sm_margin, bool deterministic)
      : cell_(c),
        device_(device),
        forward_options_{c.causal, {}, sm_margin},
        backward_options_{c.causal, {}, deterministic, sm_margin} {}

  Timed time_forward(double budget_seconds) {
    const ConstTensor q = normal(cell_.heads, cell_.d), k = normal(cell_.kv_heads, cell_.d),
                      v = normal(cell_.kv_heads, cell_.d_v);
    const Tensor o = output(cell_.heads, cell_.d_v);
    if (cell_.dtype != FA3_E4M3) return time_forward(q, k, v, o, forward_options_, budget_seconds);
    const QuantizedInputs in = quantize_inputs(q, k, v, Scaling::block, false, true);
    return time_forward(in.q.view, in.k.view, in.v.view, o, in.with_scales(forward_options_), budget_seconds);
  }

  /// With O and LSE of the forward pass, which is not timed.
  Timed time_backward(double budget_seconds) {
    const ConstTensor q = normal(cell_.heads, cell_.d), k = normal(cell_.kv_heads, cell_.d),
                      v = normal(cell_.kv_heads, cell_.d_v), d_o = normal(cell_.heads, cell_.d_v);
    const Tensor o = output(cell_.heads, cell_.d_v), dq = output(cell_.heads, cell_.d),
                 dk = output(cell_.kv_heads, cell_.d), dv = output(cell_.kv_heads, cell_.d_v);
    const check::Buffer lse_memory(device_, std::size_t(cell_.batch * cell_.heads * cell_.seqlen) * sizeof(float));
    const RowTensor lse(lse_memory.data(), {cell_.batch, cell_.heads, cell_.seqlen}, Dtype::f32, device_);
    {
      const check::Buffer workspace = forward_workspace(q, k, v, o, lse, forward_options_);
      check::require(check::run_and_wait(device_, [&](fa3_stream stream) {
        return forward(q, k, v, o, lse, forward_options_, Workspace{workspace.data(), workspace.bytes()}, stream);
      }));
    }
    std::size_t bytes = 0;
    check::require(backward_workspace_size(d_o, q, k, v, o, lse, dq, dk, dv, backward_options_, bytes));
    const char* kernel = nullptr;
    check::require(backward_kernel(d_o, q, k, v, o, lse, dq, dk, dv, backward_options_, kernel));
    const check::Buffer workspace(device_, bytes);
    return {kernel, time(budget_seconds, [&](fa3_stream stream) {
              return backward(d_o, q, k, v, o, lse, dq, dk, dv, backward_options_,
                              Workspace{workspace.data(), workspace.bytes()}, stream);
            })};
  }

 private:
  std::array<int64_t, 4> shape(int64_t heads, int64_t d) const { return {cell_.batch, cell_.seqlen, heads, d}; }
  int64_t elements(int64_t heads, int64_t d) const { return cell_.batch * cell_.seqlen * heads * d; }
  /// Of O, and of what is quantised.
  fa3_dtype dtype() const { return cell_.dtype == FA3_E4M3 ? FA3_BF16 : cell_.dtype; }
  ConstTensor normal(int64_t heads, int64_t d) {
    memory_.push_back(normal_tensor(device_, dtype(), elements(heads, d), random_));
    return ConstTensor(memory_.back().data(), shape(heads, d), static_cast<Dtype>(dtype()), device_);
  }
  Tensor output(int64_t heads, int64_t d) {
    memory_.emplace_back(device_, std::size_t(elements(heads, d)) * element_bytes(dtype()));
    return Tensor(memory_.back().data(), shape(heads, d), static_cast<Dtype>(dtype()), device_);
  }
  check::Buffer forward_workspace(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                                  const std::optional<RowTensor>& lse, const ForwardOptions& options) const {
    std::size_t bytes = 0;
    check::require(forward_workspace_size(q, k, v, o, lse, options, bytes));
    return check::Buffer(device_, bytes);
  }
  Timed time_forward(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                     const ForwardOptions& options, double budget_seconds) const {
    const check::Buffer workspace = forward_workspace(q, k, v, o, {}, options);
    return {kernel_name({device_}, q, k, v, o, {}, options), time(budget_seconds, [&](fa3_stream stream) {
              return forward(q, k, v, o, {}, options, Workspace{workspace.data(), workspace.bytes()}, stream);
            })};
  }
  double time(double budget_seconds, const check::Work& work) const {
    const Progress progress("timing");
    return check::time_work(device_, work, budget_seconds).seconds;
  }

  Cell cell_;
  Device device_;
  ForwardOptions forward_options_;
  BackwardOptions backward_options_;
  std::mt19937_64 random_{1};
  std::vector<check::Buffer> memory_;
};

/// The head of a result file, without rows.
nlohmann::ordered_json empty_result(Device device) {
  return {{"device", device == Device::cuda ? check::device_name(device) : device_text({device})},
          {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
          {"source_hash", fa3_source_hash()},
          {"compiler", FA3_COMPILER},
          {"ceilings", nlohmann::json::object()},
          {"rows", nlohmann::json::array()}};
}

double budget_seconds(const BenchOptions& options) { return options.mode == "long" ? 2.0 : 0.12; }

/// What of the quantiser is timed.
struct QuantizeVariant {
  const char* scaling_name;
  Scaling scaling;
  bool rotate;

  /// How often x is read.
  int reads() const { return scaling == Scaling::block ? 1 : 2; }
};
constexpr QuantizeVariant quantize_variants[] = {{"block", Scaling::block, false},
                                                 {"block", Scaling::block, true},
                                                 {"head", Scaling::head, false},
                                                 {"head", Scaling::head, true}};

/// Seconds of one call over x [batch, seqlen, heads, d].
double time_quantize(Device device, const ConstTensor& x, const QuantizeVariant& variant, double budget) {
  const auto [batch, seqlen, heads, d] = x.shape;
  const int64_t blocks = (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS;
  const check::Buffer y_memory(device, std::size_t(batch * seqlen * heads * d)),
      scale_memory(device, std::size_t(batch * heads * blocks) * sizeof(float));
  const Tensor y(y_memory.data(), x.shape, Dtype::e4m3, device);
  float* const scales = static_cast<float*>(scale_memory.data());
  const ScalesView scale = variant.scaling == Scaling::block
                               ? ScalesView::of_blocks(scales, batch, heads, blocks, device)
                               : ScalesView::of_heads(scales, batch, heads, device);
  QuantizeOptions options;
  options.scaling = variant.scaling;
  options.rotate = variant.rotate;
  std::size_t bytes = 0;
  check::require(quantize_workspace_size(x, y, scale, options, bytes));
  const check::Buffer workspace(device, bytes);
  const auto work = [&](fa3_stream stream) {
    return quantize(x, y, scale, options, Workspace{workspace.data(), workspace.bytes()}, stream);
  };
  const Progress progress("timing");
  return check::time_work(device, work, budget).seconds;
}

/// The quantiser beside a copy of the tensor it reads.
int bench_quantize(const BenchOptions& options) {
  check_pass(options);
  const Device device = usable_device(options.device);
  if (!options.out.empty()) check_writable(options.out);
  // 2^27 elements, 256 MiB in 16 bits; on the cpu a hundredth of that.
  const bool cuda = device == Device::cuda;
  const int64_t tokens = cuda ? 65536 : 4096, hidden = cuda ? 2048 : 256;
  const auto or_default = [](const auto& given, auto otherwise) { return given.empty() ? otherwise : given; };
  nlohmann::ordered_json result = empty_result(device);
  fmt::print("{}, quantize\n{:<6} {:>4} {:>6} {:>6} {:>6}  {:<7} {:<7} {:>10} {:>9} {:>8}\n", device_text({device}),
             "dtype", "d", "seqlen", "batch", "heads", "scaling", "rotated", "ms", "GB/s", "of copy");
  double fastest_copy = 0;
  for (const std::string& name : or_default(options.dtype, std::vector<std::string>{"bf16"}))
    for (const int64_t d : or_default(options.d, std::vector<int64_t>{64, 128, 256}))
      for (const int64_t seqlen : or_default(options.seqlen, std::vector<int64_t>{cuda ? 4096 : 512})) {
        const int64_t batch = options.batch ? options.batch : std::max<int64_t>(1, tokens / seqlen);
        const int64_t heads = options.heads ? options.heads : std::max<int64_t>(1, hidden / d);
        const fa3_dtype dtype = parse_dtype(name);
        const int64_t elements = batch * seqlen * heads * d, x_bytes = elements * int64_t(element_bytes(dtype));
        std::mt19937_64 random(1);
        const check::Buffer memory = normal_tensor(device, dtype, elements, random);
        const ConstTensor x(memory.data(), {batch, seqlen, heads, d}, static_cast<Dtype>(dtype), device);
        const check::Buffer twin(device, std::size_t(x_bytes));
        const double copy_seconds = check::time_work(
                                        device,
                                        [&](fa3_stream stream) {
                                          return check::copy(device, twin.data(), memory.data(), twin.bytes(), stream);
                                        },
                                        budget_seconds(options))
                                        .seconds;
        const double copy_gbps = 2 * double(x_bytes) / copy_seconds * 1e-9;
        fastest_copy = std::max(fastest_copy, copy_gbps);
        const auto print = [&](const char* scaling, const char* rotated, double seconds, double gbps) {
          fmt::print("{:<6} {:>4} {:>6} {:>6} {:>6}  {:<7} {:<7} {:>10.3f} {:>9.4g} {:>7.1f}%\n", name, d, seqlen,
                     batch, heads, scaling, rotated, seconds * 1e3, gbps, 100 * gbps / copy_gbps);
          std::fflush(stdout);
        };
        print("copy", "", copy_seconds, copy_gbps);
        for (const QuantizeVariant& variant : quantize_variants) {
          const double seconds = time_quantize(device, x, variant, budget_seconds(options));
          const double gbps = double(variant.reads() * x_bytes + elements) / seconds * 1e-9;
          print(variant.scaling_name, variant.rotate ? "yes" : "no", seconds, gbps);
          result["rows"].push_back({{"op", options.op},
                                    {"dtype", name},
                                    {"d", d},
                                    {"seqlen", seqlen},
                                    {"batch", batch},
                                    {"heads", heads},
                                    {"mode", options.mode},
                                    {"scaling", variant.scaling_name},
                                    {"rotate", variant.rotate},
                                    {"tbps", gbps * 1e-3},
                                    {"of_copy", gbps / copy_gbps}});
        }
      }
  result["ceilings"]["copy_tbps"] = fastest_copy * 1e-3;
  if (!options.out.empty()) write_text(options.out, result.dump(1) + '\n');
  return exit_ok;
}

int bench(const BenchOptions& options) {
  check_pass(options);
  const Device device = usable_device(options.device);
  if (!options.out.empty()) check_writable(options.out);
  nlohmann::ordered_json result = empty_result(device);
  fmt::print("{}, {}{}\n{:<6} {:>4} {:>4} {:<6} {:>6} {:>6} {:>6} {:>9}  {:<17} {:>10} {:>9}\n", device_text({device}),
             options.op, options.deterministic ? ", deterministic" : "", "dtype", "d", "d_v", "mask", "seqlen", "batch",
             "heads", "kv_heads", "kernel", "ms", "TFLOP/s");
  for (const Cell& c : cells_of(options, device)) {
    const int sm_margin = device == Device::cuda ? options.sm_margin.value_or(0) : 0;
    CellTensors tensors(c, device, sm_margin, options.deterministic);
    const double budget = budget_seconds(options);
    const auto [kernel, seconds] = options.backward() ? tensors.time_backward(budget) : tensors.time_forward(budget);
    const double tflops = c.flops(options.backward()) / seconds * 1e-12;
    fmt::print("{:<6} {:>4} {:>4} {:<6} {:>6} {:>6} {:>6} {:>9}  {:<17} {:>10.3f} {:>9.4g}\n", dtype_name(c.dtype), c.d,
               c.d_v, c.causal ? "causal" : "full", c.seqlen, c.batch, c.heads, c.kv_heads, kernel, seconds * 1e3,
               tflops);
    std::fflush(stdout);
    result["rows"].push_back({{"op", options.op},
                              {"dtype", dtype_name(c.dtype)},
                              {"d", c.d},
                              {"causal", c.causal},
                              {"seqlen", c.seqlen},
                              {"batch", c.batch},
                              {"heads", c.heads},
                              {"kv_heads", c.kv_heads},
                              {"mode", options.mode},
                              {"kernel", kernel},
                              {"tflops", tflops},
                              {"peers", nlohmann::json::object()}});
    if (c.d_v != c.d) result["rows"].back()["d_v"] = c.d_v;
    if (sm_margin != 0) result["rows"].back()["sm_margin"] = sm_margin;
    if (options.deterministic) result["rows"].back()["deterministic"] = true;
  }
  if (options.out.empty()) return exit_ok;
  write_text(options.out, result.dump(1) + '\n');
  return exit_ok;
}

/// Times fa3 beside its peers in one process.
int bench_with_peers(const BenchOptions& options) {
  check_pass(options);
  const fs::path here = command_directory();
  const fs::path lib = options.lib.empty() ? find("libfa3.so (--lib)", {here / ".." / "src" / "libfa3.so",
                                                                        here / ".." / FA3_INSTALL_LIBDIR / "libfa3.so"})
                                           : fs::path(options.lib);
  std::vector<std::string> words = {find_script("compare.py"), "--lib", lib.string(), "--mode", options.mode};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  const auto number = [](int64_t n) { return n ? std::to_string(n) : std::string(); };
  add("--op", options.op);
  add("--out", options.out);
  add("--device", usable_device(options.device) == Device::cuda ? "cuda" : "cpu");
  add("--dtype", fmt::format("{}", fmt::join(options.dtype, ",")));
  add("--d", fmt::format("{}", fmt::join(options.d, ",")));
  add("--d-v", number(options.d_v));
  add("--seqlen", fmt::format("{}", fmt::join(options.seqlen, ",")));
  add("--batch", number(options.batch));
  add("--heads", number(options.heads));
  add("--kv-heads", number(options.kv_heads));
  add("--sm-margin", number(options.sm_margin.value_or(0)));
  if (options.causal) words.push_back("--causal");
  if (options.full) words.push_back("--full");
  if (options.deterministic) words.push_back("--deterministic");
  become_python(words);
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "Time a pass over a grid of shapes");
  command->footer(
      "The default grid is 16,384 tokens, hidden size 2048; on the cpu 1024 tokens, hidden size 256.\n"
      "TFLOP/s count 2 * seqlen^2 * (d + d_v) * heads * batch operations, half of that if causal; 2.5 times\n"
      "that for the backward pass. e4m3 is timed on random values quantised with a scale per block, O in bf16.\n"
      "--op quantize times fa3_quantize and a copy over 2^27 elements (cpu: 2^20), by default of bf16; GB/s count\n"
      "the bytes that are read and written.");
  command->add_option("--op", options->op, "forward, backward or quantize; default forward")
      ->option_text("PASS")
      ->check(CLI::IsMember({"forward", "backward", "quantize"}));
  command->add_flag("--deterministic", options->deterministic, "With --op backward: the same bits in every run");
  command->add_option("--d", options->d, "Head dims; default: the grid's (64, 128, 256)")
      ->option_text("N,..")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command->add_option("--d-v", options->d_v, "Head dim of V and O; default: d")
      ->option_text("N")
      ->check(CLI::PositiveNumber);
  command->add_option("--seqlen", options->seqlen, "Sequence lengths; default: the grid's")
      ->option_text("N,..")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--dtype", options->dtype,
                   "f16, bf16, e4m3 (forward), f32 (cpu only); default: f16 and bf16, on the cpu f32 and f16")
      ->option_text("TYPE,..")
      ->delimiter(',')
      ->check(CLI::IsMember({"f16", "bf16", "e4m3", "f32"}));
  command->add_option("--batch", options->batch, "Batch; default: tokens / seqlen")
      ->option_text("N")
      ->check(CLI::PositiveNumber);
  command->add_option("--heads", options->heads, "Query heads; default: hidden size / d")
      ->option_text("N")
      ->check(CLI::PositiveNumber);
  command->add_option("--kv-heads", options->kv_heads, "Key/value heads; default: as many as query heads")
      ->option_text("N")
      ->check(CLI::PositiveNumber);
  CLI::Option* causal = command->add_flag("--causal", options->causal, "Only causal");
  command->add_flag("--full", options->full, "Only without a mask")->excludes(causal);
  add_sm_margin(*command, options->sm_margin, "SMs fa3 leaves free for other work; default 0");
  command->add_option("--mode", options->mode, "short: about 120 ms of repeats per shape; long: 2 s")
      ->option_text("MODE")
      ->check(CLI::IsMember({"short", "long"}));
  command->add_option("--device", options->device, "auto (the GPU if there is a usable one), cuda, or cpu")
      ->option_text("DEVICE")
      ->check(CLI::IsMember({"auto", "cuda", "cpu"}));
  CLI::Option* out =
      command
          ->add_option("--out", options->out,
                       "A JSON file to write the result to; with --plot the folder for the pictures, default: here")
          ->option_text("PATH");
  CLI::Option* peers =
      command->add_flag("--peers", options->peers, "Beside PyTorch's attention (needs Python and PyTorch)");
  command
      ->add_option("--lib", options->lib, "With --peers: the shared library; default: the one built with this command")
      ->option_text("FILE")
      ->needs(peers);
  CLI::Option* plot =
      command->add_option("--plot", options->plot, "Time nothing, draw a result file as SVG and PNG (needs Matplotlib)")
          ->option_text("FILE");
  for (CLI::Option* other : command->get_options())
    if (other != plot && other != out && other != command->get_help_ptr()) plot->excludes(other);
  command->callback([&action, options, command] {
    if (options->op == "quantize")
      allow_only(*command, "--op quantize",
                 {"--d", "--seqlen", "--dtype", "--batch", "--heads", "--mode", "--device", "--out"});
    action = [options] {
      return !options->plot.empty()      ? draw("plot.py", options->plot, options->out)
             : options->op == "quantize" ? bench_quantize(*options)
             : options->peers            ? bench_with_peers(*options)
                                         : bench(*options);
    };
  });
}

}  // namespace fa3::cli
