#include "reference/backward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtype.hpp"
#include "reference/share_out.hpp"

namespace fa3::reference {
namespace {

/// How a computation does its arithmetic, and its O and LSE of batch entry b, head h, row i.
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

template <class T, class Arithmetic>
class Rows {
 public:
  using Number = typename Arithmetic::Number;
  using Vector = std::vector<Number>;

  /// `delta`: D of every row, see RowGradients.
  Rows(const BackwardProblem& problem, const Arithmetic& arithmetic, const std::vector<double>& delta)
      : p(problem), arithmetic_(arithmetic), delta_(delta) {}

  /// The D of all rows.
  static std::vector<double> deltas(const BackwardProblem& p, const Arithmetic& arithmetic) {
    std::vector<double> result;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < p.heads; ++h)
        for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
          Number sum = 0;
          const Vector d_o = row(p.d_o, b, i, h);
          for (std::int64_t c = 0; c < p.d_v; ++c) sum += d_o[c] * Number(arithmetic.template o<T>(b, h, i, c));
          result.push_back(sum);
        }
    return result;
  }

  void query(std::int64_t b, std::int64_t h, std::int64_t i, double* dq) const {
    Vector sum(static_cast<std::size_t>(p.d));
    if (!gives_nothing(b, h, i)) {
      const Vector q = row(p.q, b, i, h), d_o = row(p.d_o, b, i, h);
      for (std::int64_t j = 0; j < p.visible_keys(i); ++j) {
        const Vector k = row(p.k, b, j, h / p.group()), v = row(p.v, b, j, h / p.group());
        const Number ds = entry(b, h, i, q, d_o, k, v).ds;
        for (std::int64_t c = 0; c < p.d; ++c) sum[c] += ds * k[c];
      }
    }
    put(sum, p.softmax_scale, dq);
  }

  void key(std::int64_t b, std::int64_t kv_head, std::int64_t j, double* dk, double* dv) const {
    Vector sum(static_cast<std::size_t>(p.d)), sum_v(static_cast<std::size_t>(p.d_v));
    const Vector k = row(p.k, b, j, kv_head), v = row(p.v, b, j, kv_head);
    for (std::int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h)
      for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
        if (j >= p.visible_keys(i) || gives_nothing(b, h, i)) continue;
        const Vector q = row(p.q, b, i, h), d_o = row(p.d_o, b, i, h);
        const Entry e = entry(b, h, i, q, d_o, k, v);
        for (std::int64_t c = 0; c < p.d; ++c) sum[c] += e.ds * q[c];
        for (std::int64_t c = 0; c < p.d_v; ++c) sum_v[c] += e.p * d_o[c];
      }
    put(sum, p.softmax_scale, dk);
    put(sum_v, 1, dv);
  }

 private:
  static Vector row(const TensorRef& tensor, std::int64_t b, std::int64_t token, std::int64_t h) {
    Vector values(static_cast<std::size_t>(tensor.shape[3]));
    const T* from = features<const T>(tensor, b, token, h);
    for (std::size_t c = 0; c < values.size(); ++c) values[c] = to_float(from[std::int64_t(c) * tensor.stride[3]]);
    return values;
  }
  bool gives_nothing(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return p.visible_keys(i) == 0 || arithmetic_.lse(b, h, i) == -std::numeric_limits<Number>::infinity();
  }
  /// P and dS of a pair of row i and a key.
  struct Entry {
    Number p, ds;
  };
  Entry entry(std::int64_t b, std::int64_t h, std::int64_t i, const Vector& q, const Vector& d_o, const Vector& k,
              const Vector& v) const {
    Number s = 0, dp = 0;
    for (std::size_t c = 0; c < q.size(); ++c) s += q[c] * k[c];
    for (std::size_t c = 0; c < v.size(); ++c) dp += d_o[c] * v[c];
    const Number delta = Number(delta_[static_cast<std::size_t>((b * p.heads + h) * p.seqlen_q + i)]);
    const Number weight = std::exp(Number(p.softmax_scale) * s - arithmetic_.lse(b, h, i));
    return {Arithmetic::template rounded<T>(weight), Arithmetic::template rounded<T>(weight * (dp - delta))};
  }
  static void put(const Vector& sum, float factor, double* to) {
    for (std::size_t c = 0; c < sum.size(); ++c) to[c] = Arithmetic::template rounded<T>(Number(factor) * sum[c]);
  }

  const BackwardProblem& p;
  const Arithmetic& arithmetic_;
  const std::vector<double>& delta_;
};

Gradients all_rows(const BackwardProblem& p, const RowGradients& rows, int threads) {
  Gradients gradients;
  gradients.dq.resize(static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads * p.d));
  gradients.dk.resize(static_cast<std::size_t>(p.batch * p.seqlen_k * p.kv_heads * p.d));
  gradients.dv.resize(static_cast<std::size_t>(p.batch * p.seqlen_k * p.kv_heads * p.d_v));
  share_out(p.batch * p.heads * p.seqlen_q, threads, [&](std::int64_t n) {
    const std::int64_t i = n % p.seqlen_q, h = n / p.seqlen_q % p.heads, b = n / p.seqlen_q / p.heads;
    rows.query(b, h, i, gradients.dq.data() + ((b * p.seqlen_q + i) * p.heads + h) * p.d);
  });
  share_out(p.batch * p.kv_heads * p.seqlen_k, threads, [&](std::int64_t n) {
    const std::int64_t j = n % p.seqlen_k, h = n / p.seqlen_k % p.kv_heads, b = n / p.seqlen_k / p.kv_heads;
    const std::int64_t at = (b * p.seqlen_k + j) * p.kv_heads + h;
    rows.key(b, h, j, gradients.dk.data() + at * p.d, gradients.dv.data() + at * p.d_v);
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

RowGradients::RowGradients(const BackwardProblem& problem, const Result& forward) : p_(problem), forward_(&forward) {
  delta_ = with_dtype(p_.dtype, [&]<class T>(T) { return Rows<T, Exact>::deltas(p_, Exact{p_, forward}); });
}

RowGradients::RowGradients(const BackwardProblem& problem) : p_(problem) {
  delta_ = with_dtype(p_.dtype, [&]<class T>(T) { return Rows<T, Plain>::deltas(p_, Plain{p_}); });
}

void RowGradients::query(std::int64_t batch, std::int64_t head, std::int64_t row, double* dq) const {
  with_dtype(p_.dtype, [&]<class T>(T) {
    if (forward_)
      Rows<T, Exact>(p_, Exact{p_, *forward_}, delta_).query(batch, head, row, dq);
    else
      Rows<T, Plain>(p_, Plain{p_}, delta_).query(batch, head, row, dq);
  });
}

void RowGradients::key(std::int64_t batch, std::int64_t kv_head, std::int64_t key, double* dk, double* dv) const {
  with_dtype(p_.dtype, [&]<class T>(T) {
    if (forward_)
      Rows<T, Exact>(p_, Exact{p_, *forward_}, delta_).key(batch, kv_head, key, dk, dv);
    else
      Rows<T, Plain>(p_, Plain{p_}, delta_).key(batch, kv_head, key, dk, dv);
  });
}

Gradients backward(const BackwardProblem& problem, const Result& forward, int threads) {
  return all_rows(problem, RowGradients(problem, forward), threads);
}

Gradients plain_backward(const BackwardProblem& problem, int threads) {
  return all_rows(problem, RowGradients(problem), threads);
}

}  // namespace fa3::reference
