// fa3 ablate: what each choice of the kernel is worth; docs/benchmarks.md has the format of the result.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "check/device.hpp"
#include "check/judge.hpp"
#include "common.hpp"
#include "dtype.hpp"
#include "error.hpp"
#include "npy.hpp"
#include "simulate/ablation.hpp"
#if defined(FA3_WITH_CUDA)
#include "kernels/ablation_launch.hpp"
#include "kernels/plan.hpp"
#endif

namespace fa3::cli {
namespace {

using kernels::ablation_rows;
using std::int64_t;

constexpr int64_t d = ablation_rows[0].config.d, d_v = ablation_rows[0].config.d_v;
// The shape of the paper's table 2, and one for the simulator: an odd number of blocks, the last one ragged.
constexpr int64_t paper_batch = 4, paper_seqlen = 8448, paper_heads = 16;
constexpr int64_t small_batch = 1, small_seqlen = 300, small_heads = 2;
constexpr double allowed_error = 2e-3;  // relative, Frobenius: f16 rounds to 5e-4

struct AblateOptions {
  int64_t batch = 0, seqlen = 0, heads = 0;  // 0: the device's default
  bool causal = false;
  int rounds = 5;
  std::string device = "cuda", out;
  std::vector<std::string> rows;
};

/// In which choices a row differs from the product.
std::string difference(const kernels::ForwardConfig& row) {
  const kernels::ForwardConfig& product = ablation_rows[0].config;
  std::vector<std::string> words;
  const auto add = [&](bool differs, std::string word) {
    if (differs) words.push_back(std::move(word));
  };
  add(row.pipeline == kernels::Pipeline::none, "no GEMM-softmax pipeline");
  add(row.pipeline == kernels::Pipeline::three_stage, "three stages");
  add(row.loads == kernels::Loads::consumer, "no warp specialisation");
  add(row.maximum == kernels::Maximum::before, "m raised in every block");
  add(row.turns == kernels::Turns::free_running, "no turns");
  add(row.turns == kernels::Turns::softmax, "turns for the softmax");
  add(row.cluster != product.cluster, fmt::format("cluster of {}", row.cluster));
  add(row.tile_q != product.tile_q || row.tile_kv != product.tile_kv,
      fmt::format("tile {} x {}", row.tile_q, row.tile_kv));
  add(row.stages != product.stages, fmt::format("ring of {}", row.stages));
  add(row.q_buffers != product.q_buffers, fmt::format("Q buffers: {}", row.q_buffers));
  add(row.output == kernels::Output::over_q, "O over Q");
  add(row.output == kernels::Output::by_registers, "O from registers");
  add(row.edges != product.edges, "mask by branch");
  return words.empty() ? "nothing" : fmt::format("{}", fmt::join(words, ", "));
}

/// Indices of the rows asked for, after the product's: the others are measured against it.
std::vector<int> chosen_rows(const std::vector<std::string>& names) {
  std::vector<int> all(kernels::ablation_row_count);
  std::iota(all.begin(), all.end(), 0);
  if (names.empty()) return all;
  std::vector<int> chosen = {0};
  for (const std::string& name : names) {
    const auto found = std::find_if(all.begin(), all.end(), [&](int row) { return name == ablation_rows[row].name; });
    if (found == all.end()) {
      std::vector<std::string> known;
      for (const kernels::ForwardRow& row : ablation_rows) known.push_back(row.name);
      throw UsageError(fmt::format("--rows has {}; rows are {}", name, fmt::join(known, ", ")));
    }
    if (std::find(chosen.begin(), chosen.end(), *found) == chosen.end()) chosen.push_back(*found);
  }
  return chosen;
}

/// Tensors [batch, seqlen, heads, d] on `device`, and the problem on them.
struct Tensors {
  check::Buffer q, k, v, o;
  ForwardProblem problem;

  Tensors(Device device, const AblateOptions& options, std::mt19937_64& random)
      : q(normal_tensor(device, FA3_F16, elements(options, d), random)),
        k(normal_tensor(device, FA3_F16, elements(options, d), random)),
        v(normal_tensor(device, FA3_F16, elements(options, d_v), random)),
        o(device, std::size_t(elements(options, d_v)) * element_bytes(FA3_F16)) {
    problem.dtype = FA3_F16;
    problem.batch = options.batch;
    problem.heads = problem.kv_heads = options.heads;
    problem.seqlen_q = problem.seqlen_k = options.seqlen;
    problem.d = d;
    problem.d_v = d_v;
    problem.softmax_scale = float(1 / std::sqrt(double(d)));
    problem.causal = options.causal;
    problem.q = tensor(q, options, d);
    problem.k = tensor(k, options, d);
    problem.v = tensor(v, options, d_v);
    problem.o = tensor(o, options, d_v);
  }

