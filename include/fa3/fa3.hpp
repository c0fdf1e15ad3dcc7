// fa3 for C++: a thin header over the C ABI (fa3.h). Shapes are checked here, everything else below the ABI.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "fa3/fa3.h"
#include "fa3/tensor.hpp"

namespace fa3 {

/// Outcome of a call: code FA3_OK, or the reason in words.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(fa3_status code, std::string message) : code_(code), message_(std::move(message)) {}
  /// The status of a C call made just before, with its message.
  static Status of(fa3_status code) { return code == FA3_OK ? Status() : Status(code, fa3_last_error()); }

  bool ok() const { return code_ == FA3_OK; }
  explicit operator bool() const { return ok(); }
  fa3_status code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  fa3_status code_ = FA3_OK;
  std::string message_;
};

struct ForwardOptions {
  bool causal = false;                   ///< bottom-right aligned: row i sees keys j <= i + seqlen_k - seqlen_q
  std::optional<float> softmax_scale;    ///< default 1 / sqrt(d)
  int sm_margin = 0;                     ///< SMs the kernel leaves to others; ignored on cpu
  ScalesView q_scale, k_scale, v_scale;  ///< e4m3 only: what its values are multiplied by; without data 1
};

struct BackwardOptions {
  bool causal = false;                 ///< as in the forward pass
  std::optional<float> softmax_scale;  ///< default 1 / sqrt(d)
  bool deterministic = false;          ///< the same bits in every run; on cpu always so
  int sm_margin = 0;                   ///< SMs the main kernel leaves to others; ignored on cpu
};

/// Which rows share a scale; see fa3_scaling.
enum class Scaling : std::int32_t {
  block = FA3_SCALING_BLOCK,
  head = FA3_SCALING_HEAD,
  tensor = FA3_SCALING_TENSOR,
  given = FA3_SCALING_GIVEN
};

/// Rotary embedding of the first `features` features, an even number. cos, sin: [seqlen, features / 2], f32, on the
/// device of x.
struct Rope {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t features = 0;
  std::int64_t stride = 0;   ///< elements from one position to the next, in both tables
  bool interleaved = false;  ///< the pairs are features 2i, 2i + 1; else i, i + features / 2
};

struct QuantizeOptions {
  Scaling scaling = Scaling::block;
  std::optional<Rope> rope;  ///< applied first
  bool rotate = false;       ///< x' = (x D) H, which spreads outliers; for q and k with one seed, or for neither
  std::uint64_t seed = 0;    ///< of the signs D
};

/// Device memory for intermediate results, 256-byte aligned; not used on the cpu device.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

