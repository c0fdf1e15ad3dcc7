#include "check/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
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

enum { Q, K, V, O, Lse, tensor_count };

/// The tensors of a case in host memory.
struct Memory {
  std::vector<Block> blocks;
  std::array<Placement, tensor_count> placement;
  std::array<std::size_t, tensor_count> block_of{};

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
      row[c] = from_float<T>(float(spec.quantum == 0 ? x : std::round(x / spec.quantum) * spec.quantum));
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
          T& x = data[b * p.stride[0] + s * p.stride[1] + h * p.stride[2] + c];
          x = from_float<T>(float(patch.value ? *patch.value + patch.slope * double(s) : to_float(x) * patch.times));
        }
}

Memory make_memory(const Case& c) {
  const Index q{c.batch, c.seqlen_q, c.heads, c.d}, k{c.batch, c.seqlen_k, c.kv_heads, c.d},
      v{c.batch, c.seqlen_k, c.kv_heads, c.d_v}, o{c.batch, c.seqlen_q, c.heads, c.d_v};
  Memory memory;
  if (c.q.layout == Layout::packed) {
    const int64_t all_heads = c.heads + 2 * c.kv_heads;
    const Placement packed = place(Layout::dense, {c.batch, c.seqlen_q, all_heads, c.d}, c.dtype);
    memory.add(Q, packed, c.dtype);
    memory.placement[Q].shape = q;
    memory.placement[K] = {k, packed.stride, packed.first + c.heads * c.d};
    memory.placement[V] = {v, packed.stride, packed.first + (c.heads + c.kv_heads) * c.d};
    memory.block_of[K] = memory.block_of[V] = memory.block_of[Q];
  } else {
    memory.add(Q, place(c.q.layout, q, c.dtype), c.dtype);
    memory.add(K, place(c.k.layout, k, c.dtype), c.dtype);
    memory.add(V, place(c.v.layout, v, c.dtype), c.dtype);
  }
  memory.add(O, place(c.o.layout, o, c.dtype), c.dtype);
  if (c.lse != LseLayout::none) {
    Placement lse = place(Layout::dense, {c.batch, c.heads, c.seqlen_q, 1}, FA3_F32);
    if (c.lse == LseLayout::transposed) lse.stride = {c.seqlen_q * c.heads, 1, c.heads, 1};
    memory.add(Lse, lse, FA3_F32);
  }
  with_dtype(c.dtype, [&]<class T>(T) {
    const TensorSpec* specs[] = {&c.q, &c.k, &c.v};
    for (int tensor : {Q, K, V}) fill<T>(memory, tensor, *specs[tensor], c.name + "QKV"[tensor]);
    for (const Patch& patch : c.patches) apply<T>(memory, patch);
  });
  return memory;
}

/// The problem in host memory, for the judge.
ForwardProblem host_problem(const Case& c, Memory& memory) {
  ForwardProblem p;
  p.dtype = c.dtype;
  p.batch = c.batch, p.heads = c.heads, p.kv_heads = c.kv_heads;
  p.seqlen_q = c.seqlen_q, p.seqlen_k = c.seqlen_k, p.d = c.d, p.d_v = c.d_v;
  TensorRef* refs[] = {&p.q, &p.k, &p.v, &p.o};
  for (int t : {Q, K, V, O})
    *refs[t] = {memory.first(t), memory.placement[std::size_t(t)].shape, memory.placement[std::size_t(t)].stride};
  if (c.lse != LseLayout::none) {
    p.lse = static_cast<float*>(memory.first(Lse));
    const Index& stride = memory.placement[Lse].stride;
    p.lse_stride = {stride[0], stride[1], stride[2]};
  }
  p.softmax_scale = c.softmax_scale.value_or(float(1 / std::sqrt(double(c.d))));
  p.causal = c.causal;
  return p;
}