  static int64_t elements(const AblateOptions& options, int64_t features) {
    return options.batch * options.seqlen * options.heads * features;
  }
  static TensorRef tensor(const check::Buffer& memory, const AblateOptions& options, int64_t features) {
    const auto stride = [](int64_t extent, int64_t step) { return extent > 1 ? step : 0; };
    return {memory.data(),
            {options.batch, options.seqlen, options.heads, features},
            {stride(options.batch, options.seqlen * options.heads * features),
             stride(options.seqlen, options.heads * features), stride(options.heads, features), 1}};
  }
};

int ablate_on_simulator(const AblateOptions& options, const std::vector<int>& rows) {
  std::mt19937_64 random(1);
  const Tensors tensors(Device::cpu, options, random);
  fmt::print("{}\nbatch {}, seqlen {}, {} heads of {}, {}; right or wrong, against fp64\n{:<18} {:<48} {}\n",
             device_text({Device::cpu, true}), options.batch, options.seqlen, options.heads, d,
             options.causal ? "causal" : "full", "row", "differs from the product in", "result");
  bool all_right = true;
  for (const int row : rows) {
    check::fill_poison(tensors.o.data(), FA3_F16, Tensors::elements(options, d_v));
    std::string wrong;
    try {
      simulator::forward_ablation(row, tensors.problem, {});
      wrong = check::judge(tensors.problem, 1024, check::host_threads()).message;
    } catch (const simulator::Failure& failure) {
      wrong = failure.what();
    }
    fmt::print("{:<18} {:<48} {}\n", ablation_rows[row].name, difference(ablation_rows[row].config),
               wrong.empty() ? "right" : "wrong: " + wrong);
    std::fflush(stdout);
    all_right = all_right && wrong.empty();
  }
  return all_right ? exit_ok : exit_failed;
}

#if defined(FA3_WITH_CUDA)
std::vector<Half> download(const check::Buffer& memory) {
  std::vector<Half> host(memory.bytes() / sizeof(Half));
  memory.download(host.data());
  return host;
}

/// |x - expected| / |expected|; NaN if an element is.
double relative_error(const std::vector<Half>& x, const std::vector<Half>& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double e = to_float(expected[i]), difference = to_float(x[i]) - e;
    error += difference * difference;
    size += e * e;
  }
  return std::sqrt(error / size);
}

/// Names the rows whose O is not the library's, on stderr.
bool all_right(Tensors& tensors, const AblateOptions& options, const std::vector<int>& rows,
               const std::function<check::Work(int row)>& work_of, const check::Buffer& workspace) {
  const Progress progress("checking the rows");
  const auto packed = [&](const check::Buffer& memory, int64_t features) {
    return ConstTensor(memory.data(), {options.batch, options.seqlen, options.heads, features}, Dtype::f16,
                       Device::cuda);
  };
  const Tensor o(tensors.o.data(), {options.batch, options.seqlen, options.heads, d_v}, Dtype::f16, Device::cuda);
  check::require(check::run_and_wait(Device::cuda, [&](fa3_stream stream) {
    return forward(packed(tensors.q, d), packed(tensors.k, d), packed(tensors.v, d_v), o, {},
                   ForwardOptions{options.causal}, Workspace{workspace.data(), workspace.bytes()}, stream);
  }));
  const std::vector<Half> expected = download(tensors.o);
  bool right = true;
  for (const int row : rows) {
    kernels::prepare_ablation_row(row);
    tensors.o.fill(0xff);  // NaN
    check::require(check::run_and_wait(Device::cuda, work_of(row)));
    const double error = relative_error(download(tensors.o), expected);
    if (error <= allowed_error) continue;
    std::fputs(fmt::format("fa3: error: {} is wrong: relative error {:.3g}, allowed is {:.3g}\n",
                           ablation_rows[row].name, error, allowed_error)
                   .c_str(),
               stderr);
    right = false;
  }
  return right;
}

int ablate_on_cuda(const AblateOptions& options, const std::vector<int>& rows) {
  std::mt19937_64 random(1);
  Tensors tensors(Device::cuda, options, random);
  const check::Buffer workspace(Device::cuda, kernels::plan_forward(tensors.problem).workspace_bytes);
  const auto work_of = [&](int row) -> check::Work {
    return [&, row](fa3_stream stream) {
      kernels::forward_ablation(row, tensors.problem, workspace.data(), workspace.bytes(), stream);
      return Status();
    };
  };
  if (!all_right(tensors, options, rows, work_of, workspace)) return exit_failed;

  std::map<int, std::vector<double>> seconds;
  {
    const Progress progress("timing");
    std::vector<int> order = rows;
    for (int round = 0; round < options.rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const int row : order) seconds[row].push_back(check::time_work(Device::cuda, work_of(row), 0.12).seconds);
    }
  }
  const bool paper_shape =
      options.batch == paper_batch && options.seqlen == paper_seqlen && options.heads == paper_heads && !options.causal;
  const double pairs = double(options.seqlen) * double(options.seqlen) / (options.causal ? 2 : 1);
  const double flops = 2.0 * pairs * double(d + d_v) * double(options.heads) * double(options.batch);
  const double product_seconds = check::median(seconds[0]);
  fmt::print("{}\nbatch {}, seqlen {}, {} heads of {}, {}\n{:<18} {:<48} {:>8} {:>6} {:>6}\n",
             device_text({Device::cuda}), options.batch, options.seqlen, options.heads, d,
             options.causal ? "causal" : "full", "row", "differs from the product in", "TFLOP/s", "ratio",
             paper_shape ? "paper" : "");
  nlohmann::ordered_json result = {{"device", check::device_name(Device::cuda)},
                                   {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
                                   {"source_hash", fa3_source_hash()},
                                   {"compiler", FA3_COMPILER},
                                   {"dtype", "f16"},
                                   {"d", d},
                                   {"batch", options.batch},
                                   {"seqlen", options.seqlen},
                                   {"heads", options.heads},
                                   {"causal", options.causal},
                                   {"rounds", options.rounds},
                                   {"ablation", nlohmann::json::array()}};
  for (const int row : rows) {
    const kernels::ForwardConfig& config = ablation_rows[row].config;
    const double took = check::median(seconds[row]), tflops = flops / took * 1e-12;
    const double paper = paper_shape ? kernels::paper_tflops(config) : 0;
    fmt::print("{:<18} {:<48} {:>8.1f} {:>6.3f} {:>6}\n", ablation_rows[row].name, difference(config), tflops,
               product_seconds / took, paper > 0 ? fmt::format("{}", paper) : "");
    result["ablation"].push_back({{"row", ablation_rows[row].name},
                                  {"differs", difference(config)},
                                  {"tflops", tflops},
                                  {"ratio", product_seconds / took}});
    if (paper > 0) result["ablation"].back()["paper"] = paper;
  }
  if (paper_shape) fmt::print("paper: FlashAttention-3, table 2, on an H100\n");
  if (options.out.empty()) return exit_ok;
  write_text(options.out, result.dump(1) + '\n');
  return exit_ok;
}
#endif

int ablate(AblateOptions options) {
  const std::vector<int> rows = chosen_rows(options.rows);
  const bool simulated = options.device == "sim";
  if (simulated && !options.out.empty()) throw UsageError("--out is for speeds; the simulator has none");
  if (!simulated) usable_device("cuda");
  if (!options.out.empty()) check_writable(options.out);
  const auto or_default = [&](int64_t& given, int64_t small, int64_t paper) {
    if (given == 0) given = simulated ? small : paper;
  };
  or_default(options.batch, small_batch, paper_batch);
  or_default(options.seqlen, small_seqlen, paper_seqlen);
  or_default(options.heads, small_heads, paper_heads);
#if defined(FA3_WITH_CUDA)
  if (!simulated) return ablate_on_cuda(options, rows);
#endif
  return ablate_on_simulator(options, rows);
}

}  // namespace

