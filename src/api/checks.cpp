#include "api/checks.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <string>

#include "dtype.hpp"
#include "kernels/plan.hpp"

namespace fa3::api {
namespace {

using std::int64_t;
using std::string;
using std::to_string;

/// With as many digits as tell it from other numbers.
string shortest(float x) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, x).ptr};
}

[[noreturn]] void invalid(const string& message) { throw Error(FA3_INVALID_ARGUMENT, message); }

/// The caller's parameters with those that its struct does not reach to at 0. `name` is the type's, `earlier` the sizes
/// it had in earlier releases.
template <class Params>
Params whole_params(const Params* given, const char* name, std::initializer_list<std::size_t> earlier = {}) {
  if (given == nullptr) invalid("params is null");
  if (given->struct_size != sizeof(Params) &&
      std::find(earlier.begin(), earlier.end(), given->struct_size) == earlier.end()) {
    string others;
    for (const std::size_t size : earlier) others += (others.empty() ? "" : " or ") + to_string(size);
    invalid("params.struct_size is " + to_string(given->struct_size) + "; this library expects sizeof(" + name +
            ") = " + to_string(sizeof(Params)) + (others.empty() ? "" : ", or " + others + " of earlier releases"));
  }
  if (given->api_version != FA3_API_VERSION)
    invalid("params.api_version is " + to_string(given->api_version) + "; this library speaks version " +
            to_string(FA3_API_VERSION));
  Params whole{};
  std::memcpy(&whole, given, given->struct_size);
  return whole;
}

/// One that every pass and the quantiser take.
bool known_dtype(int32_t dtype) { return dtype == FA3_F16 || dtype == FA3_BF16 || dtype == FA3_F32; }

int64_t non_negative(int64_t value, const char* name) {
  if (value < 0) invalid(string(name) + " is " + to_string(value) + "; it must not be negative");
  return value;
}

int64_t positive(int64_t value, const char* name) {
  if (value < 1) invalid(string(name) + " is " + to_string(value) + "; it must be at least 1");
  return value;
}

int64_t head_dim(int64_t value, const char* name) {
  if (value < 8 || value > 256 || value % 8 != 0)
    invalid(string(name) + " is " + to_string(value) + "; it must be a multiple of 8 from 8 to 256");
  return value;
}

/// Offset of the last element plus one, in elements; an error if it does not fit in memory.
template <std::size_t rank>
void check_reach(const char* name, const std::array<int64_t, rank>& shape, const std::array<int64_t, rank>& stride,
                 int64_t bytes_each) {
  __int128 reach = 1;
  for (std::size_t i = 0; i < rank; ++i) reach += __int128(shape[i] - 1) * stride[i];
  if (reach * bytes_each > (__int128(1) << 62)) invalid(string(name) + ": its strides reach beyond 2^62 bytes");
}

/// Zeroes strides that select nothing and refuses negative ones.
template <std::size_t rank>
std::array<int64_t, rank> check_strides(const char* name, const std::array<int64_t, rank>& shape,
                                        const int64_t* stride) {
  std::array<int64_t, rank> result{};
  for (std::size_t i = 0; i < rank; ++i) {
    if (shape[i] <= 1) continue;
    if (stride[i] < 0)
      invalid(string(name) + "[" + to_string(i) + "] is " + to_string(stride[i]) +
              "; negative strides are not allowed");
    result[i] = stride[i];
  }
  return result;
}

void check_pointer(const char* name, const void* data, std::size_t alignment) {
  if (data == nullptr) invalid(string(name) + " is null, but the tensor is not empty");
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
    invalid(string(name) + " is not aligned to its element size of " + to_string(alignment) + " bytes");
}

