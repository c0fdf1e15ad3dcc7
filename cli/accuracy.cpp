// fa3 accuracy: what the result is worth in f16 and FP8, beside the figures of the FlashAttention-3 paper.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "common.hpp"
#include "dtype.hpp"
#include "error.hpp"
#include "fp8.hpp"
#include "npy.hpp"
#include "sampled_rows.hpp"
#include "scripts.hpp"

namespace fa3::cli {
namespace {

using std::int64_t;
using Shape = std::array<int64_t, 4>;
using Json = nlohmann::ordered_json;

constexpr int64_t paper_seqlen = 8192, longest_context = 262144, paper_heads = 16, paper_d = 128;

struct AccuracyOptions {
  std::string npz, device = "auto", out, plot;
  std::vector<int64_t> d = {paper_d};
  int64_t seqlen = 0;  // 0: the default of the mode
  int64_t heads = paper_heads, seeds = 5, rows = 1024;
  bool context = false;
};

/// q, k and v before anything is rounded.
struct Inputs {
  Shape q_shape, k_shape, v_shape;
  std::vector<float> q, k, v;
};

/// Those of `inputs` in f16, in host memory and on the device, and a place for O.
class InF16 {
 public:
  InF16(const Inputs& inputs, Device device)
      : device_(device), o_shape_{inputs.q_shape[0], inputs.q_shape[1], inputs.q_shape[2], inputs.v_shape[3]} {
    for (const std::vector<float>* from : {&inputs.q, &inputs.k, &inputs.v}) {
      std::vector<Half>& to = host_.emplace_back(from->size());
      std::transform(from->begin(), from->end(), to.begin(), from_float<Half>);
      buffers_.emplace_back(device, to.size() * sizeof(Half));
      buffers_.back().upload(to.data());
    }
    o_host_.resize(std::size_t(o_shape_[0] * o_shape_[1] * o_shape_[2] * o_shape_[3]));
    buffers_.emplace_back(device, o_host_.size() * sizeof(Half));
    q = ConstTensor(buffers_[0].data(), inputs.q_shape, Dtype::f16, device);
    k = ConstTensor(buffers_[1].data(), inputs.k_shape, Dtype::f16, device);
    v = ConstTensor(buffers_[2].data(), inputs.v_shape, Dtype::f16, device);
  }

  /// The problem in host memory.
  ForwardProblem problem() {
    ForwardProblem p;
    p.dtype = FA3_F16;
    set_sizes(p);
    p.q = {host_[0].data(), q.shape, q.stride}, p.k = {host_[1].data(), k.shape, k.stride};
    p.v = {host_[2].data(), v.shape, v.stride};
    return p;
  }
  /// The same with what the values were before they were rounded.
  ForwardProblem problem(Inputs& inputs) const {
    ForwardProblem p;
    p.dtype = FA3_F32;
    set_sizes(p);
    p.q = {inputs.q.data(), q.shape, q.stride}, p.k = {inputs.k.data(), k.shape, k.stride};
    p.v = {inputs.v.data(), v.shape, v.stride};
    return p;
  }

  /// The rows of O that the library computes from these inputs.
  SampledRows forward(const ConstTensor& q_in, const ConstTensor& k_in, const ConstTensor& v_in,
                      const ForwardOptions& options, const SampledRows& like) {
    const Tensor o(buffers_[3].data(), o_shape_, Dtype::f16, device_);
    buffers_[3].fill(0xff);
    std::size_t bytes = 0;
    check::require(forward_workspace_size(q_in, k_in, v_in, o, {}, options, bytes));
    const check::Buffer workspace(device_, bytes);
    check::require(check::run_and_wait(device_, [&](fa3_stream stream) {
      return fa3::forward(q_in, k_in, v_in, o, {}, options, Workspace{workspace.data(), workspace.bytes()}, stream);
    }));
    buffers_[3].download(o_host_.data());
    return rows_of({o_host_.data(), o.shape, o.stride}, FA3_F16, like);
  }
  SampledRows forward(const SampledRows& like) { return forward(q, k, v, {}, like); }
  SampledRows forward_in_fp8(Scaling scaling, bool rotate, bool narrow, const SampledRows& like) {
    const QuantizedInputs in = quantize_inputs(q, k, v, scaling, rotate, narrow);
    return forward(in.q.view, in.k.view, in.v.view, in.with_scales({}), like);
  }

