#include "check/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>
#include <stdexcept>
#include <vector>

#include "check/device.hpp"
#include "dtype.hpp"

namespace fa3::check {
namespace {

using std::int64_t;
using Index = std::array<int64_t, 4>;

constexpr int64_t guard = 1024;  // elements before and after a tensor; a multiple of 256 bytes

/// Where the elements of a tensor lie in its block: an offset and strides, in elements.
struct Placement {
  Index shape{}, stride{};
  int64_t first = 0;

  bool empty() const { return shape[0] == 0 || shape[1] == 0 || shape[2] == 0 || shape[3] == 0; }
  /// Without its first tokens.
  Placement from_token(int64_t token) const {
    return {{shape[0], shape[1] - token, shape[2], shape[3]}, stride, first + token * stride[1]};
  }
  /// Elements from the first to the last.
  int64_t extent() const {
    if (empty()) return 0;
    int64_t last = 0;
    for (std::size_t i = 0; i < 4; ++i) last += (shape[i] - 1) * stride[i];
    return last + 1;
  }
};

Placement place(Layout layout, const Index& shape, fa3_dtype dtype) {
  const int64_t seqlen = shape[1], heads = shape[2], d = shape[3];
  const auto pitched = [&](int64_t pitch) { return Index{seqlen * heads * pitch, heads * pitch, pitch, 1}; };
  const int64_t element = int64_t(element_bytes(dtype));
  Placement p{shape, pitched(d), guard};
  switch (layout) {
    case Layout::bhsd: p.stride = {heads * seqlen * d, d, seqlen * d, 1}; break;
    case Layout::gapped: p.stride = pitched(d + 16 / element); break;
    case Layout::padded: p.stride = pitched(d + 8 / element); break;
    case Layout::offset: p.first = guard + 1; break;
    case Layout::repeat_batch: p.stride[0] = 0; break;
    case Layout::repeat_rows: p.stride = {heads * d, 0, d, 1}; break;
    case Layout::repeat_heads: p.stride = {seqlen * d, d, 0, 1}; break;
    case Layout::repeat_all: p.stride = {0, 0, 0, 0}; break;
    case Layout::spread: p.stride = {seqlen * heads * 2 * d, heads * 2 * d, 2 * d, 2}; break;
    case Layout::d_major: {
      const int64_t row = (seqlen + 15) / 16 * 16;
      p.stride = {heads * d * row, 1, d * row, row};
      break;
    }
    case Layout::dense:
    case Layout::packed: break;  // packed is placed by its caller
  }
  return p;
}

/// Host memory of one or, packed, three tensors. All of it that is not an element is poison.
struct Block {
  fa3_dtype dtype;
  std::vector<std::byte> bytes;

  Block(fa3_dtype dtype_, int64_t elements) : dtype(dtype_), bytes(std::size_t(elements) * element_bytes(dtype_)) {
    fill_poison(bytes.data(), dtype, elements);
  }
  void* at(int64_t element) { return bytes.data() + std::size_t(element) * element_bytes(dtype); }
};

enum { Q, K, V, DO, O, Lse, DQ, DK, DV, QScale, KScale, VScale, tensor_count };
constexpr const char* tensor_names[] = {"q",  "k",  "v",  "dO",      "O",       "LSE",
                                        "dQ", "dK", "dV", "q_scale", "k_scale", "v_scale"};

/// The tensors of a case in host memory.
struct Memory {
  std::vector<Block> blocks;
  std::array<Placement, tensor_count> placement;
  std::array<std::size_t, tensor_count> block_of;  // of a tensor the case does not have: no block's number

  Memory() { block_of.fill(std::numeric_limits<std::size_t>::max()); }