/// `any_stride`: the features need not be contiguous.
TensorRef check_tensor(const char* name, const fa3_tensor& tensor, std::array<int64_t, 4> shape,
                       bool any_stride = false) {
  TensorRef ref{tensor.data, shape, {}};
  if (tensor.reserved != 0) invalid(string(name) + ".reserved is " + to_string(tensor.reserved) + "; it must be 0");
  if (ref.empty()) return ref;
  ref.stride = check_strides((string(name) + ".stride").c_str(), shape, tensor.stride);
  if (ref.stride[3] != 1 && !any_stride)
    invalid(string(name) + ".stride[3] is " + to_string(ref.stride[3]) +
            "; the last dimension must be contiguous (stride 1)");
  check_pointer((string(name) + ".data").c_str(), tensor.data, element_bytes(fa3_dtype(tensor.dtype)));
  check_reach(name, shape, ref.stride, int64_t(element_bytes(fa3_dtype(tensor.dtype))));
  return ref;
}

template <std::size_t rank>
ByteBox byte_box(const void* data, const std::array<int64_t, rank>& shape, const std::array<int64_t, rank>& stride,
                 int64_t bytes_each) {
  ByteBox box{reinterpret_cast<std::uintptr_t>(data), {}};
  for (std::size_t i = 0; i < rank; ++i) box.dimensions.push_back({shape[i], stride[i] * bytes_each});
  box.dimensions.push_back({bytes_each, 1});
  return box;
}

/// Elements of an output must be distinct: sorted by stride, every dimension must step over all that lies inside it.
template <std::size_t rank>
void check_distinct(const char* name, std::array<int64_t, rank> shape, std::array<int64_t, rank> stride) {
  std::array<std::size_t, rank> order;
  for (std::size_t i = 0; i < rank; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return stride[a] < stride[b]; });
  int64_t inside = 1;  // elements from the first to the last of the dimensions seen so far
  for (std::size_t i : order) {
    if (shape[i] <= 1) continue;
    if (stride[i] < inside)
      invalid(string(name) + "[" + to_string(i) + "] is " + to_string(stride[i]) +
              "; elements of an output must not overlap, so it must be at least " + to_string(inside));
    inside += (shape[i] - 1) * stride[i];
  }
}

using NamedTensor = std::pair<const char*, const fa3_tensor*>;
using NamedBox = std::pair<const char*, ByteBox>;

bool check_flag(int32_t value, const char* name) {
  if (value != 0 && value != 1) invalid(string(name) + " is " + to_string(value) + "; it must be 0 or 1");
  return value == 1;
}

/// Device, mask and extents, which both passes have.
template <class Params>
void check_sizes(const Params& params, Problem& p) {
  if (params.device != FA3_DEVICE_CUDA && params.device != FA3_DEVICE_CPU)
    invalid("device is " + to_string(params.device) + "; it must be FA3_DEVICE_CUDA (1) or FA3_DEVICE_CPU (2)");
  p.causal = check_flag(params.causal, "causal");
  p.batch = non_negative(params.batch, "batch");
  p.heads = positive(params.heads, "heads");
  p.kv_heads = positive(params.kv_heads, "kv_heads");
  if (p.heads % p.kv_heads != 0)
    invalid("heads is " + to_string(p.heads) + "; it must be a multiple of kv_heads = " + to_string(p.kv_heads));
  p.seqlen_q = non_negative(params.seqlen_q, "seqlen_q");
  p.seqlen_k = non_negative(params.seqlen_k, "seqlen_k");
  p.d = head_dim(params.d, "d");
  p.d_v = head_dim(params.d_v, "d_v");
  // Extents that could overflow a product of sizes; far beyond any memory.
  for (const auto& [extent, name] :
       {std::pair{p.batch, "batch"}, {p.heads, "heads"}, {p.seqlen_q, "seqlen_q"}, {p.seqlen_k, "seqlen_k"}})
    if (extent > (int64_t(1) << 31) - 1) invalid(string(name) + " is " + to_string(extent) + "; it must be below 2^31");
}

