// A backward problem with data of its own, and a judgement of the gradients: fp64 by the definition, naive on purpose.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dtype.hpp"
#include "problem.hpp"

namespace fa3::test {

enum class Layout {
  bshd,          // dense
  bhsd,          // heads outside
  odd_rows,      // rows that do not begin at multiples of 16 bytes, which TMA cannot address
  repeat_heads,  // stride 0
  repeat_batch
};

struct GradientCase {
  std::string name;
  fa3_dtype dtype = FA3_F16;
  std::int64_t batch = 1, heads = 1, kv_heads = 1, seqlen_q = 1, seqlen_k = 1, d = 64, d_v = 64;
  bool causal = false;
  float softmax_scale = 0;
  double size = 1;  // of the numbers in Q and K
  Layout q = Layout::bshd, k = Layout::bshd, v = Layout::bshd, o = Layout::bshd, d_o = Layout::bshd;
  Layout dq = Layout::bshd, dk = Layout::bshd, dv = Layout::bshd;
  bool lse_transposed = false;
  bool deterministic = false;
  int sm_margin = 0;
  /// NaN in Q, K, V and dO of this batch entry; -1: nowhere. Its gradients are not judged.
  int poisoned_batch = -1;
};

/// A tensor in 16 bits, with NaN in all memory beside its elements.
struct GradientTensor {
  std::vector<std::uint16_t> memory;
  TensorRef ref;

  GradientTensor(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t features, Layout layout) {
    std::int64_t row = features, offset = 0;
    ref.shape = {batch, length, heads, features};
    switch (layout) {
      case Layout::odd_rows:
        row = features + 3;
        offset = 1;
        [[fallthrough]];
      case Layout::bshd: ref.stride = {length * heads * row, heads * row, row, 1}; break;
      case Layout::bhsd: ref.stride = {length * heads * row, row, length * row, 1}; break;
      case Layout::repeat_heads: ref.stride = {length * row, row, 0, 1}; break;
      case Layout::repeat_batch: ref.stride = {0, heads * row, row, 1}; break;
    }
    memory.assign(std::size_t(batch * length * heads * row + 16), 0x7fff);  // NaN in both types
    // A multiple of 16 bytes, so that the layout alone decides about alignment.
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    ref.data = memory.data() + (16 - address % 16) % 16 / 2 + offset;
    for (std::size_t i = 0; i < 4; ++i)
      if (ref.shape[i] <= 1) ref.stride[i] = 0;
  }
  GradientTensor(const GradientTensor&) = delete;

  std::uint16_t& at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t f) const {
    return static_cast<std::uint16_t*>(ref.data)[b * ref.stride[0] + s * ref.stride[1] + h * ref.stride[2] + f];
  }
};

struct Gradients {
  std::vector<double> dq, dk, dv;  // dense [batch, sequence, head, feature]
};

