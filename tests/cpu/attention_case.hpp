// A forward problem with memory of its own, and the judgement of a result.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dtype.hpp"
#include "problem.hpp"
#include "reference/forward.hpp"

namespace fa3::test {

/// Where the elements of a tensor lie. `gaps`: between rows, heads and batches there is memory that is not the
/// tensor's.
enum class Layout { dense, head_major, gaps };

struct Shape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, seqlen_q = 1, seqlen_k = 1, d = 64, d_v = 64;
  bool causal = false;
  fa3_dtype dtype = FA3_F16;
  Layout layout = Layout::dense;
};

class AttentionCase {
 public:
  explicit AttentionCase(const Shape& shape, unsigned seed = 1) {
    problem.dtype = shape.dtype;
    problem.batch = shape.batch;
    problem.heads = shape.heads;
    problem.kv_heads = shape.kv_heads;
    problem.seqlen_q = shape.seqlen_q;
    problem.seqlen_k = shape.seqlen_k;
    problem.d = shape.d;
    problem.d_v = shape.d_v;
    problem.causal = shape.causal;
    problem.softmax_scale = 1 / std::sqrt(float(shape.d));
    problem.q = allocate({shape.batch, shape.seqlen_q, shape.heads, shape.d}, shape.layout, q_memory_);
    problem.k = allocate({shape.batch, shape.seqlen_k, shape.kv_heads, shape.d}, shape.layout, k_memory_);
    problem.v = allocate({shape.batch, shape.seqlen_k, shape.kv_heads, shape.d_v}, shape.layout, v_memory_);
    problem.o = allocate({shape.batch, shape.seqlen_q, shape.heads, shape.d_v}, shape.layout, o_memory_);
    const std::int64_t lse_row = shape.layout == Layout::gaps ? 3 : 1;
    problem.lse_stride = {shape.heads * shape.seqlen_q * lse_row, shape.seqlen_q * lse_row, lse_row};
    lse_memory_.assign(std::size_t(shape.batch * shape.heads * shape.seqlen_q * lse_row), poison());
    problem.lse = lse_memory_.data();
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (const TensorRef* tensor : {&problem.q, &problem.k, &problem.v}) {
      for_each(*tensor, [&](auto b, auto s, auto h, auto c) { set(*tensor, b, s, h, c, normal(random)); });
    }
  }

  AttentionCase(const AttentionCase&) = delete;

  float get(const TensorRef& t, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t c) const {
    return with_dtype(problem.dtype,
                      [&]<class T>(T) { return to_float(static_cast<const T*>(t.data)[offset(t, b, s, h, c)]); });
  }
  void set(const TensorRef& t, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t c, float x) {
    with_dtype(problem.dtype, [&]<class T>(T) { static_cast<T*>(t.data)[offset(t, b, s, h, c)] = from_float<T>(x); });
  }
  template <class F>
  static void for_each(const TensorRef& t, F f) {
    for (std::int64_t b = 0; b < t.shape[0]; ++b)
      for (std::int64_t s = 0; s < t.shape[1]; ++s)
        for (std::int64_t h = 0; h < t.shape[2]; ++h)
          for (std::int64_t c = 0; c < t.shape[3]; ++c) f(b, s, h, c);
  }
  float lse(std::int64_t b, std::int64_t h, std::int64_t row) const {
    return problem.lse[b * problem.lse_stride[0] + h * problem.lse_stride[1] + row * problem.lse_stride[2]];
  }

  /// Fills outputs, and the gaps between their elements, with a value no result has.
  void poison_outputs() {
    with_dtype(problem.dtype, [&]<class T>(T) {
      std::fill_n(static_cast<T*>(problem.o.data), o_memory_.size() / sizeof(T), from_float<T>(poison()));
    });
    std::fill(lse_memory_.begin(), lse_memory_.end(), poison());
  }
  /// The outputs' memory, gaps and all.
  std::vector<std::byte> output_bytes() const {
    std::vector<std::byte> bytes = o_memory_;
    const auto* lse = reinterpret_cast<const std::byte*>(lse_memory_.data());
    bytes.insert(bytes.end(), lse, lse + lse_memory_.size() * sizeof(float));
    return bytes;
  }
  /// Elements of o and lse memory that are not the tensors' and were changed.
  std::int64_t gaps_written() const {
    std::int64_t changed = 0;
    with_dtype(problem.dtype, [&]<class T>(T) {
      const T* o = reinterpret_cast<const T*>(o_memory_.data());
      for (std::size_t i = 0; i < o_memory_.size() / sizeof(T); ++i) changed += to_float(o[i]) != poison();
    });
    for (const float x : lse_memory_) changed += x != poison();
    const std::int64_t rows = problem.batch * problem.heads * problem.seqlen_q;
    return changed - rows * (problem.d_v + 1);
  }
  static constexpr float poison() { return -12288; }  // exact in every dtype

