// fa3 run: attention over arrays in files.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>

#include "check/device.hpp"
#include "check/judge.hpp"
#include "common.hpp"
#include "dtype.hpp"
#include "error.hpp"
#include "fp8.hpp"
#include "npy.hpp"
#include "reference/backward.hpp"
#include "sampled_rows.hpp"
#include "simulate/backward.hpp"
#include "simulate/forward.hpp"

namespace fa3::cli {
namespace {

using std::int64_t;
using Shape = std::array<int64_t, 4>;

struct RunOptions {
  std::string npz, q, k, v, out, lse, expected, dtype, device = "auto";
  std::string d_o, o;  // of the backward pass
  bool causal = false, backward = false, deterministic = false, fp8 = false;
  std::optional<float> scale;
  std::optional<int> sm_margin;
};

constexpr const char* names[] = {"q", "k", "v"};

/// That `array` is [batch, seqlen, heads, d] or without the first, as q is. `whole`: what they are together.
void check_rank(const Array& array, const char* name, const Array& q, const char* whole) {
  if (array.shape.size() != 3 && array.shape.size() != 4)
    throw FileError(fmt::format("{}: {} has shape {}; it must be [batch, seqlen, heads, d] or [seqlen, heads, d]",
                                array.source, name, array.shape_text()));
  if (array.shape.size() != q.shape.size())
    throw FileError(fmt::format("{}: {} has shape {}, but q has {}; {} have a batch dimension or none", array.source,
                                name, array.shape_text(), q.shape_text(), whole));
}

std::vector<Array> load(const RunOptions& options) {
  const std::string* files[] = {&options.q, &options.k, &options.v};
  std::vector<Array> arrays;
  if (!options.npz.empty()) {
    for (int i = 0; i < 3; ++i)
      if (!files[i]->empty())
        throw UsageError(fmt::format("--{} and a .npz file are given; give one or the other", names[i]));
    arrays = load_npz(options.npz, {"q", "k", "v"});
  } else {
    for (int i = 0; i < 3; ++i)
      if (files[i]->empty())
        throw UsageError(fmt::format("--{} is missing; give --q, --k and --v, or one .npz file", names[i]));
    for (const std::string* file : files) arrays.push_back(load_npy(*file));
  }
  for (int i = 0; i < 3; ++i) check_rank(arrays[std::size_t(i)], names[i], arrays[0], "all three");
  return arrays;
}

Shape shape_of(const Array& array) {
  Shape shape{1, 1, 1, 1};
  std::copy(array.shape.rbegin(), array.shape.rend(), shape.rbegin());
  return shape;
}

/// The type to compute in, with --fp8 that of O: the one asked for, else that of the files if the device has it, else
/// f32 (cpu) or f16 (cuda, --fp8).
fa3_dtype dtype_of(const RunOptions& options, const std::vector<Array>& arrays, Device device) {
  if (!options.dtype.empty()) return parse_dtype(options.dtype);
  const FileDtype first = arrays[0].dtype;
  const bool same = std::all_of(arrays.begin(), arrays.end(), [&](const Array& a) { return a.dtype == first; });
  if (same && first == FileDtype::f16) return FA3_F16;
  if (same && first == FileDtype::bf16) return FA3_BF16;
  return device == Device::cpu && !options.fp8 ? FA3_F32 : FA3_F16;
}

/// Strides of a dense tensor; none if it is empty: there may be no room for its other extents in memory, nor in a
/// stride.
Shape strides_of(const Shape& shape) {
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? contiguous_strides(shape) : Shape{};
}

/// Rows whose fp64 result takes about a second on a small machine; all of a small problem. At least two, the first and
/// the last.
int64_t sample_rows(const ForwardProblem& p) {
  // In operations of about a nanosecond; a row costs its memory and a feature of O its comparison, without any key too.
  const double per_row = 1000 + 50.0 * double(p.d_v) + 2.0 * double(p.d + p.d_v) * double(p.seqlen_k);
  return std::max<int64_t>(2, int64_t(1e9 / per_row));
}

/// The same for the backward pass: rows of dQ, and again rows of dK and dV.
int64_t gradient_sample(const BackwardProblem& p) {
  const double per_row = 1000 + 8.0 * double(p.d + p.d_v) * double(std::max(p.seqlen_k, p.seqlen_q * p.group()));
  return std::max<int64_t>(2, int64_t(5e8 / per_row));
}

/// Largest |O - expected|; `o` is dense.
double difference(const ForwardProblem& p, const Array& expected) {
  double largest = 0;
  const std::vector<std::byte> wanted = convert(expected, FA3_F32);
  with_dtype(p.dtype, [&]<class T>(T) {
    for (std::size_t i = 0; i < wanted.size() / sizeof(float); ++i) {
      float x;
      std::memcpy(&x, wanted.data() + i * sizeof(float), sizeof(x));
      const double error = std::abs(double(to_float(static_cast<const T*>(p.o.data)[i])) - double(x));
      largest = std::isnan(error) ? error : std::max(largest, error);
      if (std::isnan(largest)) return;
    }
  });
  return largest;
}

/// Says what was read, and gives it in `dtype`; the array's own data is dropped.
std::vector<std::byte> convert_input(const char* name, Array& array, fa3_dtype dtype) {
  fmt::print("{}: {} {} from {}{}\n", name, array.shape_text(), file_dtype_name(array.dtype), array.source,
             std::string(file_dtype_name(array.dtype)) == dtype_name(dtype)
                 ? ""
                 : fmt::format(", converted to {}", dtype_name(dtype)));
  std::vector<std::byte> converted = convert(array, dtype);
  array.data = {};
  return converted;
}

/// What a result has to be written as: .npy has no bf16, f32 holds its values exactly.
fa3_dtype file_dtype(fa3_dtype dtype) { return dtype == FA3_F16 ? FA3_F16 : FA3_F32; }
std::vector<std::byte> for_file(const std::string& path, fa3_dtype dtype, const std::vector<int64_t>& shape,
                                std::vector<std::byte> data) {
  if (dtype != FA3_BF16) return data;
  return convert(Array{path, FileDtype::bf16, shape, std::move(data)}, FA3_F32);
}

std::string written_text(const std::string& path, const char* name, fa3_dtype dtype,
                         const std::vector<int64_t>& shape) {
  return fmt::format("wrote {}: {} [{}] {}{}\n", path, name, fmt::join(shape, ", "), dtype_name(file_dtype(dtype)),
                     dtype == FA3_BF16 ? " (holds the bf16 result exactly; .npy has no bf16)" : "");
}

std::string timing_text(const Target& target, const check::Timing& timing, double flops) {
  if (target.simulated)
    return fmt::format("time: {:.1f} s of simulation, which says nothing about a GPU's\n", timing.seconds);
  return fmt::format("time: {:.3f} ms (median of {}), {:.3g} TFLOP/s\n", timing.seconds * 1e3, timing.runs,
                     flops / timing.seconds * 1e-12);
}

int run(const RunOptions& options) {
  if (!options.lse.empty() && same_output(options.lse, options.out))
    throw UsageError("--lse and --out are the same file");
  check_writable(options.out);
  if (!options.lse.empty()) check_writable(options.lse);
  std::vector<Array> arrays = load(options);
  std::optional<Array> expected;
  if (!options.expected.empty()) expected = load_npy(options.expected);
  const Target target = usable_target(options.device);
  const Device device = target.device;
  const fa3_dtype dtype = dtype_of(options, arrays, target.like());

  // Host memory.
  const bool has_batch = arrays[0].shape.size() == 4;
  std::vector<Shape> shapes;
  std::vector<std::vector<std::byte>> inputs;
  for (int i = 0; i < 3; ++i) {
    Array& array = arrays[std::size_t(i)];
    shapes.push_back(shape_of(array));
    inputs.push_back(convert_input(names[i], array, dtype));
  }
  const Shape o_shape{shapes[0][0], shapes[0][1], shapes[0][2], shapes[2][3]};
  const Dtype type = static_cast<Dtype>(dtype);
  ForwardOptions forward_options{options.causal, options.scale, options.sm_margin.value_or(0)};
  const auto forward_on_target = target.simulated ? simulator::forward_as_device : fa3::forward;
  const auto view = [&](std::size_t i, const void* data) {
    return ConstTensor(data, shapes[i], strides_of(shapes[i]), type, device);
  };
  {
    // What the library refuses is refused before there is an O, whose extents may be anything: without query rows
    // forward() checks its arguments and does nothing.
    ConstTensor no_q(nullptr, {o_shape[0], 0, o_shape[2], shapes[0][3]}, Shape{}, type, device);
    ConstTensor any_k = view(1, inputs[1].data()), any_v = view(2, inputs[2].data());
    if (options.fp8) no_q.dtype = any_k.dtype = any_v.dtype = Dtype::e4m3;
    const Tensor no_o(nullptr, {o_shape[0], 0, o_shape[2], o_shape[3]}, Shape{}, type, device);
    check::require(forward_on_target(no_q, any_k, any_v, no_o, {}, forward_options, {}, nullptr));
  }
  const std::array<int64_t, 3> lse_shape{o_shape[0], o_shape[2], o_shape[1]};
  const int64_t rows = o_shape[0] * o_shape[1] * o_shape[2];
  std::vector<int64_t> out_shape(o_shape.begin() + (has_batch ? 0 : 1), o_shape.end());
  if (expected && expected->shape != out_shape)
    throw FileError(fmt::format("{}: has shape {}, but O has [{}]", expected->source, expected->shape_text(),
                                fmt::join(out_shape, ", ")));
  std::vector<std::byte> o(std::size_t(rows * o_shape[3]) * element_bytes(dtype)),
      lse(std::size_t(rows) * sizeof(float));
  check::fill_poison(o.data(), dtype, rows * o_shape[3]);
  check::fill_poison(lse.data(), FA3_F32, rows);

  // Device memory, and the run.
  std::vector<check::Buffer> buffers;
  for (const std::vector<std::byte>* host : {&inputs[0], &inputs[1], &inputs[2], &o, &lse}) {
    buffers.emplace_back(device, host->size());
    buffers.back().upload(host->data());
  }
  ConstTensor q = view(0, buffers[0].data()), k = view(1, buffers[1].data()), v = view(2, buffers[2].data());
  std::optional<QuantizedInputs> quantized;
  if (options.fp8) {
    quantized.emplace(quantize_inputs(q, k, v, Scaling::block, true, true));
    q = quantized->q.view, k = quantized->k.view, v = quantized->v.view;
    forward_options = quantized->with_scales(forward_options);
    fmt::print("q, k, v: to e4m3 up to {}, {}, {} with a scale for each {} rows; q and k rotated\n", FA3_E4M3_NARROW_QK,
               FA3_E4M3_NARROW_QK, FA3_E4M3_NARROW_V, FA3_SCALE_ROWS);
  }
  const Tensor o_view(buffers[3].data(), o_shape, strides_of(o_shape), type, device);
  const RowTensor lse_view(buffers[4].data(), lse_shape, Dtype::f32, device);
  ForwardProblem problem;
  problem.dtype = dtype;
  problem.batch = o_shape[0], problem.seqlen_q = o_shape[1], problem.heads = o_shape[2], problem.d = shapes[0][3];
  problem.seqlen_k = shapes[1][1], problem.kv_heads = shapes[1][2], problem.d_v = o_shape[3];
  problem.causal = options.causal;
  problem.softmax_scale = options.scale.value_or(float(1 / std::sqrt(double(problem.d))));
  std::size_t workspace_bytes = 0;
  check::require(forward_workspace_size(q, k, v, o_view, lse_view, forward_options, workspace_bytes));
  const check::Buffer workspace(device, workspace_bytes);
  fmt::print("device: {}\nkernel: {}\n", device_text(target),
             kernel_name(target, q, k, v, o_view, lse_view, forward_options));
  if (target.simulated) fmt::print("this will take about {:.0f} s\n", std::ceil(simulator::estimate_seconds(problem)));
  std::fflush(stdout);
  check::Timing timing;
  {
    const Progress progress(fmt::format("computing on {}", target.name()));
    const auto work = [&](fa3_stream stream) {
      return forward_on_target(q, k, v, o_view, lse_view, forward_options,
                               Workspace{workspace.data(), workspace.bytes()}, stream);
    };
    timing = check::time_work(device, work, target.simulated ? 0 : 0.2);
  }
  buffers[3].download(o.data());
  buffers[4].download(lse.data());

  // What came out.
  problem.q = {inputs[0].data(), shapes[0], strides_of(shapes[0])};
  problem.k = {inputs[1].data(), shapes[1], strides_of(shapes[1])};
  problem.v = {inputs[2].data(), shapes[2], strides_of(shapes[2])};
  problem.o = {o.data(), o_shape, strides_of(o_shape)};
  problem.lse = reinterpret_cast<float*>(lse.data());
  problem.lse_stride = contiguous_strides(lse_shape);
  fmt::print("{}", timing_text(target, timing, problem.flops()));
  check::Verdict verdict;
  {
    const Progress progress("comparing with fp64");
    std::vector<std::vector<std::byte>> memory;
    verdict = check::judge(quantized ? quantized->in_host(problem, memory) : problem, sample_rows(problem),
                           check::host_threads());
  }
  fmt::print("error against fp64{}, {} of {} rows: O {:.2g} ({:.2g} allowed), LSE {:.2g}\n",
             quantized ? " on the same e4m3" : "", verdict.rows, rows, verdict.o.error, verdict.o.allowed,
             verdict.lse_error);
  if (quantized) {
    const SampledRows exact = exact_rows(problem, sample_rows(problem));
    const Errors off = errors(rows_of(problem.o, dtype, exact), exact);
    fmt::print("error against fp64 on q, k, v in {}: O {:.2g} (RMSE {:.2g}, relative {:.2g})\n", dtype_name(dtype),
               off.largest, off.rmse, off.relative);
  }
  if (expected) {
    const double off = difference(problem, *expected);
    fmt::print("difference from {}: {:.2g}\n", expected->source, off);
    if (verdict.passed && !(off <= verdict.o.allowed))
      verdict.fail(
          fmt::format("O is off by {:.3g} from {}; {:.3g} is allowed", off, expected->source, verdict.o.allowed));
  }
  if (!verdict.passed) throw Error(FA3_INTERNAL, "the result is wrong, nothing was written: " + verdict.message);

  std::vector<int64_t> lse_out_shape(lse_shape.begin() + (has_batch ? 0 : 1), lse_shape.end());
  NpyFile out_file(options.out, file_dtype(dtype), out_shape, for_file(options.out, dtype, out_shape, std::move(o)));
  std::optional<NpyFile> lse_file;
  if (!options.lse.empty()) lse_file.emplace(options.lse, FA3_F32, lse_out_shape, lse);
  out_file.commit();
  if (lse_file) lse_file->commit();
  fmt::print("{}", written_text(options.out, "O", dtype, out_shape));
  if (lse_file) fmt::print("wrote {}: LSE [{}] f32\n", options.lse, fmt::join(lse_out_shape, ", "));
  return exit_ok;
}

/// Gradients, from q, k, v, dO and, if there are files with them, O and LSE; else from the forward pass.
int run_backward(const RunOptions& options) {
  // Where what is written goes.
  constexpr const char* results[] = {"dq", "dk", "dv"};
  std::vector<std::string> paths;
  for (const char* name : results) {
    paths.push_back((std::filesystem::path(options.out) / (std::string(name) + ".npy")).string());
    check_writable(paths.back());
  }

  // Files.
  enum { q, k, v, d_o, o, lse, dq, dk, dv };
  constexpr const char* words[] = {"q", "k", "v", "dO", "O", "LSE"};
  std::vector<Array> arrays = load(options);
  arrays.push_back(load_npy(options.d_o));
  const bool given = !options.o.empty();
  if (given) arrays.push_back(load_npy(options.o));
  for (std::size_t i = d_o; i < arrays.size(); ++i) check_rank(arrays[i], words[i], arrays[q], "all");
  const bool has_batch = arrays[q].shape.size() == 4;
  std::optional<Array> lse_array;
  if (given) {
    lse_array = load_npy(options.lse);
    if (lse_array->dtype != FileDtype::f32)
      throw FileError(fmt::format("{}: element type of LSE is {}; it must be f32", lse_array->source,
                                  file_dtype_name(lse_array->dtype)));
    if (lse_array->shape.size() != (has_batch ? 3 : 2))
      throw FileError(fmt::format("{}: LSE has shape {}; it must be {}", lse_array->source, lse_array->shape_text(),
                                  has_batch ? "[batch, heads, seqlen_q], for q has a batch dimension"
                                            : "[heads, seqlen_q], for q has no batch dimension"));
  }
  const Target target = usable_target(options.device);
  const Device device = target.device;
  const auto backward_on_target = target.simulated ? simulator::backward_as_device : fa3::backward;
  const fa3_dtype dtype = dtype_of(options, arrays, device);
  const Dtype type = static_cast<Dtype>(dtype);

  // Extents, before there is memory for results: those of files without elements may be anything.
  std::vector<Shape> shapes;
  for (const Array& array : arrays) shapes.push_back(shape_of(array));
  const Shape o_shape{shapes[q][0], shapes[q][1], shapes[q][2], shapes[v][3]};
  if (!given) shapes.push_back(o_shape);
  std::array<int64_t, 3> lse_shape{o_shape[0], o_shape[2], o_shape[1]};
  if (given) std::copy(lse_array->shape.rbegin(), lse_array->shape.rend(), lse_shape.rbegin());
  if (given && !has_batch) lse_shape[0] = 1;
  const BackwardOptions backward_options{options.causal, options.scale, options.deterministic,
                                         options.sm_margin.value_or(0)};
  const auto view = [&](std::size_t i, const void* data) {
    return ConstTensor(data, shapes[i], strides_of(shapes[i]), type, device);
  };
  const auto gradient = [&](std::size_t i, void* data) {
    return Tensor(data, shapes[i], strides_of(shapes[i]), type, device);
  };
  {
    fa3_backward_params params;
    check::require(detail::backward_params(view(d_o, nullptr), view(q, nullptr), view(k, nullptr), view(v, nullptr),
                                           view(o, nullptr), RowTensor(nullptr, lse_shape, Dtype::f32, device),
                                           gradient(q, nullptr), gradient(k, nullptr), gradient(v, nullptr),
                                           backward_options, params));
    params.batch = 0;  // no elements, so no pointers
    check::require(Status::of(fa3_backward_supported(&params)));
  }

  // Memory: host, then device, in the order of the enumeration.
  std::vector<std::vector<std::byte>> host;
  for (std::size_t i = 0; i < arrays.size(); ++i) host.push_back(convert_input(words[i], arrays[i], dtype));
  const auto poisoned = [](fa3_dtype element, int64_t elements) {
    std::vector<std::byte> bytes(std::size_t(elements) * element_bytes(element));
    check::fill_poison(bytes.data(), element, elements);
    return bytes;
  };
  const auto elements = [](const auto& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<>());
  };
  if (!given) host.push_back(poisoned(dtype, elements(o_shape)));
  host.push_back(given ? convert_input("LSE", *lse_array, FA3_F32) : poisoned(FA3_F32, elements(lse_shape)));
  for (const int i : {q, k, v}) host.push_back(poisoned(dtype, elements(shapes[std::size_t(i)])));
  std::vector<check::Buffer> buffers;
  for (const std::vector<std::byte>& bytes : host) {
    buffers.emplace_back(device, bytes.size());
    buffers.back().upload(bytes.data());
  }
  const auto on_device = [&](std::size_t i) { return view(i, buffers[i].data()); };
  const RowTensor lse_view(buffers[lse].data(), lse_shape, Dtype::f32, device);
  const auto run_pass = [&](std::size_t bytes, const auto& pass) {
    const check::Buffer workspace(device, bytes);
    const Progress progress(fmt::format("computing on {}", target.name()));
    return pass(Workspace{workspace.data(), workspace.bytes()});
  };
  if (!given) {
    const Tensor o_view(buffers[o].data(), o_shape, strides_of(o_shape), type, device);
    const ForwardOptions forward_options{options.causal, options.scale, options.sm_margin.value_or(0)};
    std::size_t bytes = 0;
    check::require(
        forward_workspace_size(on_device(q), on_device(k), on_device(v), o_view, lse_view, forward_options, bytes));
    run_pass(bytes, [&](Workspace workspace) {
      check::require(check::run_and_wait(device, [&](fa3_stream stream) {
        return forward(on_device(q), on_device(k), on_device(v), o_view, lse_view, forward_options, workspace, stream);
      }));
      return 0;
    });
    buffers[o].download(host[o].data());
    buffers[lse].download(host[lse].data());
  }