  /// Three tensors of shapes [batch, seqlen, heads, d]: a block each, or one for them all.
  void add_three(const std::array<int, 3>& tensors, const std::array<const TensorSpec*, 3>& specs,
                 const std::array<Index, 3>& shapes, fa3_dtype dtype) {
    if (specs[0]->layout != Layout::packed) {
      for (std::size_t i = 0; i < 3; ++i) add(tensors[i], place(specs[i]->layout, shapes[i], dtype), dtype);
      return;
    }
    const int64_t all_heads = shapes[0][2] + shapes[1][2] + shapes[2][2];
    Placement next = place(Layout::dense, {shapes[0][0], shapes[0][1], all_heads, shapes[0][3]}, dtype);
    add(tensors[0], next, dtype);
    for (std::size_t i = 0; i < 3; ++i) {
      next.shape = shapes[i];
      placement[std::size_t(tensors[i])] = next;
      block_of[std::size_t(tensors[i])] = block_of[std::size_t(tensors[0])];
      next.first += shapes[i][2] * next.stride[2];
    }
  }
  void add(int tensor, const Placement& p, fa3_dtype dtype) {
    placement[std::size_t(tensor)] = p;
    block_of[std::size_t(tensor)] = blocks.size();
    blocks.emplace_back(dtype, p.first + p.extent() + guard);
  }
  Block& block(int tensor) { return blocks[block_of[std::size_t(tensor)]]; }
  void* first(int tensor) { return block(tensor).at(placement[std::size_t(tensor)].first); }
};

template <class F>
void for_each_row(const Index& shape, F&& f) {
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t s = 0; s < shape[1]; ++s)
      for (int64_t h = 0; h < shape[2]; ++h) f(b, s, h);
}

std::uint64_t seed_of(const std::string& text) {  // FNV-1a
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ std::uint8_t(c)) * 1099511628211u;
  return hash;
}

/// Standard normal numbers, the same on every platform (std::normal_distribution is not). They repeat after a prime
/// number of elements, so that tensors of gigabytes do not take minutes.
std::vector<float> normal_numbers(const std::string& seed, int64_t wanted) {
  std::mt19937_64 random(seed_of(seed));
  const auto uniform = [&] { return (double(random() >> 11) + 0.5) * 0x1p-53; };
  std::vector<float> numbers(std::size_t(std::min<int64_t>(wanted, 1'000'003)));
  for (float& x : numbers) {
    const double radius =
        std::sqrt(-2 * std::log(uniform()));  // in a statement of its own: the order of draws is fixed
    x = float(radius * std::cos(2 * std::numbers::pi * uniform()));
  }
  return numbers;
}

template <class T>
void fill(Memory& memory, int tensor, const TensorSpec& spec, const std::string& seed) {
  const Placement& p = memory.placement[std::size_t(tensor)];
  if (p.empty()) return;
  T* data = static_cast<T*>(memory.first(tensor));
  const std::vector<float> numbers =
      spec.constant ? std::vector<float>{float(*spec.constant)} : normal_numbers(seed, p.extent());
  std::size_t next = 0;
  for_each_row(p.shape, [&](int64_t b, int64_t s, int64_t h) {
    T* row = data + b * p.stride[0] + s * p.stride[1] + h * p.stride[2];
    for (int64_t c = 0; c < p.shape[3]; ++c) {
      const double x = numbers[next] * spec.scale;
      row[c * p.stride[3]] = from_float<T>(float(spec.quantum == 0 ? x : std::round(x / spec.quantum) * spec.quantum));
      if (++next == numbers.size()) next = 0;
    }
  });
}