namespace detail {

template <class Pointer, std::size_t rank>
std::string shape_text(const BasicView<Pointer, rank>& view) {
  std::string text = "[";
  for (std::size_t i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string(view.shape[i]);
  return text + "]";
}

template <class Pointer>
fa3_tensor to_c(const BasicView<Pointer, 4>& view) {
  fa3_tensor tensor{};
  tensor.data = const_cast<void*>(static_cast<const void*>(view.data));
  tensor.dtype = static_cast<std::int32_t>(view.dtype);
  for (std::size_t i = 0; i < 4; ++i) tensor.stride[i] = view.stride[i];
  return tensor;
}

inline fa3_scales to_c(const ScalesView& view) {
  return {
      view.data, view.per_block, view.largest, {view.stride[0], view.stride[1], view.per_block ? view.stride[2] : 0}};
}

/// That `view` has the extents `shape`, called `letters`; else says what it has.
template <class Pointer, std::size_t rank>
Status expect_shape(const BasicView<Pointer, rank>& view, const char* name, const std::array<std::int64_t, rank>& shape,
                    const char* letters) {
  if (view.shape == shape) return Status();
  auto wanted = view;
  wanted.shape = shape;
  return Status(FA3_INVALID_ARGUMENT, std::string(name) + ": shape is " + shape_text(view) + ", expected " + letters +
                                          " = " + shape_text(wanted));
}

/// Blocks of rows that have a scale.
inline std::int64_t scale_blocks(std::int64_t seqlen) { return (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS; }

/// Scales that are not of blocks.
inline BasicView<const void*, 2> head_scales(const ScalesView& view) {
  return {view.data, {view.shape[0], view.shape[1]}, Dtype::f32};
}

/// The same of scales, whose extents are `of_blocks` or, if they are not of blocks, `of_heads`.
inline Status expect_shape(const ScalesView& view, const char* name, const std::array<std::int64_t, 3>& of_blocks,
                           const char* block_letters, const std::array<std::int64_t, 2>& of_heads,
                           const char* head_letters) {
  if (!view.per_block) return expect_shape(head_scales(view), name, of_heads, head_letters);
  return expect_shape(BasicView<const void*, 3>(view.data, view.shape, Dtype::f32), name, of_blocks, block_letters);
}

/// Fills what both passes have from q, k and v, and checks the tensors added to it against those.
template <class Params>
class ParamsBuilder {
 public:
  template <class Options>
  ParamsBuilder(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Options& options,
                Params& params)
      : params_(params), given_(q.device), device_(resolve(q.device)) {
    params_ = Params{};
    params_.struct_size = sizeof(params_);
    params_.api_version = FA3_API_VERSION;
    params_.device = static_cast<std::int32_t>(device_);
    params_.causal = options.causal;
    params_.batch = q.shape[0];
    params_.seqlen_q = q.shape[1];
    params_.heads = q.shape[2];
    params_.d = q.shape[3];
    params_.seqlen_k = k.shape[1];
    params_.kv_heads = k.shape[2];
    params_.d_v = v.shape[3];
    if (options.softmax_scale) {
      params_.softmax_scale = *options.softmax_scale;
      params_.softmax_scale_set = 1;
    }
    params_.sm_margin = options.sm_margin;
    like_q(q, "q", params_.q);
    like_k(k, "k", params_.k);
    like_v(v, "v", params_.v);
  }

  template <class Pointer>
  void like_q(const BasicView<Pointer, 4>& view, const char* name, fa3_tensor& to) {
    add(view, name, {params_.batch, params_.seqlen_q, params_.heads, params_.d}, "[batch, seqlen_q, heads, d]", to);
  }
  template <class Pointer>
  void like_k(const BasicView<Pointer, 4>& view, const char* name, fa3_tensor& to) {
    add(view, name, {params_.batch, params_.seqlen_k, params_.kv_heads, params_.d}, "[batch, seqlen_k, kv_heads, d]",
        to);
  }
  template <class Pointer>
  void like_v(const BasicView<Pointer, 4>& view, const char* name, fa3_tensor& to) {
    add(view, name, {params_.batch, params_.seqlen_k, params_.kv_heads, params_.d_v},
        "[batch, seqlen_k, kv_heads, d_v]", to);
  }
  template <class Pointer>
  void like_o(const BasicView<Pointer, 4>& view, const char* name, fa3_tensor& to) {
    add(view, name, {params_.batch, params_.seqlen_q, params_.heads, params_.d_v}, "[batch, seqlen_q, heads, d_v]", to);
  }
  /// Not the pointer: it is writable in one pass only.
  template <class Pointer>
  void lse(const BasicView<Pointer, 3>& view) {
    if (!status_) return;
    if (view.dtype != Dtype::f32) {
      status_ = Status(FA3_INVALID_ARGUMENT, "lse: its dtype must be f32");
      return;
    }
    status_ = expect_shape(view, "lse", {params_.batch, params_.heads, params_.seqlen_q}, "[batch, heads, seqlen_q]");
    if (status_) same_device(view.device, "lse");
    for (std::size_t i = 0; i < 3; ++i) params_.lse_stride[i] = view.stride[i];
  }
  /// Scales of a tensor of `heads` heads and `seqlen` rows, those of blocks being `block_letters`.
  void scales(const ScalesView& view, const char* name, std::int64_t heads, std::int64_t seqlen,
              const char* block_letters, fa3_scales& to) {
    if (!status_) return;
    if (view.data == nullptr) {
      to.largest = view.largest;
      return;
    }
    status_ = expect_shape(view, name, {params_.batch, heads, scale_blocks(seqlen)}, block_letters,
                           {params_.batch, params_.kv_heads}, "[batch, kv_heads]");
    if (status_) same_device(view.device, name);
    to = to_c(view);
  }

  /// The first thing that was wrong.
  Status status() const { return status_; }

 private:
  template <class Pointer>
  void add(const BasicView<Pointer, 4>& view, const char* name, const std::array<std::int64_t, 4>& shape,
           const char* letters, fa3_tensor& to) {
    if (!status_) return;
    status_ = expect_shape(view, name, shape, letters);
    if (status_) same_device(view.device, name);
    to = to_c(view);
  }
  void same_device(Device other, const char* name) {
    if (other != given_ && resolve(other) != device_)
      status_ = Status(FA3_INVALID_ARGUMENT, std::string(name) + ": is on another device than q");
  }

  Params& params_;
  Device given_, device_;
  Status status_;
};

/// Fills the C parameters from views whose shapes and devices agree; says which argument does not.
inline Status forward_params(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                             const std::optional<RowTensor>& lse, const ForwardOptions& options,
                             fa3_forward_params& params) {
  ParamsBuilder<fa3_forward_params> builder(q, k, v, options, params);
  builder.like_o(o, "o", params.o);
  if (lse) {
    builder.lse(*lse);
    if (builder.status() && lse->data == nullptr && params.batch > 0 && params.heads > 0 && params.seqlen_q > 0)
      return Status(FA3_INVALID_ARGUMENT,
                    "lse.data is null, but the tensor is not empty; leave lse out if it is not wanted");
    params.lse = static_cast<float*>(lse->data);
  }
  constexpr const char* q_blocks = "[batch, heads, ceil(seqlen_q / 128)]";
  constexpr const char* k_blocks = "[batch, kv_heads, ceil(seqlen_k / 128)]";
  builder.scales(options.q_scale, "q_scale", params.heads, params.seqlen_q, q_blocks, params.q_scale);
  builder.scales(options.k_scale, "k_scale", params.kv_heads, params.seqlen_k, k_blocks, params.k_scale);
  builder.scales(options.v_scale, "v_scale", params.kv_heads, params.seqlen_k, k_blocks, params.v_scale);
  return builder.status();
}

/// The same for the backward pass.
inline Status backward_params(const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                              const ConstTensor& o, const ConstRowTensor& lse, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv, const BackwardOptions& options, fa3_backward_params& params) {
  ParamsBuilder<fa3_backward_params> builder(q, k, v, options, params);
  builder.like_o(d_o, "d_o", params.d_o);
  builder.like_o(o, "o", params.o);
  builder.lse(lse);
  builder.like_q(dq, "dq", params.dq);
  builder.like_k(dk, "dk", params.dk);
  builder.like_v(dv, "dv", params.dv);
  params.lse = static_cast<const float*>(lse.data);
  params.deterministic = options.deterministic;
  return builder.status();
}

/// The same for the quantiser.
inline Status quantize_params(const ConstTensor& x, const Tensor& y, const ScalesView& scale,
                              const QuantizeOptions& options, fa3_quantize_params& params) {
  const Device device = resolve(x.device);
  const auto [batch, seqlen, heads, d] = x.shape;
  params = {};
  params.struct_size = sizeof(params);
  params.api_version = FA3_API_VERSION;
  params.device = static_cast<std::int32_t>(device);
  params.scaling = static_cast<std::int32_t>(options.scaling);
  params.batch = batch;
  params.seqlen = seqlen;
  params.heads = heads;
  params.d = d;
  params.x = to_c(x);
  params.y = to_c(y);
  params.rotate = options.rotate;
  params.seed = options.seed;
  if (Status s = expect_shape(y, "y", x.shape, "[batch, seqlen, heads, d]"); !s) return s;
  if (scale.data != nullptr) {
    Status s = expect_shape(scale, "scale", {batch, heads, scale_blocks(seqlen)}, "[batch, heads, ceil(seqlen / 128)]",
                            {batch, scale.shape[1]}, "[batch, a divisor of heads]");
    if (s && (scale.shape[1] < 1 || heads % scale.shape[1] != 0))
      s = Status(FA3_INVALID_ARGUMENT, "scale: shape is " + shape_text(head_scales(scale)) +
                                           "; the second extent must be a divisor of heads = " + std::to_string(heads));
    if (!s) return s;
    params.scale_heads = scale.per_block ? 0 : scale.shape[1];
  }
  params.scale = to_c(scale);
  for (const auto& [other, name] : {std::pair{y.device, "y"}, {scale.data ? scale.device : x.device, "scale"}})
    if (other != x.device && resolve(other) != device)
      return Status(FA3_INVALID_ARGUMENT, std::string(name) + ": is on another device than x");
  if (options.rope) {
    params.rope_cos = options.rope->cos;
    params.rope_sin = options.rope->sin;
    params.rope_stride = options.rope->stride;
    params.rope_d = options.rope->features;
    params.rope_interleaved = options.rope->interleaved;
    if (params.rope_cos == nullptr && params.rope_sin == nullptr && x.shape[0] > 0 && x.shape[1] > 0 && x.shape[2] > 0)
      return Status(FA3_INVALID_ARGUMENT, "rope: cos and sin are null; leave rope out if it is not wanted");
  }
  return Status();
}

}  // namespace detail

/// Bytes of workspace forward() needs for these arguments; 0 on the cpu device.
inline Status forward_workspace_size(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                                     const std::optional<RowTensor>& lse, const ForwardOptions& options,
                                     std::size_t& bytes) {
  fa3_forward_params params;
  if (Status s = detail::forward_params(q, k, v, o, lse, options, params); !s) return s;
  return Status::of(fa3_forward_workspace_size(&params, &bytes));
}

/// Whether forward() would take these arguments; pure host.
inline Status forward_supported(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                                const std::optional<RowTensor>& lse = {}, const ForwardOptions& options = {}) {
  fa3_forward_params params;
  if (Status s = detail::forward_params(q, k, v, o, lse, options, params); !s) return s;
  return Status::of(fa3_forward_supported(&params));
}

/// Name of the kernel forward() runs for these arguments; pure host. `name` lives as long as the program.
inline Status forward_kernel(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                             const std::optional<RowTensor>& lse, const ForwardOptions& options, const char*& name) {
  fa3_forward_params params;
  if (Status s = detail::forward_params(q, k, v, o, lse, options, params); !s) return s;
  return Status::of(fa3_forward_kernel(&params, &name));
}

/// O = softmax(scale * Q K^T + mask) V and, if wanted, LSE.
///   q [batch, seqlen_q, heads, d]   k [batch, seqlen_k, kv_heads, d]   v [batch, seqlen_k, kv_heads, d_v]
///   o [batch, seqlen_q, heads, d_v] lse [batch, heads, seqlen_q], f32, natural logarithm
/// q, k, v and o have one dtype, or q, k and v are e4m3, with the scales of `options`, and o is f16 or bf16.
/// On cuda the work is enqueued on `stream`; on cpu it is done on return. If the status is not ok, nothing was written.
inline Status forward(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                      const std::optional<RowTensor>& lse = {}, const ForwardOptions& options = {},
                      Workspace workspace = {}, fa3_stream stream = nullptr) {
  fa3_forward_params params;
  if (Status s = detail::forward_params(q, k, v, o, lse, options, params); !s) return s;
  return Status::of(fa3_forward(&params, workspace.data, workspace.bytes, stream));
}

/// As forward_workspace_size(), for backward().
inline Status backward_workspace_size(const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k,
                                      const ConstTensor& v, const ConstTensor& o, const ConstRowTensor& lse,
                                      const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                      const BackwardOptions& options, std::size_t& bytes) {
  fa3_backward_params params;
  if (Status s = detail::backward_params(d_o, q, k, v, o, lse, dq, dk, dv, options, params); !s) return s;
  return Status::of(fa3_backward_workspace_size(&params, &bytes));
}

/// As forward_supported(), for backward().
inline Status backward_supported(const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k,
                                 const ConstTensor& v, const ConstTensor& o, const ConstRowTensor& lse,
                                 const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                 const BackwardOptions& options = {}) {
  fa3_backward_params params;
  if (Status s = detail::backward_params(d_o, q, k, v, o, lse, dq, dk, dv, options, params); !s) return s;
  return Status::of(fa3_backward_supported(&params));
}

/// As forward_kernel(), for backward().
inline Status backward_kernel(const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                              const ConstTensor& o, const ConstRowTensor& lse, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv, const BackwardOptions& options, const char*& name) {
  fa3_backward_params params;
  if (Status s = detail::backward_params(d_o, q, k, v, o, lse, dq, dk, dv, options, params); !s) return s;
  return Status::of(fa3_backward_kernel(&params, &name));
}

/// Gradients of a scalar with respect to q, k and v, from d_o, its gradient with respect to o, and the o and lse of the
/// forward pass (or of a longer key sequence that k and v are a part of: see fa3_backward_params).
///   d_o, o [batch, seqlen_q, heads, d_v]   lse [batch, heads, seqlen_q], f32   dq, dk, dv: of the shapes of q, k, v
/// On cuda the work is enqueued on `stream`; on cpu it is done on return. If the status is not ok, nothing was written.
inline Status backward(const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                       const ConstTensor& o, const ConstRowTensor& lse, const Tensor& dq, const Tensor& dk,
                       const Tensor& dv, const BackwardOptions& options = {}, Workspace workspace = {},
                       fa3_stream stream = nullptr) {
  fa3_backward_params params;
  if (Status s = detail::backward_params(d_o, q, k, v, o, lse, dq, dk, dv, options, params); !s) return s;
  return Status::of(fa3_backward(&params, workspace.data, workspace.bytes, stream));
}

/// As forward_workspace_size(), for quantize().
inline Status quantize_workspace_size(const ConstTensor& x, const Tensor& y, const ScalesView& scale,
                                      const QuantizeOptions& options, std::size_t& bytes) {
  fa3_quantize_params params;
  if (Status s = detail::quantize_params(x, y, scale, options, params); !s) return s;
  return Status::of(fa3_quantize_workspace_size(&params, &bytes));
}

/// As forward_supported(), for quantize().
inline Status quantize_supported(const ConstTensor& x, const Tensor& y, const ScalesView& scale,
                                 const QuantizeOptions& options = {}) {
  fa3_quantize_params params;
  if (Status s = detail::quantize_params(x, y, scale, options, params); !s) return s;
  return Status::of(fa3_quantize_supported(&params));
}

/// y = e4m3(x' / scale), x' being x after the embedding and the rotation of the options.
///   x [batch, seqlen, heads, d], f16 or bf16, on cpu also f32   y: of x's shape, e4m3
///   scale: written but for Scaling::given. Scaling::block: ScalesView::of_blocks. head: of_heads, of heads or, for
///     a q, kv_heads of them. tensor: of_tensor. given: any, or one without data: 1. `largest` is obeyed: no y is
///     larger in size
/// On cuda the work is enqueued on `stream`; on cpu it is done on return. If the status is not ok, nothing was written.
inline Status quantize(const ConstTensor& x, const Tensor& y, const ScalesView& scale,
                       const QuantizeOptions& options = {}, Workspace workspace = {}, fa3_stream stream = nullptr) {
  fa3_quantize_params params;
  if (Status s = detail::quantize_params(x, y, scale, options, params); !s) return s;
  return Status::of(fa3_quantize(&params, workspace.data, workspace.bytes, stream));
}

}  // namespace fa3