  // The run.
  const Tensor dq_view = gradient(q, buffers[dq].data()), dk_view = gradient(k, buffers[dk].data()),
               dv_view = gradient(v, buffers[dv].data());
  const auto with_arguments = [&](const auto& function, auto&&... more) {
    return function(on_device(d_o), on_device(q), on_device(k), on_device(v), on_device(o), lse_view, dq_view, dk_view,
                    dv_view, backward_options, more...);
  };
  std::size_t bytes = 0;
  check::require(with_arguments([](auto&&... x) { return backward_workspace_size(x...); }, bytes));
  const char* kernel = nullptr;
  {
    fa3_backward_params params;
    check::require(with_arguments([](auto&&... x) { return detail::backward_params(x...); }, params));
    params.device = static_cast<std::int32_t>(target.like());
    check::require(Status::of(fa3_backward_kernel(&params, &kernel)));
  }
  fmt::print("device: {}\nkernel: {}\n{}", device_text(target), kernel,
             given ? "" : "O and LSE are those of the forward pass\n");
  std::fflush(stdout);
  const check::Timing timing = run_pass(bytes, [&](Workspace workspace) {
    return check::time_work(
        device, [&](fa3_stream stream) { return with_arguments(backward_on_target, workspace, stream); },
        target.simulated ? 0 : 0.2);
  });
  for (const int i : {dq, dk, dv}) buffers[std::size_t(i)].download(host[std::size_t(i)].data());

