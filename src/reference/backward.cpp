#include "reference/backward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtype.hpp"
#include "reference/share_out.hpp"

namespace fa3::reference {
namespace {

/// How a computation does its arithmetic. Both have the row statistics of batch entry b, head h, row i: LSE, and D.
struct Exact {
  using Number = double;
  const BackwardProblem& p;
  const Result& forward;

  template <class T>
  static double rounded(double x) {
    return x;
  }
  double lse(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return forward.lse[static_cast<std::size_t>((b * p.heads + h) * p.seqlen_q + i)];
  }
  template <class T>
  double o(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t c) const {
    return forward.o[static_cast<std::size_t>(((b * p.seqlen_q + i) * p.heads + h) * p.d_v + c)];
  }
};

struct Plain {
  using Number = float;
  const BackwardProblem& p;

  template <class T>
  static float rounded(float x) {
    return to_float(from_float<T>(x));
  }
  float lse(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return p.lse[b * p.lse_stride[0] + h * p.lse_stride[1] + i * p.lse_stride[2]];
  }
  template <class T>
  float o(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t c) const {
    return to_float(features<const T>(p.o, b, i, h)[c]);
  }
};

/// The pair of row i and key j of head h: P and dS.
template <class T, class Arithmetic>
class Pairs {
 public:
  using Number = typename Arithmetic::Number;

  Pairs(const BackwardProblem& problem, const Arithmetic& arithmetic) : p(problem), arithmetic_(arithmetic) {}

  static Number value(const TensorRef& tensor, std::int64_t b, std::int64_t token, std::int64_t h, std::int64_t c) {
    return to_float(features<const T>(tensor, b, token, h)[c * tensor.stride[3]]);
  }
  bool gives_nothing(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return p.visible_keys(i) == 0 || arithmetic_.lse(b, h, i) == -std::numeric_limits<Number>::infinity();
  }
  Number delta(std::int64_t b, std::int64_t h, std::int64_t i) const {
    Number sum = 0;
    for (std::int64_t c = 0; c < p.d_v; ++c)
      sum += value(p.d_o, b, i, h, c) * Number(arithmetic_.template o<T>(b, h, i, c));
    return sum;
  }
  struct Entry {
    Number p, ds;
  };
  Entry entry(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, Number delta) const {
    const std::int64_t kv_head = h / p.group();
    Number s = 0, dp = 0;
    for (std::int64_t c = 0; c < p.d; ++c) s += value(p.q, b, i, h, c) * value(p.k, b, j, kv_head, c);
    for (std::int64_t c = 0; c < p.d_v; ++c) dp += value(p.d_o, b, i, h, c) * value(p.v, b, j, kv_head, c);
    const Number weight = std::exp(Number(p.softmax_scale) * s - arithmetic_.lse(b, h, i));
    return {Arithmetic::template rounded<T>(weight), Arithmetic::template rounded<T>(weight * (dp - delta))};
  }

  void query(std::int64_t b, std::int64_t h, std::int64_t i, double* dq) const {
    std::vector<Number> sum(static_cast<std::size_t>(p.d));
    if (!gives_nothing(b, h, i)) {
      const Number d = delta(b, h, i);
      for (std::int64_t j = 0; j < p.visible_keys(i); ++j) {
        const Number ds = entry(b, h, i, j, d).ds;
        for (std::int64_t c = 0; c < p.d; ++c) sum[c] += ds * value(p.k, b, j, h / p.group(), c);
      }
    }
    put(sum, p.softmax_scale, dq);
  }

  void key(std::int64_t b, std::int64_t kv_head, std::int64_t j, double* dk, double* dv) const {
    std::vector<Number> sum(static_cast<std::size_t>(p.d)), sum_v(static_cast<std::size_t>(p.d_v));
    for (std::int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h)
      for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
        if (j >= p.visible_keys(i) || gives_nothing(b, h, i)) continue;
        const Entry e = entry(b, h, i, j, delta(b, h, i));
        for (std::int64_t c = 0; c < p.d; ++c) sum[c] += e.ds * value(p.q, b, i, h, c);
        for (std::int64_t c = 0; c < p.d_v; ++c) sum_v[c] += e.p * value(p.d_o, b, i, h, c);
      }
    put(sum, p.softmax_scale, dk);
    put(sum_v, 1, dv);
  }

