// A backward problem with memory of its own, and the judgement of a result.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "attention_case.hpp"
#include "reference/backward.hpp"

namespace fa3::test {

/// The forward problem's inputs, normal d_o, and poisoned gradients. prepare() gives o and lse their values.
class GradientCase : public AttentionCase {
 public:
  explicit GradientCase(const Shape& shape, unsigned seed = 1) : AttentionCase(shape, seed) {
    const std::int64_t b = shape.batch, q = shape.seqlen_q, k = shape.seqlen_k;
    d_o = allocate({b, q, shape.heads, shape.d_v}, shape.layout, d_o_memory_);
    dq = allocate({b, q, shape.heads, shape.d}, shape.layout, memory_[0]);
    dk = allocate({b, k, shape.kv_heads, shape.d}, shape.layout, memory_[1]);
    dv = allocate({b, k, shape.kv_heads, shape.d_v}, shape.layout, memory_[2]);
    std::mt19937 random(seed + 1000);
    std::normal_distribution<float> normal;
    for_each(d_o, [&](auto n, auto s, auto h, auto c) { set(d_o, n, s, h, c, normal(random)); });
  }

  /// What is to be differentiated, with what problem holds now.
  BackwardProblem backward() const {
    BackwardProblem p;
    static_cast<Problem&>(p) = problem;
    p.d_o = d_o;
    p.q = problem.q, p.k = problem.k, p.v = problem.v, p.o = problem.o;
    p.lse = problem.lse;
    p.lse_stride = problem.lse_stride;
    p.dq = dq, p.dk = dk, p.dv = dv;
    return p;
  }

  /// Sets o and lse to `forward`, rounded.
  void prepare(const reference::Result& forward) {
    const ForwardProblem& p = problem;
    for_each(p.o, [&](auto b, auto s, auto h, auto c) {
      set(p.o, b, s, h, c, float(forward.o[std::size_t(((b * p.seqlen_q + s) * p.heads + h) * p.d_v + c)]));
    });
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < p.heads; ++h)
        for (std::int64_t i = 0; i < p.seqlen_q; ++i)
          p.lse[b * p.lse_stride[0] + h * p.lse_stride[1] + i * p.lse_stride[2]] =
              float(forward.lse[std::size_t((b * p.heads + h) * p.seqlen_q + i)]);
  }

  void poison_gradients() {
    for (auto& memory : memory_)
      with_dtype(problem.dtype, [&]<class T>(T) {
        std::fill_n(reinterpret_cast<T*>(memory.data()), memory.size() / sizeof(T), from_float<T>(poison()));
      });
  }
  /// The gradients' memory, gaps and all.
  std::vector<std::byte> gradient_bytes() const {
    std::vector<std::byte> bytes;
    for (const auto& memory : memory_) bytes.insert(bytes.end(), memory.begin(), memory.end());
    return bytes;
  }
  /// Elements of the gradients' memory that were changed, less those of the gradients.
  std::int64_t gradient_gaps_written() const {
    std::int64_t changed = 0;
    for (const auto& memory : memory_)
      with_dtype(problem.dtype, [&]<class T>(T) {
        const T* x = reinterpret_cast<const T*>(memory.data());
        for (std::size_t i = 0; i < memory.size() / sizeof(T); ++i) changed += to_float(x[i]) != poison();
      });
    for (const TensorRef* t : {&dq, &dk, &dv}) changed -= t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
    return changed;
  }

  TensorRef d_o, dq, dk, dv;

 private:
  std::vector<std::byte> d_o_memory_, memory_[3];
};

/// The exact gradients and the errors allowed against them: twice that of the plain computation (four times in f32,
/// where that is no worse than what it judges) plus a floor for the rounding of the gradient itself.
struct GradientExpectation {
  explicit GradientExpectation(const GradientCase& c, const reference::Result& forward)
      : exact(reference::backward(c.backward(), forward)), plain(reference::plain_backward(c.backward())) {
    for (int i = 0; i < 3; ++i) {
      const std::vector<double>&e = of(exact, i), &p = of(plain, i);
      double plain_error = 0, floor = 0;
      with_dtype(c.problem.dtype, [&]<class T>(T) {
        const auto round = [](float x) { return to_float(from_float<T>(x)); };
        for (std::size_t n = 0; n < e.size(); ++n) {
          if (!std::isfinite(e[n])) continue;
          if (std::isfinite(p[n])) plain_error = std::max(plain_error, std::abs(p[n] - e[n]));
          floor = std::max(floor, std::abs(double(round(float(e[n] + 0.3))) - 0.3 - e[n]));
        }
      });
      tolerance[i] = (c.problem.dtype == FA3_F32 ? 4 : 2) * plain_error + 2 * floor;
    }
  }

  /// "" if the gradients are right, else what is wrong first.
  std::string complaint(const GradientCase& got) const {
    std::string text;
    const TensorRef* tensors[] = {&got.dq, &got.dk, &got.dv};
    const char* names[] = {"dq", "dk", "dv"};
    for (int i = 0; i < 3; ++i) {
      std::size_t n = 0;
      AttentionCase::for_each(*tensors[i], [&](auto b, auto s, auto h, auto c) {
        const double ref = of(exact, i)[n++], value = got.get(*tensors[i], b, s, h, c);
        const bool right = std::isfinite(ref) ? std::abs(value - ref) <= tolerance[i] : !std::isfinite(value);
        if (!right && text.empty())
          text = std::string(names[i]) + " of batch " + std::to_string(b) + ", row " + std::to_string(s) + ", head " +
                 std::to_string(h) + ", feature " + std::to_string(c) + " is " + std::to_string(value) + ", expected " +
                 std::to_string(ref) + ", tolerance " + std::to_string(tolerance[i]);
      });
    }
    if (const std::int64_t gaps = got.gradient_gaps_written(); gaps != 0)
      text += " elements written that are not the gradients': " + std::to_string(gaps);
    return text;
  }

  static const std::vector<double>& of(const reference::Gradients& g, int i) {
    return i == 0 ? g.dq : i == 1 ? g.dk : g.dv;
  }

  reference::Gradients exact, plain;
  double tolerance[3];
};

}  // namespace fa3::test