  ConstTensor q, k, v;

 private:
  void set_sizes(ForwardProblem& p) const {
    p.batch = o_shape_[0], p.seqlen_q = o_shape_[1], p.heads = o_shape_[2], p.d_v = o_shape_[3];
    p.seqlen_k = k.shape[1], p.kv_heads = k.shape[2], p.d = q.shape[3];
    p.softmax_scale = float(1 / std::sqrt(double(p.d)));
  }

  Device device_;
  Shape o_shape_;
  std::vector<std::vector<Half>> host_;
  std::vector<Half> o_host_;
  std::vector<check::Buffer> buffers_;
};

struct TableRow {
  const char* name;
  const char* what;
  double paper;  // RMSE; 0: the paper has no such row
  std::function<SampledRows(InF16&, const SampledRows&)> rows;
};

const TableRow table[] = {
    {"standard_f16", "standard attention, f16: S, P, O rounded", 3.2e-4,
     [](InF16& in, const SampledRows& like) { return plain_rows(in.problem(), like); }},
    {"fa3_f16", "fa3, f16", 1.9e-4, [](InF16& in, const SampledRows& like) { return in.forward(like); }},
    {"fp8_baseline", "FP8, one scale per tensor, not rotated", 2.4e-2,
     [](InF16& in, const SampledRows& like) { return in.forward_in_fp8(Scaling::tensor, false, false, like); }},
    {"fa3_fp8", "FP8, scales per block, rotated", 9.1e-3,
     [](InF16& in, const SampledRows& like) { return in.forward_in_fp8(Scaling::block, true, true, like); }},
    {"fp8_without_blocks", "FP8, one scale per tensor, rotated", 9.3e-3,
     [](InF16& in, const SampledRows& like) { return in.forward_in_fp8(Scaling::tensor, true, true, like); }},
    {"fp8_without_rotation", "FP8, scales per block, not rotated", 2.4e-2,
     [](InF16& in, const SampledRows& like) { return in.forward_in_fp8(Scaling::block, false, true, like); }},
    {"fp8_wide", "FP8, scales per block, rotated, up to 448", 0,
     [](InF16& in, const SampledRows& like) { return in.forward_in_fp8(Scaling::block, true, false, like); }},
};

/// The paper's data: N(0, 1) + N(0, 100) Bernoulli(0.001).
std::vector<float> with_outliers(std::mt19937_64& random, int64_t elements) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (float& x : values) {
    x = normal(random);
    if (uniform(random) < 0.001f) x += 10 * normal(random);
  }
  return values;
}

/// Prints and returns the table of what `inputs_of` gives for seeds 0 .. seeds - 1; medians over them.
Json print_table(const AccuracyOptions& options, Device device, int64_t seeds, bool paper,
                 const std::function<Inputs(int64_t seed)>& inputs_of) {
  std::vector<std::vector<double>> rmse(std::size(table)), largest(std::size(table));
  std::size_t rows = 0;
  {
    const Progress progress("computing");
    for (int64_t seed = 0; seed < seeds; ++seed) {
      Inputs inputs = inputs_of(seed);
      InF16 in(inputs, device);
      const SampledRows exact = exact_rows(in.problem(inputs), options.rows);
      rows = exact.rows.size();
      for (std::size_t i = 0; i < std::size(table); ++i) {
        const Errors e = errors(table[i].rows(in, exact), exact);
        rmse[i].push_back(e.rmse);
        largest[i].push_back(e.largest);
      }
    }
  }
  fmt::print(
      "median of {} seed{}, {} rows of each against fp64 on inputs that are not rounded\n{:<44} {:>9} {:>9} {:>9}\n",
      seeds, seeds == 1 ? "" : "s", rows, "", "RMSE", "max", paper ? "paper" : "");
  Json result = Json::array();
  for (std::size_t i = 0; i < std::size(table); ++i) {
    const double middle = check::median(rmse[i]), most = check::median(largest[i]);
    const bool has_paper = paper && table[i].paper != 0;
    fmt::print("{:<44} {:>9.2e} {:>9.2e} {:>9}\n", table[i].what, middle, most,
               has_paper ? fmt::format("{:.1e}", table[i].paper) : "");
    result.push_back({{"row", table[i].name}, {"rmse", middle}, {"max", most}});
    if (has_paper) result.back()["paper"] = table[i].paper;
  }
  std::fflush(stdout);
  return result;
}

Json on_outliers(const AccuracyOptions& options, Device device) {
  Json all = Json::array();
  const int64_t seqlen = options.seqlen == 0 ? paper_seqlen : options.seqlen;
  for (const int64_t d : options.d) {
    fmt::print("\nQ, K, V ~ N(0, 1) + N(0, 100) Bernoulli(0.001), d {}, {} heads, seqlen {}; ", d, options.heads,
               seqlen);
    std::fflush(stdout);
    const Shape shape{1, seqlen, options.heads, d};
    Json rows = print_table(options, device, options.seeds, d == paper_d, [&](int64_t seed) {
      std::mt19937_64 random(static_cast<std::uint64_t>(seed));
      const int64_t elements = seqlen * options.heads * d;
      std::vector<float> q = with_outliers(random, elements), k = with_outliers(random, elements);
      return Inputs{shape, shape, shape, std::move(q), std::move(k), with_outliers(random, elements)};
    });
    all.push_back(
        {{"d", d}, {"heads", options.heads}, {"seqlen", seqlen}, {"seeds", options.seeds}, {"rows", std::move(rows)}});
  }
  return all;
}

Json on_file(const AccuracyOptions& options, Device device) {
  std::vector<Array> arrays = load_npz(options.npz, {"q", "k", "v"});
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> values;
  for (const Array& array : arrays) {
    if (array.shape.size() != 4)
      throw FileError(
          fmt::format("{}: has shape {}; it must be [batch, seqlen, heads, d]", array.source, array.shape_text()));
    shapes.push_back({array.shape[0], array.shape[1], array.shape[2], array.shape[3]});
    const std::vector<std::byte> bytes = convert(array, FA3_F32);
    std::memcpy(values.emplace_back(bytes.size() / sizeof(float)).data(), bytes.data(), bytes.size());
  }
  fmt::print("\n{}: q {}, k {}, v {}; ", options.npz, arrays[0].shape_text(), arrays[1].shape_text(),
             arrays[2].shape_text());
  std::fflush(stdout);
  Json rows = print_table(options, device, 1, false, [&](int64_t) {
    return Inputs{shapes[0], shapes[1], shapes[2], values[0], values[1], values[2]};
  });
  return Json::array({{{"file", options.npz}, {"rows", std::move(rows)}}});
}

/// How the error grows with the number of keys.
Json over_context(const AccuracyOptions& options, Device device) {
  const int64_t last = options.seqlen == 0 ? longest_context : options.seqlen, d = options.d[0], queries = 64;
  fmt::print(
      "\nrelative RMSE of O, Q and K ~ N(0, 1), d {}, {} queries, FP8 with scales per block, rotated\n"
      "{:>9} {:>12} {:>12} {:>16} {:>16}\n",
      d, queries, "keys", "f16, V = 1", "FP8, V = 1", "f16, N(0, 1) + 1", "FP8, N(0, 1) + 1");
  Json all = Json::array();
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  const auto fill = [&](int64_t elements, float mean) {
    std::vector<float> x(static_cast<std::size_t>(elements));
    for (float& element : x) element = mean + normal(random);
    return x;
  };
  for (int64_t keys = 1024; keys <= last; keys *= 2) {
    Inputs inputs{{1, queries, 1, d}, {1, keys, 1, d}, {1, keys, 1, d}, fill(queries * d, 0), fill(keys * d, 0), {}};
    double relative[4];
    for (const bool ones : {true, false}) {
      inputs.v = ones ? std::vector<float>(std::size_t(keys * d), 1.0f) : fill(keys * d, 1);
      const Progress progress(fmt::format("computing {} keys", keys));
      InF16 in(inputs, device);
      const SampledRows exact = exact_rows(in.problem(inputs), queries);
      relative[ones ? 0 : 2] = errors(in.forward(exact), exact).relative;
      relative[ones ? 1 : 3] = errors(in.forward_in_fp8(Scaling::block, true, true, exact), exact).relative;
    }
    fmt::print("{:>9} {:>12.2e} {:>12.2e} {:>16.2e} {:>16.2e}\n", keys, relative[0], relative[1], relative[2],
               relative[3]);
    std::fflush(stdout);
    all.push_back({{"keys", keys},
                   {"f16_ones", relative[0]},
                   {"fp8_ones", relative[1]},
                   {"f16_mean_one", relative[2]},
                   {"fp8_mean_one", relative[3]}});
  }
  return all;
}

int accuracy(const AccuracyOptions& options) {
  if (options.context && options.d.size() != 1)
    throw UsageError(fmt::format("--d is {}; with --context it must be one head dim", fmt::join(options.d, ",")));
  if (options.context && options.seqlen != 0 && options.seqlen < 1024)
    throw UsageError(fmt::format("--seqlen is {}; with --context it must be at least 1024", options.seqlen));
  if (!options.out.empty()) check_writable(options.out);
  const Device device = usable_device(options.device);
  fmt::print("device: {}\n", device_text({device}));
  Json result = {{"device", check::device_name(device)},
                 {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
                 {"source_hash", fa3_source_hash()},
                 {"compiler", FA3_COMPILER}};
  if (options.context) {
    result["d"] = options.d[0];
    result["context"] = over_context(options, device);
  } else {
    result["accuracy"] = options.npz.empty() ? on_outliers(options, device) : on_file(options, device);
  }
  if (!options.out.empty()) write_text(options.out, result.dump(1) + '\n');
  return exit_ok;
}

}  // namespace

void add_accuracy(CLI::App& app, Action& action) {
  auto options = std::make_shared<AccuracyOptions>();
  CLI::App* command = app.add_subcommand("accuracy", "Print the errors of f16 and FP8 against fp64");
  command->footer(
      "Without a file on random numbers with outliers, as in the FlashAttention-3 paper (section 4.3), whose figures\n"
      "stand beside ours at d = 128. On a CPU the default takes minutes; --seeds, --heads and --seqlen shorten it.\n"
      "--context allows only --d (one), --seqlen, --device and --out; a file only --rows, --device and --out.");
  command->add_option("FILE", options->npz, "A .npz file with q, k and v, [batch, seqlen, heads, d], to use instead")
      ->type_name("");
  const auto number = [&](const char* name, int64_t& value, int64_t most, const char* text) {
    command->add_option(name, value, text)->option_text("N")->check(CLI::Range(int64_t(1), most));
  };
  command->add_option("--d", options->d, "Head dims, multiples of 16; default 128")
      ->option_text("N,..")
      ->delimiter(',')
      ->check(CLI::Range(16, 256));
  number("--heads", options->heads, 1 << 10, "Heads; default 16");
  number("--seqlen", options->seqlen, 1 << 24,
         "Sequence length; default 8192. With --context the longest one; default 262144");
  number("--seeds", options->seeds, 1000, "Seeds; the median of their errors counts (default 5)");
  number("--rows", options->rows, 1 << 30, "Rows of each seed that are compared (default 1024)");
  command->add_flag("--context", options->context, "Errors over the number of keys instead, from 1024 on");
  command->add_option("--device", options->device, "auto (the GPU if there is a usable one), cuda or cpu")
      ->option_text("DEVICE")
      ->check(CLI::IsMember({"auto", "cuda", "cpu"}));
  command
      ->add_option("--out", options->out,
                   "A JSON file to write the result to; with --plot the folder for the pictures, default: here")
      ->option_text("PATH");
  command->add_option("--plot", options->plot, "Compute nothing, draw a result file as SVG and PNG (needs Matplotlib)")
      ->option_text("FILE");
  command->callback([&action, options, command] {
    if (!options->plot.empty())
      allow_only(*command, "--plot", {"--out"});
    else if (options->context)
      allow_only(*command, "--context", {"--d", "--seqlen", "--device", "--out"});
    else if (!options->npz.empty())
      allow_only(*command, "FILE", {"--rows", "--device", "--out"});
    action = [options] {
      return options->plot.empty() ? accuracy(*options) : draw("plot_accuracy.py", options->plot, options->out);
    };
  });
}

}  // namespace fa3::cli