  ForwardProblem problem;

 protected:
  static std::int64_t offset(const TensorRef& t, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t c) {
    return b * t.stride[0] + s * t.stride[1] + h * t.stride[2] + c;
  }

  TensorRef allocate(std::array<std::int64_t, 4> shape, Layout layout, std::vector<std::byte>& memory) const {
    const auto [batch, seqlen, heads, width] = shape;
    TensorRef tensor{nullptr, shape, {}};
    std::int64_t elements = batch * seqlen * heads * width;
    if (layout == Layout::dense) tensor.stride = {seqlen * heads * width, heads * width, width, 1};
    if (layout == Layout::head_major) tensor.stride = {seqlen * heads * width, width, seqlen * width, 1};
    if (layout == Layout::gaps) {
      const std::int64_t head = width + 3, row = heads * head + 5;
      tensor.stride = {seqlen * row + 7, row, head, 1};
      elements = batch * tensor.stride[0];
    }
    const std::size_t bytes = element_bytes(problem.dtype);
    memory.resize(std::size_t(elements) * bytes);
    tensor.data = memory.data();
    // NaN between the elements: who reads a gap shows it.
    with_dtype(problem.dtype, [&]<class T>(T) {
      std::fill_n(static_cast<T*>(tensor.data), elements, from_float<T>(std::numeric_limits<float>::quiet_NaN()));
    });
    return tensor;
  }

 private:
  std::vector<std::byte> q_memory_, k_memory_, v_memory_, o_memory_;
  std::vector<float> lse_memory_;
};

/// The exact result and the errors allowed against it: in O twice that of the plain computation plus a floor for the
/// rounding of O itself.
struct Expectation {
  explicit Expectation(const ForwardProblem& problem, int threads = 1)
      : exact(reference::forward(problem, threads)), plain(reference::plain_forward(problem, threads)) {
    double plain_error = 0, floor = 0;
    with_dtype(problem.dtype, [&]<class T>(T) {
      const auto round = [](float x) { return to_float(from_float<T>(x)); };
      for (std::size_t i = 0; i < exact.o.size(); ++i) {
        const double ref = exact.o[i];
        if (!std::isfinite(ref)) continue;
        // Where the plain computation overflows (f16 scores above 65504) it is no yardstick.
        if (std::isfinite(plain.o[i])) plain_error = std::max(plain_error, std::abs(plain.o[i] - ref));
        floor = std::max(floor, std::abs(double(round(float(ref + 0.3))) - 0.3 - ref));
      }
    });
    tolerance = 2 * plain_error + 2 * floor;
  }

  /// "" if the outputs are right, else what is wrong first.
  std::string complaint(const AttentionCase& got) const {
    const ForwardProblem& p = got.problem;
    std::string text;
    const auto complain = [&](const char* what, std::int64_t b, std::int64_t row, std::int64_t h, double value,
                              double ref) {
      if (!text.empty()) return;
      text = std::string(what) + " of batch " + std::to_string(b) + ", head " + std::to_string(h) + ", row " +
             std::to_string(row) + " is " + std::to_string(value) + ", expected " + std::to_string(ref) +
             ", tolerance " + std::to_string(tolerance);
    };
    AttentionCase::for_each(p.o, [&](auto b, auto row, auto h, auto c) {
      const double ref = exact.o[std::size_t(((b * p.seqlen_q + row) * p.heads + h) * p.d_v + c)];
      const double value = got.get(p.o, b, row, h, c);
      const bool right = std::isnan(ref)   ? std::isnan(value)
                         : std::isinf(ref) ? value == ref
                                           : std::abs(value - ref) <= tolerance;
      if (!right) complain("o", b, row, h, value, ref);
    });
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < p.heads; ++h)
        for (std::int64_t row = 0; row < p.seqlen_q; ++row) {
          const double ref = exact.lse[std::size_t((b * p.heads + h) * p.seqlen_q + row)], value = got.lse(b, h, row);
          const bool right = std::isnan(ref)   ? std::isnan(value)
                             : std::isinf(ref) ? value == ref
                                               : std::abs(value - ref) <= 1e-4 + std::ldexp(std::abs(ref), -22);
          if (!right) complain("lse", b, row, h, value, ref);
        }
    if (const std::int64_t gaps = got.gaps_written(); gaps != 0)
      text += " elements written that are not the outputs': " + std::to_string(gaps);
    return text;
  }

  reference::Result exact, plain;
  double tolerance = 0;
};

}  // namespace fa3::test