  // What came out.
  BackwardProblem problem;
  problem.dtype = dtype;
  problem.batch = o_shape[0], problem.seqlen_q = o_shape[1], problem.heads = o_shape[2], problem.d = shapes[q][3];
  problem.seqlen_k = shapes[k][1], problem.kv_heads = shapes[k][2], problem.d_v = o_shape[3];
  problem.causal = options.causal;
  problem.softmax_scale = options.scale.value_or(float(1 / std::sqrt(double(problem.d))));
  const auto in_host = [&](std::size_t data, std::size_t shape) {
    return TensorRef{host[data].data(), shapes[shape], strides_of(shapes[shape])};
  };
  problem.q = in_host(q, q), problem.k = in_host(k, k), problem.v = in_host(v, v);
  problem.d_o = in_host(d_o, d_o), problem.o = in_host(o, o);
  problem.dq = in_host(dq, q), problem.dk = in_host(dk, k), problem.dv = in_host(dv, v);
  problem.lse = reinterpret_cast<const float*>(host[lse].data());
  problem.lse_stride = contiguous_strides(lse_shape);
  fmt::print("{}", timing_text(target, timing, problem.flops()));
  check::Verdict verdict;
  {
    const Progress progress("comparing with fp64");
    const int threads = check::host_threads();
    // O and LSE from files may be of more keys than these.
    const reference::Result forward =
        given ? check::given_forward(problem) : check::forward_for_judging(reference::forward_of(problem), threads);
    verdict = check::judge(problem, forward, gradient_sample(problem), threads);
  }
  if (!verdict.passed) throw Error(FA3_INTERNAL, "the result is wrong, nothing was written: " + verdict.message);
  fmt::print("against fp64: {}\n", verdict.summary());