template <class T>
void apply(Memory& memory, const Patch& patch) {
  const Placement& p = memory.placement[std::size_t(patch.tensor)];
  T* data = static_cast<T*>(memory.first(patch.tensor));
  const std::optional<int64_t> wanted[] = {patch.batch, patch.row, patch.head, patch.feature};
  Index low{}, high = p.shape;
  for (std::size_t i = 0; i < 4; ++i) {
    if (!wanted[i]) continue;
    low[i] = *wanted[i] < 0 ? p.shape[i] + *wanted[i] : *wanted[i];
    if (low[i] < 0 || low[i] >= p.shape[i])
      throw std::runtime_error(
          fmt::format("a patch has index {} in dimension {} of extent {}", *wanted[i], i, p.shape[i]));
    high[i] = low[i] + 1;
  }
  for (int64_t b = low[0]; b < high[0]; ++b)
    for (int64_t s = low[1]; s < high[1]; ++s)
      for (int64_t h = low[2]; h < high[2]; ++h)
        for (int64_t c = low[3]; c < high[3]; ++c) {
          T& x = data[b * p.stride[0] + s * p.stride[1] + h * p.stride[2] + c * p.stride[3]];
          x = from_float<T>(float(patch.value ? *patch.value + patch.slope * double(s) : to_float(x) * patch.times));
        }
}

/// What `largest` says of a tensor's scales.
float largest_of(const Case& c, int tensor) {
  return !c.narrow ? 448.0f : tensor == V || tensor == VScale ? FA3_E4M3_NARROW_V : FA3_E4M3_NARROW_QK;
}

/// That no finite element of a tensor of e4m3 is larger than a narrow case promises.
void check_narrow(const Case& c, Memory& memory, int tensor) {
  const Placement& p = memory.placement[std::size_t(tensor)];
  if (p.empty()) return;
  const E4m3* data = static_cast<const E4m3*>(memory.first(tensor));
  for_each_row(p.shape, [&](int64_t b, int64_t s, int64_t h) {
    for (int64_t i = 0; i < p.shape[3]; ++i) {
      const float x = to_float(data[b * p.stride[0] + s * p.stride[1] + h * p.stride[2] + i * p.stride[3]]);
      if (std::abs(x) > largest_of(c, tensor))
        throw std::runtime_error(fmt::format("case {} is narrow, but {} holds {}; at most {} is allowed", c.name,
                                             tensor_names[tensor], x, largest_of(c, tensor)));
    }
  });
}

bool per_block(Scales scales) { return scales >= Scales::block && scales != Scales::repeat; }