/// That `tensors`, of which the first is q, have one dtype.
void check_dtypes(int32_t device, const std::vector<NamedTensor>& tensors, Problem& p) {
  const int32_t of_q = tensors[0].second->dtype;
  string names;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    names += (i == 0 ? "" : i + 1 == tensors.size() ? " and " : ", ") + string(tensors[i].first);
  for (const auto& [name, tensor] : tensors) {
    if (!known_dtype(tensor->dtype) && tensor->dtype != FA3_E4M3)
      invalid(string(name) + ".dtype is " + to_string(tensor->dtype) +
              "; it must be FA3_F16 (1), FA3_BF16 (2), FA3_E4M3 (3, forward pass only) or FA3_F32 (4)");
    if (tensor->dtype != of_q)
      invalid(string(name) + ".dtype is " + to_string(tensor->dtype) + ", but q.dtype is " + to_string(of_q) + "; " +
              names + " must have one dtype");
  }
  p.dtype = fa3_dtype(of_q);
  if (p.dtype == FA3_F32 && device == FA3_DEVICE_CUDA)
    throw Error(FA3_NOT_SUPPORTED,
                "q.dtype is FA3_F32 (4); on cuda it must be FA3_F16 (1), FA3_BF16 (2) or FA3_E4M3 (3)");
}

/// O has the dtype of q, k and v, or 16 bits where those are e4m3.
void check_forward_dtypes(const fa3_forward_params& params, ForwardProblem& p) {
  std::vector<NamedTensor> alike = {{"q", &params.q}, {"k", &params.k}, {"v", &params.v}};
  if (params.q.dtype != FA3_E4M3) alike.push_back({"o", &params.o});
  check_dtypes(params.device, alike, p);
  p.o_dtype = fa3_dtype(params.o.dtype);
  if (p.dtype != FA3_E4M3) return;
  if (p.o_dtype != FA3_F16 && p.o_dtype != FA3_BF16)
    invalid("o.dtype is " + to_string(params.o.dtype) +
            "; where q.dtype is FA3_E4M3 (3) it must be FA3_F16 (1) or FA3_BF16 (2)");
  for (const auto& [features, name] : {std::pair{p.d, "d"}, {p.d_v, "d_v"}})
    if (features % 16 != 0)
      invalid(string(name) + " is " + to_string(features) +
              "; where q.dtype is FA3_E4M3 (3) it must be a multiple of 16");
}

/// That TMA can read an e4m3 tensor in place: there is no copy for those that it cannot. `contiguous`: the dimension
/// whose neighbours lie side by side, 3 or 1.
void check_e4m3_layout(const char* name, const TensorRef& tensor, int contiguous, int32_t device) {
  if (tensor.empty()) return;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0)
    invalid(string(name) + ".data is not aligned to 16 bytes, as e4m3 must be");
  for (int i = 0; i < 4; ++i) {
    if (i == contiguous) continue;
    const string given = string(name) + ".stride[" + to_string(i) + "] is " + to_string(tensor.stride[i]);
    if (tensor.stride[i] % 16 != 0) invalid(given + "; strides of e4m3 must be multiples of 16");
    if (tensor.stride[i] >= int64_t(1) << 40) invalid(given + "; strides of e4m3 must be below 2^40");
  }
  const TensorRef pairs = contiguous == 1 ? kernels::pairs_of_keys(tensor) : kernels::pairs_of(tensor);
  if (device == FA3_DEVICE_CUDA && !kernels::tma_can_address(pairs)) {
    const auto& stride = tensor.stride;
    throw Error(FA3_NOT_SUPPORTED, string(name) +
                                       ": on cuda elements of an e4m3 tensor may share memory only by "
                                       "stride 0 of batch or head; its strides are " +
                                       to_string(stride[0]) + ", " + to_string(stride[1]) + ", " +
                                       to_string(stride[2]) + " and " + to_string(stride[3]));
  }
}