  std::vector<std::unique_ptr<NpyFile>> files;
  for (std::size_t i = 0; i < 3; ++i)
    files.push_back(
        std::make_unique<NpyFile>(paths[i], file_dtype(dtype), arrays[i].shape,
                                  for_file(paths[i], dtype, arrays[i].shape, std::move(host[std::size_t(dq) + i]))));
  for (std::size_t i = 0; i < 3; ++i) {
    files[i]->commit();
    fmt::print("{}", written_text(paths[i], results[i], dtype, arrays[i].shape));
  }
  return exit_ok;
}

/// What the two passes do not share.
void check_pass(const RunOptions& options) {
  if (options.fp8) {
    if (options.backward) throw UsageError("--fp8 is not for --backward");
    if (!options.expected.empty()) throw UsageError("--expected is not for --fp8, which rounds its inputs");
    if (options.dtype == "f32")
      throw UsageError("--dtype is f32; with --fp8, which it is O's of, f16 and bf16 are allowed");
  }
  if (!options.backward) {
    if (options.out.empty()) throw UsageError("--out is required");
    for (const auto& [given, name] : {std::pair{!options.d_o.empty(), "--do"},
                                      {!options.o.empty(), "--o"},
                                      {options.deterministic, "--deterministic"}})
      if (given) throw UsageError(fmt::format("{} is for --backward", name));
    return;
  }
  if (options.d_o.empty()) throw UsageError("--do is missing; --backward needs the gradient of O");
  if (!options.expected.empty()) throw UsageError("--expected is not for --backward");
  if (options.o.empty() != options.lse.empty())
    throw UsageError(fmt::format("{} is missing; with --backward give both --o and --lse, or neither",
                                 options.o.empty() ? "--o" : "--lse"));
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Compute attention over q, k and v from .npy files or one .npz file");
  command->footer(
      "q is [batch, seqlen_q, heads, d], k [batch, seqlen_k, kv_heads, d], v [batch, seqlen_k, kv_heads, d_v]; all "
      "three may\n"
      "come without the batch dimension. heads is a multiple of kv_heads; d and d_v are multiples of 8 up to 256.");
  const auto file = [&](const char* name, std::string& target, const char* text) {
    return command->add_option(name, target, text)->option_text("FILE");
  };
  file("npz", options->npz, "A .npz file with arrays q, k and v");
  file("--q", options->q, "A .npy file with q");
  file("--k", options->k, "A .npy file with k");
  file("--v", options->v, "A .npy file with v");
  file(
      "--out", options->out,
      "The .npy file to write O [batch, seqlen_q, heads, d_v] to, in f16, or f32 for bf16 and f32; with --backward the "
      "folder for dq.npy, dk.npy and dv.npy, default: here");
  file("--lse", options->lse,
       "A .npy file to write the log-sum-exp [batch, heads, seqlen_q] to, f32, natural logarithm; with --backward to "
       "read "
       "it from");
  file("--expected", options->expected, "A .npy file O must agree with, within the error allowed against fp64");
  command->add_flag("--backward", options->backward, "Compute the gradients dQ, dK and dV instead of O");
  file("--do", options->d_o, "With --backward: a .npy file with dO, the gradient of O");
  file("--o", options->o,
       "With --backward: a .npy file with O; it goes with --lse. Without both the forward pass makes them");
  command->add_flag("--deterministic", options->deterministic, "With --backward: the same bits in every run");
  command->add_flag("--fp8", options->fp8,
                    "Turn q, k and v of 16 bits into e4m3 first (scales for blocks of rows; q and k rotated)");
  command->add_flag("--causal", options->causal, "Row i sees keys j <= i + seqlen_k - seqlen_q only");
  command->add_option("--scale", options->scale, "Factor on Q K^T; default 1 / sqrt(d)")->option_text("X");
  command
      ->add_option("--dtype", options->dtype,
                   "f16, bf16 or f32 (cpu only) to compute in; default: that of the files, f32 files on a GPU f16")
      ->option_text("TYPE")
      ->check(CLI::IsMember({"f16", "bf16", "f32"}));
  command
      ->add_option(
          "--device", options->device,
          "auto (the GPU if there is a usable one), cuda, cpu, or sim (the GPU's kernels on the simulator: slow)")
      ->option_text("DEVICE")
      ->check(CLI::IsMember({"auto", "cuda", "cpu", "sim"}));
  add_sm_margin(*command, options->sm_margin, "SMs the kernel leaves free for other work; default 0");
  command->callback([&action, options] {
    action = [options] {
      check_pass(*options);
      return options->backward ? run_backward(*options) : run(*options);
    };
  });
}

}  // namespace fa3::cli