/// The scales of a tensor, as a tensor [batch, heads, blocks, 1].
void add_scales(Memory& memory, int tensor, const Case& c, Scales scales, int64_t heads, int64_t seqlen) {
  if (scales == Scales::none) return;
  const Index shape = per_block(scales) ? Index{c.batch, heads, (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS, 1}
                                        : Index{c.batch, c.kv_heads, 1, 1};
  Placement p = place(Layout::dense, shape, FA3_F32);
  if (scales == Scales::transposed) p.stride = {1, shape[0], shape[0] * shape[1], 1};
  if (scales == Scales::repeat || scales == Scales::repeat_block) p.stride = {0, 0, 0, 1};
  memory.add(tensor, p, FA3_F32);
  if (p.empty()) return;
  std::mt19937_64 random(seed_of(c.name + tensor_names[tensor]));
  const auto [lowest, highest] = scales == Scales::wild   ? std::pair{-4.0, 2.0}
                                 : scales == Scales::tiny ? std::pair{-85.0, -83.0}
                                 : scales == Scales::huge ? std::pair{8.0, 10.0}
                                                          : std::pair{-1.0, 1.0};
  float* data = static_cast<float*>(memory.first(tensor));
  for_each_row(shape, [&](int64_t b, int64_t h, int64_t block) {
    data[b * p.stride[0] + h * p.stride[1] + block * p.stride[2]] =
        float(std::exp2(lowest + (highest - lowest) * double(random() >> 11) * 0x1p-53));
  });
}

Memory make_memory(const Case& c) {
  const int64_t keys = c.keys_elsewhere + c.seqlen_k;
  const Index q{c.batch, c.seqlen_q, c.heads, c.d}, k{c.batch, keys, c.kv_heads, c.d},
      v{c.batch, keys, c.kv_heads, c.d_v}, o{c.batch, c.seqlen_q, c.heads, c.d_v};
  Memory memory;
  memory.add_three({Q, K, V}, {&c.q, &c.k, &c.v}, {q, k, v}, c.dtype);
  memory.add(O, place(c.o.layout, o, c.dtype_of_o()), c.dtype_of_o());
  add_scales(memory, QScale, c, c.q.scales, c.heads, c.seqlen_q);
  add_scales(memory, KScale, c, c.k.scales, c.kv_heads, keys);
  add_scales(memory, VScale, c, c.v.scales, c.kv_heads, keys);
  if (c.lse != LseLayout::none) {
    Placement lse = place(Layout::dense, {c.batch, c.heads, c.seqlen_q, 1}, FA3_F32);
    if (c.lse == LseLayout::transposed) lse.stride = {c.seqlen_q * c.heads, 1, c.heads, 1};
    memory.add(Lse, lse, FA3_F32);
  }
  std::vector<std::pair<int, const TensorSpec*>> inputs = {{Q, &c.q}, {K, &c.k}, {V, &c.v}};
  if (c.backward) {
    memory.add(DO, place(c.d_o.layout, o, c.dtype), c.dtype);
    const Index part_k{c.batch, c.seqlen_k, c.kv_heads, c.d}, part_v{c.batch, c.seqlen_k, c.kv_heads, c.d_v};
    memory.add_three({DQ, DK, DV}, {&c.dq, &c.dk, &c.dv}, {q, part_k, part_v}, c.dtype);
    inputs.push_back({DO, &c.d_o});
  }
  with_input_dtype(c.dtype, [&]<class T>(T) {
    for (const auto& [tensor, given] : inputs) {
      TensorSpec spec = *given;
      if (c.narrow && tensor == V) spec.scale *= 0.1875;
      fill<T>(memory, tensor, spec, c.name + (tensor == DO ? "dO" : std::string(1, "QKV"[tensor])));
    }
    for (const Patch& patch : c.patches) apply<T>(memory, patch);
  });
  for (int tensor = Q; c.narrow && tensor <= V; ++tensor) check_narrow(c, memory, tensor);
  return memory;
}

/// A tensor in host memory, for the judge.
TensorRef host_tensor(Memory& memory, int tensor, const Placement& p) {
  return {memory.block(tensor).at(p.first), p.shape, p.stride};
}
TensorRef host_tensor(Memory& memory, int tensor) {
  return host_tensor(memory, tensor, memory.placement[std::size_t(tensor)]);
}

void set_sizes(Problem& p, const Case& c) {
  p.dtype = c.dtype;
  p.batch = c.batch, p.heads = c.heads, p.kv_heads = c.kv_heads;
  p.seqlen_q = c.seqlen_q, p.seqlen_k = c.seqlen_k, p.d = c.d, p.d_v = c.d_v;
  p.softmax_scale = c.softmax_scale.value_or(float(1 / std::sqrt(double(c.d))));
  p.causal = c.causal;
}

std::array<int64_t, 3> lse_stride(const Memory& memory) {
  const Index& stride = memory.placement[Lse].stride;
  return {stride[0], stride[1], stride[2]};
}

ScalesRef host_scales(const Case& c, Memory& memory, int tensor, Scales scales) {
  ScalesRef ones;
  ones.largest = largest_of(c, tensor);
  if (scales == Scales::none || memory.placement[std::size_t(tensor)].empty()) return ones;
  const Index& stride = memory.placement[std::size_t(tensor)].stride;
  return {
      static_cast<float*>(memory.first(tensor)), per_block(scales), {stride[0], stride[1], stride[2]}, ones.largest};
}

/// The problem in host memory, for the judge. Of a backward case: the forward pass over all its keys.
ForwardProblem host_problem(const Case& c, Memory& memory) {
  ForwardProblem p;
  set_sizes(p, c);
  p.seqlen_k += c.keys_elsewhere;
  p.q = host_tensor(memory, Q), p.k = host_tensor(memory, K), p.v = host_tensor(memory, V);
  p.o = host_tensor(memory, O);
  p.o_dtype = c.o_dtype;
  p.q_scale = host_scales(c, memory, QScale, c.q.scales);
  p.k_scale = host_scales(c, memory, KScale, c.k.scales);
  p.v_scale = host_scales(c, memory, VScale, c.v.scales);
  if (c.lse != LseLayout::none) {
    p.lse = static_cast<float*>(memory.first(Lse));
    p.lse_stride = lse_stride(memory);
  }
  return p;
}

BackwardProblem host_backward_problem(const Case& c, Memory& memory) {
  BackwardProblem p;
  set_sizes(p, c);
  p.d_o = host_tensor(memory, DO), p.q = host_tensor(memory, Q), p.o = host_tensor(memory, O);
  p.k = host_tensor(memory, K, memory.placement[K].from_token(c.keys_elsewhere));
  p.v = host_tensor(memory, V, memory.placement[V].from_token(c.keys_elsewhere));
  p.dq = host_tensor(memory, DQ), p.dk = host_tensor(memory, DK), p.dv = host_tensor(memory, DV);
  p.lse = static_cast<float*>(memory.first(Lse));
  p.lse_stride = lse_stride(memory);
  return p;
}

/// Whether anything but the elements of `outputs`, which share a block, was written. Puts poison over the elements, so
/// `block` is a copy.
bool written_outside(Block block, const std::vector<Placement>& outputs) {
  for (const Placement& p : outputs)
    if (!p.empty())
      for_each_row(p.shape, [&](int64_t b, int64_t s, int64_t h) {
        fill_poison(block.at(p.first + b * p.stride[0] + s * p.stride[1] + h * p.stride[2]), block.dtype, p.shape[3]);
      });
  return block.bytes != Block(block.dtype, int64_t(block.bytes.size() / element_bytes(block.dtype))).bytes;
}

/// A case's memory on the device.
class OnDevice {
 public:
  OnDevice(const Case& c, Device device, Memory& memory) : case_(c), device_(device), memory_(memory) {
    for (Block& block : memory.blocks) {
      buffers_.emplace_back(device, block.bytes.size());
      buffers_.back().upload(block.bytes.data());
    }
  }

  ConstTensor input(int tensor) const { return input(tensor, memory_.placement[std::size_t(tensor)]); }
  ConstTensor input(int tensor, const Placement& p) const {
    return ConstTensor(data(tensor, p), p.shape, p.stride, static_cast<Dtype>(case_.dtype), device_);
  }
  Tensor output(int tensor) const {
    const Placement& p = memory_.placement[std::size_t(tensor)];
    return Tensor(data(tensor, p), p.shape, p.stride, static_cast<Dtype>(case_.dtype_of_o()), device_);
  }
  ScalesView scales(int tensor, Scales scales) const {
    ScalesView ones;
    if (case_.narrow) ones.largest = largest_of(case_, tensor);
    if (scales == Scales::none) return ones;
    const Placement& p = memory_.placement[std::size_t(tensor)];
    return {reinterpret_cast<float*>(data(tensor, p)),
            {p.shape[0], p.shape[1], p.shape[2]},
            {p.stride[0], p.stride[1], p.stride[2]},
            per_block(scales),
            device_,
            ones.largest};
  }
  RowTensor lse() const {
    const Placement& p = memory_.placement[Lse];
    return RowTensor(data(Lse, p), {p.shape[0], p.shape[1], p.shape[2]}, lse_stride(memory_), Dtype::f32, device_);
  }

  /// Copies a tensor's block back into the memory it came from.
  void keep(int tensor) {
    const std::size_t block = memory_.block_of[std::size_t(tensor)];
    buffers_[block].download(memory_.blocks[block].bytes.data());
  }

  /// Runs `work` as often as the case wants, with poisoned `outputs` and a workspace full of garbage, and returns the
  /// memory after it; or nothing, and the verdict says why: runs without `same_bits`, or memory that was changed beside
  /// the outputs' elements.
  std::optional<Memory> run(const Work& work, Buffer& workspace, const std::vector<int>& outputs, bool same_bits,
                            Verdict& verdict) {
    const bool graphed = case_.graph && device_ == Device::cuda;
    std::optional<Graph> graph;
    if (graphed) graph.emplace(work);
    Memory result = memory_;
    const int runs = std::max(case_.repeats, graphed ? 2 : 1);
    for (int run = 0; run < runs; ++run) {
      for (const int output : outputs) {
        const std::size_t block = memory_.block_of[std::size_t(output)];
        buffers_[block].upload(memory_.blocks[block].bytes.data());
      }
      workspace.fill(0xff);
      if (graph) {
        graph->replay();
      } else if (const Status s = run_and_wait(device_, work); !s) {
        verdict.fail(s.message());
        return std::nullopt;
      }
      for (std::size_t i = 0; i < buffers_.size(); ++i) {
        std::vector<std::byte> now(buffers_[i].bytes());
        buffers_[i].download(now.data());
        if (run > 0 && same_bits && now != result.blocks[i].bytes) {
          verdict.fail(fmt::format("run {} gave other bits than run 1", run + 1));
          return std::nullopt;
        }
        result.blocks[i].bytes = std::move(now);
      }
    }
    check_surroundings(result, outputs, verdict);
    if (!verdict.passed) return std::nullopt;
    return result;
  }

 private:
  std::byte* data(int tensor, const Placement& p) const {
    if (case_.null_if_empty && p.empty()) return nullptr;
    const std::size_t block = memory_.block_of[std::size_t(tensor)];
    return static_cast<std::byte*>(buffers_[block].data()) +
           std::size_t(p.first) * element_bytes(memory_.blocks[block].dtype);
  }

  void check_surroundings(Memory& result, const std::vector<int>& outputs, Verdict& verdict) const {
    for (std::size_t block = 0; block < result.blocks.size(); ++block) {
      std::vector<Placement> written;
      std::string names;
      int last = Q;
      for (int tensor = 0; tensor < tensor_count; ++tensor) {
        if (memory_.block_of[std::size_t(tensor)] != block) continue;
        last = tensor;
        names += (names.empty() ? "" : ", ") + std::string(tensor_names[tensor]);
        if (std::find(outputs.begin(), outputs.end(), tensor) != outputs.end())
          written.push_back(result.placement[std::size_t(tensor)]);
      }
      if (written.empty() && result.blocks[block].bytes != memory_.blocks[block].bytes)
        verdict.fail(fmt::format("the memory of {} was changed", names));
      if (!written.empty() && written_outside(result.block(last), written))
        verdict.fail(fmt::format("memory outside the elements of {} was written", names));
    }
  }

  const Case& case_;
  Device device_;
  Memory& memory_;
  std::vector<Buffer> buffers_;
};

/// Rows compared in full; beyond it a sample is. Keeps the fp64 reference under about a second.
int64_t rows_to_judge(const ForwardProblem& p) { return p.flops() <= 4e9 ? p.batch * p.seqlen_q * p.heads : 256; }
int64_t rows_to_judge(const BackwardProblem& p) {
  return p.flops() <= 2e9 ? p.batch * std::max(p.seqlen_q * p.heads, p.seqlen_k * p.kv_heads) : 128;
}

}  // namespace