/// The largest value of an e4m3 tensor whose scales are called `name`.
float check_largest(float largest, const char* name) {
  if (largest == 0) return 448;
  if (!(largest >= 1) || to_float(from_float<E4m3>(largest)) != largest)
    invalid(string(name) + ".largest is " + shortest(largest) +
            "; it must be 0, for 448, or a number of e4m3 from 1 on, such as 15 or 1.125");
  return largest;
}

/// The scales of a tensor with `heads` heads and `seqlen` rows, and what memory they take.
ScalesRef check_scales(const char* name, const fa3_scales& scales, const ForwardProblem& p, int64_t heads,
                       int64_t seqlen, std::vector<NamedBox>& inputs) {
  if (p.dtype != FA3_E4M3) {
    if (scales.data != nullptr || scales.per_block != 0 || scales.largest != 0 ||
        std::any_of(scales.stride, scales.stride + 3, [](int64_t stride) { return stride != 0; }))
      invalid(string(name) + " is given, but q.dtype is " + to_string(p.dtype) +
              "; unless that is FA3_E4M3 (3) it must be all zero");
    return {};
  }
  ScalesRef ref, ones;
  ref.largest = ones.largest = check_largest(scales.largest, name);
  ref.per_block = check_flag(scales.per_block, (string(name) + ".per_block").c_str());
  const std::array<int64_t, 3> shape = ref.per_block
                                           ? std::array{p.batch, heads, (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS}
                                           : std::array{p.batch, p.kv_heads, int64_t(1)};
  ref.stride = check_strides((string(name) + ".stride").c_str(), shape, scales.stride);
  if (scales.data == nullptr || shape[0] == 0 || shape[2] == 0) return ones;
  ref.data = scales.data;
  check_pointer((string(name) + ".data").c_str(), ref.data, sizeof(float));
  check_reach(name, shape, ref.stride, sizeof(float));
  inputs.push_back({name, byte_box(ref.data, shape, ref.stride, sizeof(float))});
  return ref;
}

std::array<int64_t, 3> lse_shape(const Problem& p) { return {p.batch, p.heads, p.seqlen_q}; }

/// The strides of an LSE that has elements.
std::array<int64_t, 3> check_lse(const Problem& p, const float* lse, const int64_t* stride) {
  check_pointer("lse", lse, sizeof(float));
  const std::array<int64_t, 3> checked = check_strides("lse_stride", lse_shape(p), stride);
  check_reach("lse", lse_shape(p), checked, sizeof(float));
  return checked;
}

/// Those of `tensors` that have elements.
std::vector<NamedBox> boxes_of(fa3_dtype dtype,
                               std::initializer_list<std::pair<const char*, const TensorRef*>> tensors) {
  std::vector<NamedBox> boxes;
  for (const auto& [name, tensor] : tensors)
    if (!tensor->empty())
      boxes.push_back({name, byte_box(tensor->data, tensor->shape, tensor->stride, int64_t(element_bytes(dtype)))});
  return boxes;
}

void check_outputs_apart(const std::vector<NamedBox>& outputs, const std::vector<NamedBox>& inputs) {
  for (const auto& [output_name, output] : outputs)
    for (const auto& [name, input] : inputs)
      if (bytes_overlap(output, input))
        invalid(string(output_name) + " overlaps " + name + " in memory; an output must not share bytes with an input");
  for (std::size_t i = 1; i < outputs.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (bytes_overlap(outputs[i].second, outputs[j].second))
        invalid(string(outputs[i].first) + " overlaps " + outputs[j].first +
                " in memory; outputs must not share bytes");
}

/// Scale and sm_margin, which both passes have.
template <class Params>
void check_options(const Params& params, Problem& p) {
  const bool scale_set = check_flag(params.softmax_scale_set, "softmax_scale_set");
  p.softmax_scale = scale_set ? params.softmax_scale : float(1.0 / std::sqrt(double(p.d)));
  if (!std::isfinite(p.softmax_scale)) invalid("softmax_scale is " + shortest(p.softmax_scale) + "; it must be finite");
  if (std::abs(p.softmax_scale) > 0x1p64f)
    invalid("softmax_scale is " + shortest(p.softmax_scale) + "; its size must be at most 2^64");
  p.sm_margin = int(non_negative(params.sm_margin, "sm_margin"));
}

/// Whether `target` is a sum of multiples, terms[i].stride times something in [lowest, highest]; terms sorted by
/// falling stride. `budget` bounds the search.
struct Term {
  int64_t stride, lowest, highest;
};
bool reachable(const std::vector<Term>& terms, std::size_t from, __int128 target, int& budget) {
  if (--budget < 0) return true;
  __int128 low = 0, high = 0;
  for (std::size_t i = from; i < terms.size(); ++i) {
    low += __int128(terms[i].stride) * terms[i].lowest;
    high += __int128(terms[i].stride) * terms[i].highest;
  }
  if (target < low || target > high) return false;
  if (from == terms.size()) return target == 0;
  const Term& term = terms[from];
  if (term.stride == 1) return true;  // the last term: every value between low and high occurs
  // Only multiples that leave a rest the smaller strides can reach.
  const __int128 rest_low = low - __int128(term.stride) * term.lowest,
                 rest_high = high - __int128(term.stride) * term.highest;
  const auto floor_div = [](__int128 a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); };
  const __int128 first = std::max<__int128>(term.lowest, -floor_div(-(target - rest_high), term.stride));
  const __int128 last = std::min<__int128>(term.highest, floor_div(target - rest_low, term.stride));
  for (__int128 multiple = first; multiple <= last; ++multiple)
    if (reachable(terms, from + 1, target - multiple * term.stride, budget)) return true;
  return false;
}

}  // namespace

