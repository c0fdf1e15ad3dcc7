#include "reference/forward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtype.hpp"
#include "reference/share_out.hpp"

namespace fa3::reference {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class T>
double exact_row(const ForwardProblem& p, std::int64_t batch, std::int64_t head, std::int64_t row, double* o) {
  const std::int64_t keys = p.visible_keys(row), kv_head = head / p.group();
  std::fill_n(o, p.d_v, 0.0);
  if (keys == 0) return -infinity;

  const T* q = features<const T>(p.q, batch, row, head);
  const double q_scale = double(p.softmax_scale) * double(p.q_scale.of(batch, head, row, p.group()));
  std::vector<double> s(static_cast<std::size_t>(keys));
  double max = -infinity;
  for (std::int64_t j = 0; j < keys; ++j) {
    const T* k = features<const T>(p.k, batch, j, kv_head);
    double dot = 0;
    for (std::int64_t c = 0; c < p.d; ++c) dot += double(to_float(q[c])) * double(to_float(k[c]));
    s[j] = q_scale * double(p.k_scale.of(batch, kv_head, j, 1)) * dot;
    max = std::max(max, s[j]);
  }
  double sum = 0;
  for (std::int64_t j = 0; j < keys; ++j) {
    const T* v = features<const T>(p.v, batch, j, kv_head);
    const double weight = std::exp(s[j] - max);
    sum += weight;
    const double scaled = weight * double(p.v_scale.of(batch, kv_head, j, 1));
    for (std::int64_t c = 0; c < p.d_v; ++c) o[c] += scaled * double(to_float(v[c]));
  }
  for (std::int64_t c = 0; c < p.d_v; ++c) o[c] /= sum;
  return max + std::log(sum);
}

template <class T>
double plain_row(const ForwardProblem& p, bool round_scores, std::int64_t batch, std::int64_t head, std::int64_t row,
                 double* o) {
  const auto round = [](float x) { return to_float(from_float<T>(x)); };
  const std::int64_t keys = p.visible_keys(row), kv_head = head / p.group();
  std::fill_n(o, p.d_v, 0.0);
  if (keys == 0) return -infinity;

  const T* q = features<const T>(p.q, batch, row, head);
  std::vector<float> s(static_cast<std::size_t>(keys));
  float max = -std::numeric_limits<float>::infinity();
  for (std::int64_t j = 0; j < keys; ++j) {
    const T* k = features<const T>(p.k, batch, j, kv_head);
    float dot = 0;
    for (std::int64_t c = 0; c < p.d; ++c) dot += to_float(q[c]) * to_float(k[c]);
    s[j] = round_scores ? round(p.softmax_scale * dot) : p.softmax_scale * dot;
    max = std::max(max, s[j]);
  }
  float sum = 0;
  for (float& x : s) {
    x = std::exp(x - max);
    sum += x;
  }
  std::vector<float> acc(static_cast<std::size_t>(p.d_v));
  for (std::int64_t j = 0; j < keys; ++j) {
    const T* v = features<const T>(p.v, batch, j, kv_head);
    const float weight = round(s[j] / sum);
    for (std::int64_t c = 0; c < p.d_v; ++c) acc[c] += weight * to_float(v[c]);
  }
  for (std::int64_t c = 0; c < p.d_v; ++c) o[c] = round(acc[c]);
  return max + std::log(sum);
}

/// Weights rounded to e4m3 as 2^exponent times what they are, where `exponent` is at most 8.
double plain_e4m3_row(const ForwardProblem& p, double exponent, std::int64_t batch, std::int64_t head, std::int64_t row,
                      double* o) {
  const auto dot_scale = [&](std::int64_t j) {
    return double(p.softmax_scale) * double(p.q_scale.of(batch, head, row, p.group())) *
           double(p.k_scale.of(batch, head / p.group(), j, 1));
  };
  const std::int64_t keys = p.visible_keys(row), kv_head = head / p.group();
  std::fill_n(o, p.d_v, 0.0);
  if (keys == 0) return -infinity;

  const E4m3* q = features<const E4m3>(p.q, batch, row, head);
  std::vector<float> s(static_cast<std::size_t>(keys));
  float max = -std::numeric_limits<float>::infinity();
  for (std::int64_t j = 0; j < keys; ++j) {
    const E4m3* k = features<const E4m3>(p.k, batch, j, kv_head);
    float dot = 0;
    for (std::int64_t c = 0; c < p.d; ++c) dot += to_float(q[c]) * to_float(k[c]);
    s[j] = float(dot_scale(j)) * dot;
    max = std::max(max, s[j]);
  }
  const float factor = float(std::exp2(exponent));
  float sum = 0;
  std::vector<float> acc(static_cast<std::size_t>(p.d_v));
  for (std::int64_t j = 0; j < keys; ++j) {
    const E4m3* v = features<const E4m3>(p.v, batch, j, kv_head);
    const float exact = factor * std::exp(s[j] - max);
    const float weight = to_float(from_float<E4m3>(exact)) * p.v_scale.of(batch, kv_head, j, 1);
    sum += exact;
    for (std::int64_t c = 0; c < p.d_v; ++c) acc[c] += weight * to_float(v[c]);
  }
  with_dtype(p.o_dtype, [&]<class T>(T) {
    for (std::int64_t c = 0; c < p.d_v; ++c) o[c] = to_float(from_float<T>(acc[c] / sum));
  });
  return max + std::log(sum / factor);
}

/// Calls row_function(batch, head, row, o) -> lse for every row.
template <class RowFunction>
Result all_rows(const ForwardProblem& p, int threads, RowFunction row_function) {
  Result result;
  result.o.resize(static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads * p.d_v));
  result.lse.resize(static_cast<std::size_t>(p.batch * p.heads * p.seqlen_q));
  share_out(p.batch * p.heads * p.seqlen_q, threads, [&](std::int64_t i) {
    const std::int64_t row = i % p.seqlen_q, head = i / p.seqlen_q % p.heads, batch = i / p.seqlen_q / p.heads;
    double* o = result.o.data() + ((batch * p.seqlen_q + row) * p.heads + head) * p.d_v;
    result.lse[i] = row_function(p, batch, head, row, o);
  });
  return result;
}

}  // namespace