Verdict run_case(const Case& c, Device device, const ForwardFunction& forward) {
  Memory memory = make_memory(c);
  OnDevice on_device(c, device, memory);
  const ConstTensor q = on_device.input(Q), k = on_device.input(K), v = on_device.input(V);
  const Tensor o = on_device.output(O);
  std::optional<RowTensor> lse;
  std::vector<int> outputs = {O};
  if (c.lse != LseLayout::none) {
    lse = on_device.lse();
    outputs.push_back(Lse);
  }
  ForwardOptions options{c.causal, c.softmax_scale, c.sm_margin};
  options.q_scale = on_device.scales(QScale, c.q.scales);
  options.k_scale = on_device.scales(KScale, c.k.scales);
  options.v_scale = on_device.scales(VScale, c.v.scales);

  Verdict verdict;
  std::size_t workspace_bytes = 0;
  if (const Status s = forward_workspace_size(q, k, v, o, lse, options, workspace_bytes); !s) {
    verdict.fail("workspace size: " + s.message());
    return verdict;
  }
  Buffer workspace(device, workspace_bytes);
  const Work work = [&](fa3_stream stream) {
    return forward(q, k, v, o, lse, options, Workspace{workspace.data(), workspace.bytes()}, stream);
  };
  std::optional<Memory> result = on_device.run(work, workspace, outputs, true, verdict);
  if (!result) return verdict;
  const ForwardProblem problem = host_problem(c, *result);
  return judge(problem, rows_to_judge(problem), host_threads(), c.q.quantum != 0);
}