class GradientProblem {
 public:
  explicit GradientProblem(const GradientCase& c, unsigned seed)
      : c_(c),
        q_(c.batch, c.seqlen_q, c.heads, c.d, c.q),
        k_(c.batch, c.seqlen_k, c.kv_heads, c.d, c.k),
        v_(c.batch, c.seqlen_k, c.kv_heads, c.d_v, c.v),
        o_(c.batch, c.seqlen_q, c.heads, c.d_v, c.o),
        d_o_(c.batch, c.seqlen_q, c.heads, c.d_v, c.d_o),
        dq_(c.batch, c.seqlen_q, c.heads, c.d, c.dq),
        dk_(c.batch, c.seqlen_k, c.kv_heads, c.d, c.dk),
        dv_(c.batch, c.seqlen_k, c.kv_heads, c.d_v, c.dv),
        lse_(std::size_t(c.batch * c.heads * c.seqlen_q), std::numeric_limits<float>::quiet_NaN()) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const auto fill = [&](const GradientTensor& tensor, double size) {
      each(tensor, [&](std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::uint16_t& x) {
        x = bits(float(size * normal(random)));
      });
    };
    fill(q_, c.size);
    fill(k_, c.size);
    fill(v_, 1);
    fill(d_o_, 1);
    Problem& common = problem;
    common.dtype = c.dtype;
    common.batch = c.batch;
    common.heads = c.heads;
    common.kv_heads = c.kv_heads;
    common.seqlen_q = c.seqlen_q;
    common.seqlen_k = c.seqlen_k;
    common.d = c.d;
    common.d_v = c.d_v;
    common.softmax_scale = c.softmax_scale;
    common.causal = c.causal;
    common.sm_margin = c.sm_margin;
    problem.d_o = d_o_.ref;
    problem.q = q_.ref;
    problem.k = k_.ref;
    problem.v = v_.ref;
    problem.o = o_.ref;
    problem.dq = dq_.ref;
    problem.dk = dk_.ref;
    problem.dv = dv_.ref;
    problem.lse = lse_.data();
    if (c.lse_transposed)
      problem.lse_stride = {c.seqlen_q * c.heads, 1, c.heads};
    else
      problem.lse_stride = {c.heads * c.seqlen_q, c.seqlen_q, 1};
    problem.deterministic = c.deterministic;
    exact_ = differentiate<double>();
    plain_ = differentiate<float>();
    if (c.poisoned_batch >= 0) poison();
  }

  BackwardProblem problem;

  void clear_gradients() {
    for (GradientTensor* tensor : {&dq_, &dk_, &dv_})
      std::fill(tensor->memory.begin(), tensor->memory.end(), std::uint16_t(0x7fff));
  }

  /// "" if every gradient is right: its largest error at most twice that of the same computation done plainly in this
  /// type, plus one rounding; and nothing written beside it.
  std::string judge() const {
    return judge_one("dQ", dq_, exact_.dq, plain_.dq) + judge_one("dK", dk_, exact_.dk, plain_.dk) +
           judge_one("dV", dv_, exact_.dv, plain_.dv);
  }

  /// All memory of the gradients.
  std::vector<std::uint16_t> all_bits() const {
    std::vector<std::uint16_t> all = dq_.memory;
    all.insert(all.end(), dk_.memory.begin(), dk_.memory.end());
    all.insert(all.end(), dv_.memory.begin(), dv_.memory.end());
    return all;
  }

 private:
  float value(std::uint16_t x) const { return c_.dtype == FA3_F16 ? to_float(Half{x}) : to_float(Bfloat16{x}); }
  std::uint16_t bits(float x) const {
    return c_.dtype == FA3_F16 ? from_float<Half>(x).bits : from_float<Bfloat16>(x).bits;
  }
  template <class Visit>
  static void each(const GradientTensor& tensor, Visit visit) {
    for (std::int64_t b = 0; b < tensor.ref.shape[0]; ++b)
      for (std::int64_t s = 0; s < tensor.ref.shape[1]; ++s)
        for (std::int64_t h = 0; h < tensor.ref.shape[2]; ++h)
          for (std::int64_t f = 0; f < tensor.ref.shape[3]; ++f) visit(b, s, h, f, tensor.at(b, s, h, f));
  }

  /// By the definition. T = double: exactly, and writes O and LSE on the way. T = float: as somebody would compute it
  /// in the 16-bit type, from that O and LSE.
  template <class T>
  Gradients differentiate() {
    constexpr bool exactly = sizeof(T) == 8;
    const auto rounded = [&](T x) { return exactly ? x : T(value(bits(float(x)))); };
    const std::int64_t group = problem.group();
    Gradients g;
    g.dq.assign(std::size_t(c_.batch * c_.seqlen_q * c_.heads * c_.d), 0);
    g.dk.assign(std::size_t(c_.batch * c_.seqlen_k * c_.kv_heads * c_.d), 0);
    g.dv.assign(std::size_t(c_.batch * c_.seqlen_k * c_.kv_heads * c_.d_v), 0);
    std::vector<T> dk(g.dk.size()), dv(g.dv.size());
    for (std::int64_t b = 0; b < c_.batch; ++b)
      for (std::int64_t h = 0; h < c_.heads; ++h)
        for (std::int64_t i = 0; i < c_.seqlen_q; ++i) {
          const std::int64_t keys = problem.visible_keys(i), kv = h / group;
          std::vector<T> p(std::size_t(keys), T(0)), ds(std::size_t(keys), T(0));
          float& lse =
              lse_[std::size_t(b * problem.lse_stride[0] + h * problem.lse_stride[1] + i * problem.lse_stride[2])];
          T highest = -std::numeric_limits<T>::infinity(), sum = 0, delta = 0;
          for (std::int64_t j = 0; j < keys; ++j) {
            T s = 0;
            for (std::int64_t f = 0; f < c_.d; ++f) s += T(value(q_.at(b, i, h, f))) * T(value(k_.at(b, j, kv, f)));
            p[std::size_t(j)] = s * T(c_.softmax_scale);
            highest = std::max(highest, p[std::size_t(j)]);
          }
          if (exactly) {
            for (T& x : p) sum += x = std::exp(x - highest);
            for (T& x : p) x /= sum;
            lse = keys == 0 ? -std::numeric_limits<float>::infinity() : float(highest + std::log(sum));
          } else {
            for (T& x : p) x = std::exp(x - T(lse));
          }
          for (std::int64_t f = 0; f < c_.d_v; ++f) {
            T o = 0;
            if (exactly) {
              for (std::int64_t j = 0; j < keys; ++j) o += p[std::size_t(j)] * T(value(v_.at(b, j, kv, f)));
              o_.at(b, i, h, f) = bits(float(o));
            } else {
              o = T(value(o_.at(b, i, h, f)));
            }
            delta += o * T(value(d_o_.at(b, i, h, f)));
          }
          for (std::int64_t j = 0; j < keys; ++j) {
            T dp = 0;
            for (std::int64_t f = 0; f < c_.d_v; ++f) {
              const T d_o = T(value(d_o_.at(b, i, h, f)));
              dp += d_o * T(value(v_.at(b, j, kv, f)));
              dv[std::size_t(((b * c_.seqlen_k + j) * c_.kv_heads + kv) * c_.d_v + f)] +=
                  rounded(p[std::size_t(j)]) * d_o;
            }
            ds[std::size_t(j)] = rounded(p[std::size_t(j)] * (dp - delta));
          }
          for (std::int64_t f = 0; f < c_.d; ++f) {
            T dq = 0;
            for (std::int64_t j = 0; j < keys; ++j) {
              dq += ds[std::size_t(j)] * T(value(k_.at(b, j, kv, f)));
              dk[std::size_t(((b * c_.seqlen_k + j) * c_.kv_heads + kv) * c_.d + f)] +=
                  ds[std::size_t(j)] * T(value(q_.at(b, i, h, f)));
            }
            g.dq[std::size_t(((b * c_.seqlen_q + i) * c_.heads + h) * c_.d + f)] =
                double(rounded(dq * T(c_.softmax_scale)));
          }
        }
    for (std::size_t i = 0; i < dk.size(); ++i) g.dk[i] = double(rounded(dk[i] * T(c_.softmax_scale)));
    for (std::size_t i = 0; i < dv.size(); ++i) g.dv[i] = double(rounded(dv[i]));
    return g;
  }

  void poison() {
    const auto whole = [&](const GradientTensor& tensor) {
      for (std::int64_t s = 0; s < tensor.ref.shape[1]; ++s)
        for (std::int64_t h = 0; h < tensor.ref.shape[2]; ++h)
          for (std::int64_t f = 0; f < tensor.ref.shape[3]; ++f) tensor.at(c_.poisoned_batch, s, h, f) = 0x7fff;
    };
    for (const GradientTensor* tensor : {&q_, &k_, &v_, &d_o_}) whole(*tensor);
  }

  std::string judge_one(const char* name, const GradientTensor& got, const std::vector<double>& exact,
                        const std::vector<double>& plain) const {
    double error = 0, allowed = 0, largest = 0;
    std::size_t i = 0;
    std::string message;
    each(got, [&](std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t f, std::uint16_t x) {
      const std::size_t at = i++;
      if (b == c_.poisoned_batch || !message.empty()) return;
      if (!std::isfinite(value(x)))
        message = std::string(name) + "[" + std::to_string(b) + ", " + std::to_string(s) + ", " + std::to_string(h) +
                  ", " + std::to_string(f) + "] is not finite\n";
      error = std::max(error, std::abs(double(value(x)) - exact[at]));
      allowed = std::max(allowed, std::abs(plain[at] - exact[at]));
      largest = std::max(largest, std::abs(exact[at]));
    });
    if (!message.empty()) return message;
    // One rounding of the result, and what f32 sums of numbers of this size may be off where they cancel.
    allowed = 2 * allowed + largest * (c_.dtype == FA3_F16 ? 0x1p-11 : 0x1p-8) + 1e-5 * c_.size;
    if (error > allowed)
      return std::string(name) + " is off by up to " + std::to_string(error) + ", allowed is " +
             std::to_string(allowed) + ", the largest number is " + std::to_string(largest) + "\n";
    // What is not an element must still be as it was.
    std::vector<bool> element(got.memory.size());
    each(got, [&](std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::uint16_t& x) {
      element[std::size_t(&x - got.memory.data())] = true;
    });
    for (std::size_t k = 0; k < element.size(); ++k)
      if (!element[k] && got.memory[k] != 0x7fff) return std::string(name) + ": written beside its elements\n";
    return "";
  }

  GradientCase c_;
  GradientTensor q_, k_, v_, o_, d_o_, dq_, dk_, dv_;
  std::vector<float> lse_;
  Gradients exact_, plain_;
};

}  // namespace fa3::test
