// fa3 for C++: a thin header over the C ABI (fa3.h). Shapes are checked here, everything else below the ABI.
#pragma once

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
  bool causal = false;                 ///< bottom-right aligned: row i sees keys j <= i + seqlen_k - seqlen_q
  std::optional<float> softmax_scale;  ///< default 1 / sqrt(d)
  int sm_margin = 0;                   ///< SMs the kernel leaves to others; ignored on cpu
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

/// Fills the C parameters from views whose shapes and devices agree; says which argument does not.
inline Status forward_params(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                             const std::optional<RowTensor>& lse, const ForwardOptions& options,
                             fa3_forward_params& params) {
  const auto expect = [](const auto& view, const char* name, const auto& shape, const char* letters) {
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (view.shape[i] != shape[i]) {
        auto wanted = view;
        wanted.shape = shape;
        return Status(FA3_INVALID_ARGUMENT, std::string(name) + ": shape is " + shape_text(view) + ", expected " +
                                                letters + " = " + shape_text(wanted));
      }
    }
    return Status();
  };
  using Shape = std::array<std::int64_t, 4>;
  const auto [batch, seqlen_q, heads, d] = q.shape;
  const std::int64_t seqlen_k = k.shape[1], kv_heads = k.shape[2], d_v = v.shape[3];
  if (Status s = expect(k, "k", Shape{batch, seqlen_k, kv_heads, d}, "[batch, seqlen_k, kv_heads, d]"); !s) return s;
  if (Status s = expect(v, "v", Shape{batch, seqlen_k, kv_heads, d_v}, "[batch, seqlen_k, kv_heads, d_v]"); !s)
    return s;
  if (Status s = expect(o, "o", Shape{batch, seqlen_q, heads, d_v}, "[batch, seqlen_q, heads, d_v]"); !s) return s;

  const Device device = resolve(q.device);
  const auto same_device = [&](Device other, const char* name) {
    if (other == q.device || resolve(other) == device) return Status();
    return Status(FA3_INVALID_ARGUMENT, std::string(name) + ": is on another device than q");
  };
  if (Status s = same_device(k.device, "k"); !s) return s;
  if (Status s = same_device(v.device, "v"); !s) return s;
  if (Status s = same_device(o.device, "o"); !s) return s;

  params = fa3_forward_params{};
  params.struct_size = sizeof(params);
  params.api_version = FA3_API_VERSION;
  params.device = static_cast<std::int32_t>(device);
  params.causal = options.causal;
  params.batch = batch;
  params.heads = heads;
  params.kv_heads = kv_heads;
  params.seqlen_q = seqlen_q;
  params.seqlen_k = seqlen_k;
  params.d = d;
  params.d_v = d_v;
  params.q = to_c(q);
  params.k = to_c(k);
  params.v = to_c(v);
  params.o = to_c(o);
  if (lse) {
    if (lse->dtype != Dtype::f32) return Status(FA3_INVALID_ARGUMENT, "lse: its dtype must be f32");
    if (Status s = expect(*lse, "lse", std::array<std::int64_t, 3>{batch, heads, seqlen_q}, "[batch, heads, seqlen_q]");
        !s)
      return s;
    if (Status s = same_device(lse->device, "lse"); !s) return s;
    if (lse->data == nullptr && batch > 0 && heads > 0 && seqlen_q > 0)
      return Status(FA3_INVALID_ARGUMENT,
                    "lse.data is null, but the tensor is not empty; leave lse out if it is not wanted");
    params.lse = static_cast<float*>(lse->data);
    for (std::size_t i = 0; i < 3; ++i) params.lse_stride[i] = lse->stride[i];
  }
  if (options.softmax_scale) {
    params.softmax_scale = *options.softmax_scale;
    params.softmax_scale_set = 1;
  }
  params.sm_margin = options.sm_margin;
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
/// On cuda the work is enqueued on `stream`; on cpu it is done on return. If the status is not ok, nothing was written.
inline Status forward(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                      const std::optional<RowTensor>& lse = {}, const ForwardOptions& options = {},
                      Workspace workspace = {}, fa3_stream stream = nullptr) {
  fa3_forward_params params;
  if (Status s = detail::forward_params(q, k, v, o, lse, options, params); !s) return s;
  return Status::of(fa3_forward(&params, workspace.data, workspace.bytes, stream));
}

}  // namespace fa3