 private:
  static void put(const std::vector<Number>& sum, float factor, double* to) {
    for (std::size_t c = 0; c < sum.size(); ++c) to[c] = Arithmetic::template rounded<T>(Number(factor) * sum[c]);
  }

  const BackwardProblem& p;
  const Arithmetic& arithmetic_;
};

template <class T, class Arithmetic>
Gradients all(const BackwardProblem& p, const Arithmetic& arithmetic, int threads) {
  const Pairs<T, Arithmetic> pairs(p, arithmetic);
  Gradients gradients;
  gradients.dq.resize(static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads * p.d));
  gradients.dk.resize(static_cast<std::size_t>(p.batch * p.seqlen_k * p.kv_heads * p.d));
  gradients.dv.resize(static_cast<std::size_t>(p.batch * p.seqlen_k * p.kv_heads * p.d_v));
  share_out(p.batch * p.heads * p.seqlen_q, threads, [&](std::int64_t n) {
    const std::int64_t i = n % p.seqlen_q, h = n / p.seqlen_q % p.heads, b = n / p.seqlen_q / p.heads;
    pairs.query(b, h, i, gradients.dq.data() + ((b * p.seqlen_q + i) * p.heads + h) * p.d);
  });
  share_out(p.batch * p.kv_heads * p.seqlen_k, threads, [&](std::int64_t n) {
    const std::int64_t j = n % p.seqlen_k, h = n / p.seqlen_k % p.kv_heads, b = n / p.seqlen_k / p.kv_heads;
    const std::int64_t at = (b * p.seqlen_k + j) * p.kv_heads + h;
    pairs.key(b, h, j, gradients.dk.data() + at * p.d, gradients.dv.data() + at * p.d_v);
  });
  return gradients;
}

}  // namespace

ForwardProblem forward_of(const BackwardProblem& problem) {
  ForwardProblem forward;
  static_cast<Problem&>(forward) = problem;
  forward.q = problem.q;
  forward.k = problem.k;
  forward.v = problem.v;
  return forward;
}

Gradients backward(const BackwardProblem& problem, const Result& forward, int threads) {
  return with_dtype(problem.dtype, [&]<class T>(T) { return all<T>(problem, Exact{problem, forward}, threads); });
}

Gradients plain_backward(const BackwardProblem& problem, int threads) {
  return with_dtype(problem.dtype, [&]<class T>(T) { return all<T>(problem, Plain{problem}, threads); });
}

void query_gradient(const BackwardProblem& problem, const Result& forward, std::int64_t batch, std::int64_t head,
                    std::int64_t row, double* dq) {
  with_dtype(problem.dtype, [&]<class T>(T) {
    Pairs<T, Exact>(problem, Exact{problem, forward}).query(batch, head, row, dq);
  });
}

void plain_query_gradient(const BackwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row,
                          double* dq) {
  with_dtype(problem.dtype, [&]<class T>(T) { Pairs<T, Plain>(problem, Plain{problem}).query(batch, head, row, dq); });
}

void key_gradient(const BackwardProblem& problem, const Result& forward, std::int64_t batch, std::int64_t kv_head,
                  std::int64_t key, double* dk, double* dv) {
  with_dtype(problem.dtype, [&]<class T>(T) {
    Pairs<T, Exact>(problem, Exact{problem, forward}).key(batch, kv_head, key, dk, dv);
  });
}

void plain_key_gradient(const BackwardProblem& problem, std::int64_t batch, std::int64_t kv_head, std::int64_t key,
                        double* dk, double* dv) {
  with_dtype(problem.dtype,
             [&]<class T>(T) { Pairs<T, Plain>(problem, Plain{problem}).key(batch, kv_head, key, dk, dv); });
}

}  // namespace fa3::reference