Verdict run_backward_case(const Case& c, Device device, const BackwardFunction& backward) {
  Memory memory = make_memory(c);
  OnDevice on_device(c, device, memory);
  Verdict verdict;
  const auto failed = [&](const char* what, const Status& status) {
    verdict.fail(std::string(what) + ": " + status.message());
    return verdict;
  };
  const ConstTensor q = on_device.input(Q);
  {
    const ConstTensor k = on_device.input(K), v = on_device.input(V);
    const ForwardOptions options{c.causal, c.softmax_scale, c.sm_margin};
    std::size_t bytes = 0;
    if (const Status s = forward_workspace_size(q, k, v, on_device.output(O), on_device.lse(), options, bytes); !s)
      return failed("workspace size of the forward pass", s);
    Buffer workspace(device, bytes);
    const Status s = run_and_wait(device, [&](fa3_stream stream) {
      return forward(q, k, v, on_device.output(O), on_device.lse(), options,
                     Workspace{workspace.data(), workspace.bytes()}, stream);
    });
    if (!s) return failed("the forward pass", s);
    on_device.keep(O);
    on_device.keep(Lse);
  }

  const ConstTensor d_o = on_device.input(DO), o = on_device.input(O),
                    k = on_device.input(K, memory.placement[K].from_token(c.keys_elsewhere)),
                    v = on_device.input(V, memory.placement[V].from_token(c.keys_elsewhere));
  const RowTensor lse = on_device.lse();
  const Tensor dq = on_device.output(DQ), dk = on_device.output(DK), dv = on_device.output(DV);
  const BackwardOptions options{c.causal, c.softmax_scale, c.deterministic, c.sm_margin};
  std::size_t bytes = 0;
  if (const Status s = backward_workspace_size(d_o, q, k, v, o, lse, dq, dk, dv, options, bytes); !s)
    return failed("workspace size", s);
  Buffer workspace(device, bytes);
  const Work work = [&](fa3_stream stream) {
    return backward(d_o, q, k, v, o, lse, dq, dk, dv, options, Workspace{workspace.data(), workspace.bytes()}, stream);
  };
  std::optional<Memory> result = on_device.run(work, workspace, {DQ, DK, DV}, c.deterministic, verdict);
  if (!result) return verdict;
  const BackwardProblem problem = host_backward_problem(c, *result);
  const int threads = host_threads();
  return judge(problem, forward_for_judging(host_problem(c, *result), threads), rows_to_judge(problem), threads);
}

Verdict run_case(const Case& c, Device device) {
  return c.backward ? run_backward_case(c, device, fa3::backward) : run_case(c, device, fa3::forward);
}

}  // namespace fa3::check