double forward_row(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row, double* o) {
  return with_input_dtype(problem.dtype, [&]<class T>(T) { return exact_row<T>(problem, batch, head, row, o); });
}

Result forward(const ForwardProblem& problem, int threads) {
  return with_input_dtype(problem.dtype, [&]<class T>(T) { return all_rows(problem, threads, exact_row<T>); });
}

Result plain_forward(const ForwardProblem& problem, int threads, bool round_scores) {
  return with_dtype(problem.dtype, [&]<class T>(T) {
    return all_rows(problem, threads,
                    [&](const ForwardProblem& p, std::int64_t batch, std::int64_t head, std::int64_t row, double* o) {
                      return plain_row<T>(p, round_scores, batch, head, row, o);
                    });
  });
}

Result plain_e4m3_forward(const ForwardProblem& problem, int threads, double exponent) {
  return all_rows(problem, threads,
                  [&](const ForwardProblem& p, std::int64_t batch, std::int64_t head, std::int64_t row, double* o) {
                    return plain_e4m3_row(p, exponent, batch, head, row, o);
                  });
}

double score_magnitude(const ForwardProblem& p, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return with_input_dtype(p.dtype, [&]<class T>(T) {
    const T* q = features<const T>(p.q, batch, row, head);
    double largest = 0;
    for (std::int64_t j = 0; j < p.visible_keys(row); ++j) {
      const T* k = features<const T>(p.k, batch, j, head / p.group());
      double sum = 0;
      for (std::int64_t c = 0; c < p.d; ++c) sum += std::abs(double(to_float(q[c])) * double(to_float(k[c])));
      largest = std::max(largest, double(p.k_scale.of(batch, head / p.group(), j, 1)) * sum);
    }
    return std::abs(double(p.softmax_scale)) * double(p.q_scale.of(batch, head, row, p.group())) * largest;
  });
}

}  // namespace fa3::reference
