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

/// q k as the tensor core adds products of e4m3: 32 at a time to its accumulator, of each addend 13 bits below the
/// leading one of the largest, the rest cut off (docs/numerics.md, FP8), and if `f16` the sum rounded to that.
float tensor_core_dot(const E4m3* q, const E4m3* k, std::int64_t d, bool f16) {
  float sum = 0;
  for (std::int64_t first = 0; first < d; first += 32) {
    float addends[33] = {sum}, largest = std::abs(sum);
    for (std::int64_t c = first; c < std::min(first + 32, d); ++c) {
      addends[1 + c - first] = to_float(q[c]) * to_float(k[c]);
      if (std::isnan(addends[1 + c - first])) return addends[1 + c - first];
      largest = std::max(largest, std::abs(addends[1 + c - first]));
    }
    if (largest == 0) continue;
    const int last_bit = std::ilogb(largest) - 13;
    sum = 0;
    for (const float x : addends) sum += std::ldexp(std::trunc(std::ldexp(x, -last_bit)), last_bit);
    if (f16) sum = to_float(from_float<Half>(sum));
  }
  return sum;
}

/// See plain_e4m3_forward(); `exact`: O of the row.
void plain_e4m3_row(const ForwardProblem& p, const double* exact, std::int64_t batch, std::int64_t head,
                    std::int64_t row, double* o) {
  const std::int64_t keys = p.visible_keys(row), kv_head = head / p.group();
  std::copy_n(exact, p.d_v, o);
  const E4m3* q = features<const E4m3>(p.q, batch, row, head);
  const double q_scale = double(p.softmax_scale) * double(p.q_scale.of(batch, head, row, p.group()));
  constexpr float log2_e = 1.44269504f;
  std::vector<float> s(static_cast<std::size_t>(keys));
  float max = -std::numeric_limits<float>::infinity();
  for (std::int64_t j = 0; j < keys; ++j) {
    const E4m3* k = features<const E4m3>(p.k, batch, j, kv_head);
    float scale = float(q_scale * double(p.k_scale.of(batch, kv_head, j, 1)));
    if (p.narrow()) scale = to_float(from_float<Half>(scale * log2_e)) / log2_e;
    s[j] = scale * tensor_core_dot(q, k, p.d, p.narrow());
    max = std::max(max, s[j]);
  }
  constexpr float factors[] = {256.0f, 215.2695f, 181.0193f, 152.2185f};  // 2^8, 2^7.75, 2^7.5, 2^7.25
  const std::size_t width = std::size_t(p.d_v);
  std::vector<float> acc(4 * width);
  float sum = 0;
  for (std::int64_t j = 0; j < keys; ++j) {
    const E4m3* v = features<const E4m3>(p.v, batch, j, kv_head);
    const float weight = std::exp(s[j] - max), v_scale = p.v_scale.of(batch, kv_head, j, 1);
    sum += weight;
    for (std::size_t i = 0; i < 4; ++i) {
      const float rounded = to_float(from_float<E4m3>(factors[i] * weight)) / factors[i] * v_scale;
      for (std::size_t c = 0; c < width; ++c) acc[i * width + c] += rounded * to_float(v[c]);
    }
  }
  if (keys == 0) return;
  with_dtype(p.o_dtype, [&]<class T>(T) {
    for (std::size_t i = 0; i < 4 * width; ++i) {
      const std::size_t c = i % width;
      const double plain = to_float(from_float<T>(acc[i] / sum));
      if (std::abs(plain - exact[c]) > std::abs(o[c] - exact[c])) o[c] = plain;
    }
  });
}

struct Position {
  std::int64_t batch, head, row;
};
/// Of row `i` of LSE, and where its features are in a dense O.
Position position(const ForwardProblem& p, std::int64_t i) {
  return {i / p.seqlen_q / p.heads, i / p.seqlen_q % p.heads, i % p.seqlen_q};
}
std::int64_t first_feature(const ForwardProblem& p, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return ((batch * p.seqlen_q + row) * p.heads + head) * p.d_v;
}

/// Calls row_function(batch, head, row, o) -> lse for every row.
template <class RowFunction>
Result all_rows(const ForwardProblem& p, int threads, RowFunction row_function) {
  Result result;
  result.o.resize(static_cast<std::size_t>(p.batch * p.seqlen_q * p.heads * p.d_v));
  result.lse.resize(static_cast<std::size_t>(p.batch * p.heads * p.seqlen_q));
  share_out(p.batch * p.heads * p.seqlen_q, threads, [&](std::int64_t i) {
    const auto [batch, head, row] = position(p, i);
    result.lse[i] = row_function(p, batch, head, row, result.o.data() + first_feature(p, batch, head, row));
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

void plain_forward_row(const ForwardProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t row,
                       double* o) {
  with_dtype(problem.dtype, [&]<class T>(T) { plain_row<T>(problem, true, batch, head, row, o); });
}

Result plain_forward(const ForwardProblem& problem, int threads, bool round_scores) {
  return with_dtype(problem.dtype, [&]<class T>(T) {
    return all_rows(problem, threads,
                    [&](const ForwardProblem& p, std::int64_t batch, std::int64_t head, std::int64_t row, double* o) {
                      return plain_row<T>(p, round_scores, batch, head, row, o);
                    });
  });
}

std::vector<double> plain_e4m3_forward(const ForwardProblem& problem, const std::vector<double>& exact, int threads) {
  std::vector<double> plain(exact.size());
  share_out(problem.batch * problem.heads * problem.seqlen_q, threads, [&](std::int64_t i) {
    const auto [batch, head, row] = position(problem, i);
    const std::int64_t at = first_feature(problem, batch, head, row);
    plain_e4m3_row(problem, exact.data() + at, batch, head, row, plain.data() + at);
  });
  return plain;
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