/// Whether anything but the elements of `tensor` was written. Puts poison over the elements, so `block` is a copy.
bool written_outside(Block block, const Placement& p) {
  if (!p.empty())
    for_each_row(p.shape, [&](int64_t b, int64_t s, int64_t h) {
      fill_poison(block.at(p.first + b * p.stride[0] + s * p.stride[1] + h * p.stride[2]), block.dtype, p.shape[3]);
    });
  return block.bytes != Block(block.dtype, int64_t(block.bytes.size() / element_bytes(block.dtype))).bytes;
}

/// Rows compared in full; beyond it a sample is. Keeps the fp64 reference under about a second.
int64_t rows_to_judge(const ForwardProblem& p) { return p.flops() <= 4e9 ? p.batch * p.seqlen_q * p.heads : 256; }

}  // namespace

Verdict run_case(const Case& c, Device device, const ForwardFunction& forward) {
  const Dtype dtype = static_cast<Dtype>(c.dtype);
  Memory memory = make_memory(c);
  std::vector<Buffer> buffers;
  for (Block& block : memory.blocks) {
    buffers.emplace_back(device, block.bytes.size());
    buffers.back().upload(block.bytes.data());
  }
  const auto data = [&](int tensor) -> std::byte* {
    const Placement& p = memory.placement[std::size_t(tensor)];
    if (c.null_if_empty && p.empty()) return nullptr;
    const std::size_t block = memory.block_of[std::size_t(tensor)];
    return static_cast<std::byte*>(buffers[block].data()) +
           std::size_t(p.first) * element_bytes(memory.blocks[block].dtype);
  };
  const auto input = [&](int tensor) {
    const Placement& p = memory.placement[std::size_t(tensor)];
    return ConstTensor(data(tensor), p.shape, p.stride, dtype, device);
  };
  const ConstTensor q = input(Q), k = input(K), v = input(V);
  const Tensor o(data(O), memory.placement[O].shape, memory.placement[O].stride, dtype, device);
  std::optional<RowTensor> lse;
  if (c.lse != LseLayout::none) {
    const Placement& p = memory.placement[Lse];
    lse = RowTensor(data(Lse), {c.batch, c.heads, c.seqlen_q}, {p.stride[0], p.stride[1], p.stride[2]}, Dtype::f32,
                    device);
  }
  const ForwardOptions options{c.causal, c.softmax_scale, c.sm_margin};

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
  const bool graphed = c.graph && device == Device::cuda;
  std::optional<Graph> graph;
  if (graphed) graph.emplace(work);

  Memory result = memory;
  const int runs = std::max(c.repeats, graphed ? 2 : 1);
  for (int run = 0; run < runs; ++run) {
    for (const int output : {O, Lse}) {
      const std::size_t block = memory.block_of[std::size_t(output)];
      if (output == O || lse) buffers[block].upload(memory.blocks[block].bytes.data());
    }
    workspace.fill(0xff);
    if (graph) {
      graph->replay();
    } else if (const Status s = run_and_wait(device, work); !s) {
      verdict.fail(s.message());
      return verdict;
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      std::vector<std::byte> now(buffers[i].bytes());
      buffers[i].download(now.data());
      if (run > 0 && now != result.blocks[i].bytes) {
        verdict.fail(fmt::format("run {} gave other bits than run 1", run + 1));
        return verdict;
      }
      result.blocks[i].bytes = std::move(now);
    }
  }

  for (const int t : {Q, K, V})
    if (result.block(t).bytes != memory.block(t).bytes)
      verdict.fail(fmt::format("the memory of {} was changed", "qkv"[t]));
  if (written_outside(result.block(O), result.placement[O]))
    verdict.fail("memory outside the elements of O was written");
  if (lse && written_outside(result.block(Lse), result.placement[Lse]))
    verdict.fail("memory outside the elements of LSE was written");
  if (!verdict.passed) return verdict;
  const ForwardProblem problem = host_problem(c, result);
  return judge(problem, rows_to_judge(problem), host_threads(), c.q.quantum != 0);
}

}  // namespace fa3::check