void add_ablate(CLI::App& app, Action& action) {
  auto options = std::make_shared<AblateOptions>();
  CLI::App* command =
      app.add_subcommand("ablate", "Time rows of the kernel that differ from the product's in one or a few choices");
  command->footer(
      "Head dim 128, f16. The default shape is that of the FlashAttention-3 paper's table 2; on the simulator a small "
      "one.\nTFLOP/s count as in fa3 bench.");
  const auto number = [&](const char* name, int64_t& value, const char* text) {
    command->add_option(name, value, text)->option_text("N")->check(CLI::Range(1, 1 << 20));
  };
  number("--batch", options->batch, "Batch; default 4, on the simulator 1");
  number("--seqlen", options->seqlen, "Sequence length; default 8448, on the simulator 300");
  number("--heads", options->heads, "Heads; default 16, on the simulator 2");
  command->add_flag("--causal", options->causal, "Causal mask");
  std::string names;
  for (const kernels::ForwardRow& row : ablation_rows)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  command->add_option("--rows", options->rows, "Beside the product; default: all. " + names)
      ->option_text("NAME,..")
      ->delimiter(',');
  command->add_option("--rounds", options->rounds, "Rounds; a row's time is their median (default 5)")
      ->option_text("N")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option("--device", options->device,
                   "cuda, or sim: every row once on the simulator, to see whether it is right (default cuda)")
      ->option_text("DEVICE")
      ->check(CLI::IsMember({"cuda", "sim"}));
  command->add_option("--out", options->out, "A JSON file to write the result to")->option_text("FILE");
  command->callback([&action, options] { action = [options] { return ablate(*options); }; });
}

}  // namespace fa3::cli