bool bytes_overlap(const ByteBox& a, const ByteBox& b) {
  // A shared byte: a.base + sum(i * stride) = b.base + sum(j * stride). Dimensions of equal stride act as one.
  std::vector<Term> terms;
  const auto add = [&](int64_t stride, int64_t lowest, int64_t highest) {
    for (Term& term : terms) {
      if (term.stride == stride) {
        term.lowest += lowest;
        term.highest += highest;
        return;
      }
    }
    terms.push_back({stride, lowest, highest});
  };
  for (const auto& [extent, stride] : a.dimensions)
    if (extent > 1 && stride > 0) add(stride, 0, extent - 1);
  for (const auto& [extent, stride] : b.dimensions)
    if (extent > 1 && stride > 0) add(stride, -(extent - 1), 0);
  std::sort(terms.begin(), terms.end(), [](const Term& x, const Term& y) { return x.stride > y.stride; });
  int budget = 10000;
  return reachable(terms, 0, __int128(b.base) - __int128(a.base), budget);
}

ForwardProblem check_forward(const fa3_forward_params* given) {
  const fa3_forward_params params = whole_params(
      given, "fa3_forward_params", {offsetof(fa3_forward_params, sm_margin), offsetof(fa3_forward_params, q_scale)});
  ForwardProblem p;
  check_sizes(params, p);
  check_forward_dtypes(params, p);
  p.q = check_tensor("q", params.q, {p.batch, p.seqlen_q, p.heads, p.d});
  p.k = check_tensor("k", params.k, {p.batch, p.seqlen_k, p.kv_heads, p.d});
  p.v = check_tensor("v", params.v, {p.batch, p.seqlen_k, p.kv_heads, p.d_v}, p.dtype == FA3_E4M3);
  p.o = check_tensor("o", params.o, {p.batch, p.seqlen_q, p.heads, p.d_v});
  if (p.dtype == FA3_E4M3) {
    check_e4m3_layout("q", p.q, 3, params.device);
    check_e4m3_layout("k", p.k, 3, params.device);
    if (p.v_is_d_major() && p.seqlen_k > 1 && p.v.stride[1] != 1)
      invalid("v.stride[3] is " + to_string(p.v.stride[3]) + " and v.stride[1] " + to_string(p.v.stride[1]) +
              "; one of the two must be 1");
    check_e4m3_layout("v", p.v, p.v_is_d_major() ? 1 : 3, params.device);
  }
  std::vector<NamedBox> inputs = boxes_of(p.dtype, {{"q", &p.q}, {"k", &p.k}, {"v", &p.v}});
  p.q_scale = check_scales("q_scale", params.q_scale, p, p.heads, p.seqlen_q, inputs);
  p.k_scale = check_scales("k_scale", params.k_scale, p, p.kv_heads, p.seqlen_k, inputs);
  p.v_scale = check_scales("v_scale", params.v_scale, p, p.kv_heads, p.seqlen_k, inputs);
  if (!p.o.empty()) {
    check_distinct("o.stride", p.o.shape, p.o.stride);
    std::vector<NamedBox> outputs = boxes_of(p.o_dtype, {{"o", &p.o}});
    if (params.lse != nullptr) {
      p.lse = params.lse;
      p.lse_stride = check_lse(p, params.lse, params.lse_stride);
      check_distinct("lse_stride", lse_shape(p), p.lse_stride);
      outputs.push_back({"lse", byte_box(p.lse, lse_shape(p), p.lse_stride, sizeof(float))});
    }
    check_outputs_apart(outputs, inputs);
  }
  check_options(params, p);
  if (params.reserved != 0) invalid("reserved is " + to_string(params.reserved) + "; it must be 0");
  return p;
}

BackwardProblem check_backward(const fa3_backward_params* given) {
  const fa3_backward_params params = whole_params(given, "fa3_backward_params");
  BackwardProblem p;
  check_sizes(params, p);
  check_dtypes(params.device,
               {{"q", &params.q},
                {"k", &params.k},
                {"v", &params.v},
                {"d_o", &params.d_o},
                {"o", &params.o},
                {"dq", &params.dq},
                {"dk", &params.dk},
                {"dv", &params.dv}},
               p);
  if (p.dtype == FA3_E4M3)
    invalid(
        "q.dtype is FA3_E4M3 (3), which the forward pass alone has; it must be FA3_F16 (1), FA3_BF16 (2) or "
        "FA3_F32 (4)");
  const std::array<int64_t, 4> of_q = {p.batch, p.seqlen_q, p.heads, p.d}, of_o = {p.batch, p.seqlen_q, p.heads, p.d_v},
                               of_k = {p.batch, p.seqlen_k, p.kv_heads, p.d},
                               of_v = {p.batch, p.seqlen_k, p.kv_heads, p.d_v};
  p.d_o = check_tensor("d_o", params.d_o, of_o, true);
  p.q = check_tensor("q", params.q, of_q);
  p.k = check_tensor("k", params.k, of_k);
  p.v = check_tensor("v", params.v, of_v);
  p.o = check_tensor("o", params.o, of_o);
  p.dq = check_tensor("dq", params.dq, of_q);
  p.dk = check_tensor("dk", params.dk, of_k);
  p.dv = check_tensor("dv", params.dv, of_v);
  std::vector<NamedBox> inputs =
      boxes_of(p.dtype, {{"d_o", &p.d_o}, {"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"o", &p.o}});
  if (!p.o.empty()) {
    p.lse = params.lse;
    p.lse_stride = check_lse(p, params.lse, params.lse_stride);
    inputs.push_back({"lse", byte_box(p.lse, lse_shape(p), p.lse_stride, sizeof(float))});
  }
  for (const auto& [name, tensor] : {std::pair{"dq.stride", &p.dq}, {"dk.stride", &p.dk}, {"dv.stride", &p.dv}})
    if (!tensor->empty()) check_distinct(name, tensor->shape, tensor->stride);
  check_outputs_apart(boxes_of(p.dtype, {{"dq", &p.dq}, {"dk", &p.dk}, {"dv", &p.dv}}), inputs);
  check_options(params, p);
  p.deterministic = check_flag(params.deterministic, "deterministic");
  return p;
}

namespace {

/// The extents of the scales; of a whole tensor's there is one.
std::array<int64_t, 3> scales_shape(const QuantizeProblem& p) {
  if (p.scaling == FA3_SCALING_TENSOR) return {1, 1, 1};
  return {p.batch, p.scale.per_block ? p.heads : p.scale_heads, p.scale.per_block ? p.blocks() : 1};
}

/// p.scale, from everything else of p. y is not empty.
void check_quantizer_scales(const fa3_scales& scales, QuantizeProblem& p) {
  p.scale.per_block = check_flag(scales.per_block, "scale.per_block");
  p.scale.largest = check_largest(scales.largest, "scale");
  if (p.scaling != FA3_SCALING_GIVEN) {
    if (p.scale.per_block != (p.scaling == FA3_SCALING_BLOCK))
      invalid("scale.per_block is " + to_string(scales.per_block) + "; with scaling = " + to_string(p.scaling) +
              " it must be " + (p.scale.per_block ? "0" : "1, as FA3_SCALING_BLOCK (1) writes a scale for each block"));
    if (scales.data == nullptr)
      invalid("scale.data is null, but it is written; only with FA3_SCALING_GIVEN (4) it may be null");
  }
  if (p.scaling == FA3_SCALING_TENSOR)
    for (const auto& [i, extent] : {std::pair{0, p.batch}, {1, p.scale_heads}})
      if (extent > 1 && scales.stride[i] != 0)
        invalid("scale.stride[" + to_string(i) + "] is " + to_string(scales.stride[i]) +
                "; with FA3_SCALING_TENSOR (3) there is one scale, so it must be 0");
  if (scales.data == nullptr) return;
  check_pointer("scale.data", scales.data, sizeof(float));
  p.scale.data = scales.data;
  p.scale.stride = check_strides("scale.stride", scales_shape(p), scales.stride);
  check_reach("scale", scales_shape(p), p.scale.stride, sizeof(float));
  if (p.scaling != FA3_SCALING_GIVEN) check_distinct("scale.stride", scales_shape(p), p.scale.stride);
}

/// The embedding's tables, of which both are given.
void check_rope(const fa3_quantize_params& params, QuantizeProblem& p) {
  p.rope_d = params.rope_d;
  if (p.rope_d < 2 || p.rope_d > p.d || p.rope_d % 2 != 0)
    invalid("rope_d is " + to_string(p.rope_d) + "; it must be even, from 2 to d = " + to_string(p.d));
  if (params.rope_stride < 0)
    invalid("rope_stride is " + to_string(params.rope_stride) + "; negative strides are not allowed");
  p.rope_stride = p.seqlen > 1 ? params.rope_stride : 0;
  check_pointer("rope_cos", params.rope_cos, sizeof(float));
  check_pointer("rope_sin", params.rope_sin, sizeof(float));
  check_reach<2>("rope_cos", {p.seqlen, p.rope_d / 2}, {p.rope_stride, 1}, sizeof(float));
  p.rope_cos = params.rope_cos;
  p.rope_sin = params.rope_sin;
}

}  // namespace

QuantizeProblem check_quantize(const fa3_quantize_params* given) {
  const fa3_quantize_params params = whole_params(given, "fa3_quantize_params");
  QuantizeProblem p;
  if (params.device != FA3_DEVICE_CUDA && params.device != FA3_DEVICE_CPU)
    invalid("device is " + to_string(params.device) + "; it must be FA3_DEVICE_CUDA (1) or FA3_DEVICE_CPU (2)");
  if (params.scaling < FA3_SCALING_BLOCK || params.scaling > FA3_SCALING_GIVEN)
    invalid(
        "scaling is " + to_string(params.scaling) +
        "; it must be FA3_SCALING_BLOCK (1), FA3_SCALING_HEAD (2), FA3_SCALING_TENSOR (3) or FA3_SCALING_GIVEN (4)");
  p.scaling = fa3_scaling(params.scaling);
  p.batch = non_negative(params.batch, "batch");
  p.seqlen = non_negative(params.seqlen, "seqlen");
  p.heads = positive(params.heads, "heads");
  for (const auto& [extent, name] : {std::pair{p.batch, "batch"}, {p.seqlen, "seqlen"}, {p.heads, "heads"}})
    if (extent > (int64_t(1) << 31) - 1) invalid(string(name) + " is " + to_string(extent) + "; it must be below 2^31");
  p.scale_heads = params.scale_heads == 0 ? p.heads : params.scale_heads;
  if (p.scale_heads < 0 || p.heads % p.scale_heads != 0)
    invalid("scale_heads is " + to_string(p.scale_heads) + "; it must be a divisor of heads = " + to_string(p.heads) +
            ", or 0 for heads");
  p.d = params.d;
  if (p.d < 16 || p.d > 256 || p.d % 16 != 0)
    invalid("d is " + to_string(p.d) + "; it must be a multiple of 16 from 16 to 256");
  if (!known_dtype(params.x.dtype))
    invalid("x.dtype is " + to_string(params.x.dtype) +
            "; it must be FA3_F16 (1), FA3_BF16 (2) or, on cpu, FA3_F32 (4)");
  p.dtype = fa3_dtype(params.x.dtype);
  if (p.dtype == FA3_F32 && params.device == FA3_DEVICE_CUDA)
    throw Error(FA3_NOT_SUPPORTED, "x.dtype is FA3_F32 (4); on cuda it must be FA3_F16 (1) or FA3_BF16 (2)");
  if (params.y.dtype != FA3_E4M3) invalid("y.dtype is " + to_string(params.y.dtype) + "; it must be FA3_E4M3 (3)");
  const std::array<int64_t, 4> shape = {p.batch, p.seqlen, p.heads, p.d};
  p.x = check_tensor("x", params.x, shape);
  p.y = check_tensor("y", params.y, shape);
  p.rope_interleaved = check_flag(params.rope_interleaved, "rope_interleaved");
  p.rotate = check_flag(params.rotate, "rotate");
  p.seed = params.seed;
  if ((params.rope_cos == nullptr) != (params.rope_sin == nullptr))
    invalid(string(params.rope_cos == nullptr ? "rope_cos" : "rope_sin") +
            " is null, but the other table is given; both are needed, or neither");
  if (p.y.empty()) return p;
  check_distinct("y.stride", p.y.shape, p.y.stride);
  check_quantizer_scales(params.scale, p);
  if (params.rope_cos != nullptr) check_rope(params, p);

  std::vector<NamedBox> outputs = boxes_of(FA3_E4M3, {{"y", &p.y}}), inputs = boxes_of(p.dtype, {{"x", &p.x}});
  if (p.scale.data != nullptr)
    (p.scaling == FA3_SCALING_GIVEN ? inputs : outputs)
        .push_back({"scale", byte_box(p.scale.data, scales_shape(p), p.scale.stride, sizeof(float))});
  for (const auto& [name, table] : {std::pair{"rope_cos", p.rope_cos}, {"rope_sin", p.rope_sin}})
    if (table != nullptr)
      inputs.push_back({name, byte_box<2>(table, {p.seqlen, p.rope_d / 2}, {p.rope_stride, 1}, sizeof(float))});
  check_outputs_apart(outputs, inputs);
  return p;
}

void check_capability(int major, int minor, const char* name) {
  if (major == 9 && minor == 0) return;
  throw Error(
      FA3_NO_DEVICE,
      string(name) + " has compute capability " + to_string(major) + "." + to_string(minor) +
          "; fa3's kernels need a Hopper GPU (compute capability 9.0: H100, H200, GH200). Use the cpu device here");
}

}  // namespace fa3::api
