#include "check/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "cpu/forward.hpp"
#include "dtype.hpp"
#include "reference/backward.hpp"
#include "reference/share_out.hpp"

namespace fa3::check {
namespace {

using std::int64_t;

struct Row {
  int64_t batch, row, head;
  std::string text() const { return fmt::format("batch {}, row {}, head {}", batch, row, head); }
};

/// What the rows compared ought to be: d_v values and one LSE each, in the order of `rows`.
struct Expected {
  std::vector<Row> rows;
  std::vector<double> o, plain_o, lse;
};

/// Of the rows of Q and O.
Row row_number(const Problem& p, int64_t i) {
  return {i / p.heads / p.seqlen_q, i / p.heads % p.seqlen_q, i % p.heads};
}

/// One row as a problem of its own.
ForwardProblem single_row(const ForwardProblem& p, const Row& row) {
  return with_input_dtype(p.dtype, [&]<class T>(T) {
    const int64_t kv_head = row.head / p.group(), keys = p.visible_keys(row.row);
    const auto at = [&](const TensorRef& tensor, int64_t token, int64_t head, int64_t rows) {
      void* data = rows ? features<T>(tensor, row.batch, token, head) : nullptr;
      return TensorRef{data, {1, rows, 1, tensor.shape[3]}, {0, tensor.stride[1], 0, 1}};
    };
    ForwardProblem one = p;
    one.batch = one.heads = one.kv_heads = one.seqlen_q = 1;
    one.seqlen_k = keys;
    one.causal = false;
    one.q = at(p.q, row.row, row.head, 1);
    one.k = at(p.k, 0, kv_head, keys);
    one.v = at(p.v, 0, kv_head, keys);
    const auto scales_at = [&](ScalesRef scales, int64_t head, int64_t token) {
      if (scales.data == nullptr) return scales;
      scales.data += row.batch * scales.stride[0] + head * scales.stride[1] +
                     (scales.per_block ? token / FA3_SCALE_ROWS * scales.stride[2] : 0);
      return scales;
    };
    one.q_scale = scales_at(p.q_scale, p.q_scale.per_block ? row.head : kv_head, row.row);
    one.k_scale = scales_at(p.k_scale, kv_head, 0);
    one.v_scale = scales_at(p.v_scale, kv_head, 0);
    return one;
  });
}

/// `count` of `total` numbers, evenly from the first to the last; all of them if there are no more.
std::vector<int64_t> sample(int64_t total, int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < std::min(total, count); ++i)
    numbers.push_back(
        total <= count ? i : int64_t(double(i) * double(total - 1) / double(std::max<int64_t>(count - 1, 1))));
  return numbers;
}

/// O of the plain computation.
std::vector<double> plain_forward(const ForwardProblem& p, const std::vector<double>& exact, int threads,
                                  bool round_scores) {
  return p.dtype == FA3_E4M3 ? reference::plain_e4m3_forward(p, exact, threads)
                             : reference::plain_forward(p, threads, round_scores).o;
}

Expected expected_rows(const ForwardProblem& p, int64_t max_rows, int threads, bool round_scores) {
  const int64_t total = p.batch * p.seqlen_q * p.heads;
  Expected expected;
  if (total <= max_rows) {
    reference::Result exact = reference::forward(p, threads);
    expected.plain_o = plain_forward(p, exact.o, threads, round_scores);
    expected.o = std::move(exact.o);
    for (int64_t i = 0; i < total; ++i) {
      const Row row = row_number(p, i);
      const std::size_t at = std::size_t((row.batch * p.heads + row.head) * p.seqlen_q + row.row);
      expected.rows.push_back(row);
      expected.lse.push_back(exact.lse[at]);
    }
    return expected;
  }
  for (const int64_t number : sample(total, max_rows)) {
    const Row row = row_number(p, number);
    const ForwardProblem one = single_row(p, row);
    const reference::Result exact = reference::forward(one);
    const std::vector<double> plain = plain_forward(one, exact.o, 1, round_scores);
    expected.rows.push_back(row);
    expected.o.insert(expected.o.end(), exact.o.begin(), exact.o.end());
    expected.plain_o.insert(expected.plain_o.end(), plain.begin(), plain.end());
    expected.lse.push_back(exact.lse[0]);
  }
  return expected;
}

template <class T>
bool all_finite(const T* x, int64_t n) {
  return std::all_of(x, x + n, [](T e) { return std::isfinite(to_float(e)); });
}

/// [batch * kv_heads]: whether k or v of that head holds a NaN or Inf.
template <class T>
std::vector<bool> tainted_heads(const Problem& p, const TensorRef& k, const TensorRef& v) {
  std::vector<bool> tainted(std::size_t(p.batch * p.kv_heads));
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.kv_heads; ++h)
      for (int64_t j = 0; j < p.seqlen_k; ++j)
        if (!all_finite(features<const T>(k, b, j, h), p.d) || !all_finite(features<const T>(v, b, j, h), p.d_v))
          tainted[std::size_t(b * p.kv_heads + h)] = true;
  return tainted;
}

template <class T>
bool finite_d_o(const BackwardProblem& p, const Row& r) {
  const T* d_o = features<const T>(p.d_o, r.batch, r.row, r.head);
  for (int64_t c = 0; c < p.d_v; ++c)
    if (!std::isfinite(to_float(d_o[c * p.d_o.stride[3]]))) return false;
  return true;
}

template <class T>
bool is_poison(T x, fa3_dtype dtype) {
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<std::uint32_t>(x) == poison(dtype);
  else
    return x.bits == poison(dtype);
}

float lse_at(const ForwardProblem& p, const Row& r) {
  return p.lse[r.batch * p.lse_stride[0] + r.head * p.lse_stride[1] + r.row * p.lse_stride[2]];
}

/// Says how many elements of `tensor` still hold the poison; "" if none does.
template <class T>
std::string unwritten(const char* name, const TensorRef& tensor, fa3_dtype dtype) {
  int64_t count = 0;
  std::string first;
  for (int64_t b = 0; b < tensor.shape[0]; ++b)
    for (int64_t s = 0; s < tensor.shape[1]; ++s)
      for (int64_t h = 0; h < tensor.shape[2]; ++h) {
        const T* x = features<const T>(tensor, b, s, h);
        for (int64_t c = 0; c < tensor.shape[3]; ++c)
          if (is_poison(x[c], dtype) && count++ == 0) first = fmt::format("{}, feature {}", Row{b, s, h}.text(), c);
      }
  return count ? fmt::format("{}: {} elements were not written, the first at {}", name, count, first) : "";
}

std::string unwritten_lse(const ForwardProblem& p) {
  int64_t count = 0;
  std::string first;
  for (int64_t i = 0; p.lse && i < p.batch * p.seqlen_q * p.heads; ++i)
    if (is_poison(lse_at(p, row_number(p, i)), FA3_F32) && count++ == 0) first = row_number(p, i).text();
  return count ? fmt::format("LSE: {} elements were not written, the first at {}", count, first) : "";
}

/// How many times the plain computation's error is allowed. Why more in f32: there it is rounded no more than what is
/// judged, and the order of the sums alone changes either error by a factor of two.
double slack(fa3_dtype dtype) { return dtype == FA3_F32 ? 4 : 2; }

enum class RowState {
  ordinary,
  empty,   // no pair of a query and a key: exactly 0
  tainted  // by a NaN or Inf in the inputs
};

/// Compares a tensor with fp64 row by row.
template <class T>
class Comparison {
 public:
  Comparison(const char* name, fa3_dtype dtype, Measure& measure, Verdict& verdict)
      : name_(name), dtype_(dtype), measure_(measure), verdict_(verdict) {}

  /// False if something is wrong whatever the tolerance; the verdict says what.
  bool row(const Row& r, RowState state, const T* values, const double* exact, const double* plain, int64_t width) {
    const auto rounded = [](double x) { return double(to_float(from_float<T>(float(x)))); };
    for (int64_t c = 0; c < width; ++c) {
      const double value = to_float(values[c]);
      const auto fail = [&](const char* what) {
        verdict_.fail(
            fmt::format("{} is {} at {}, feature {}; {}, fp64 has {}", name_, value, r.text(), c, what, exact[c]));
        return false;
      };
      if (state == RowState::empty && value != 0) return fail("a row without keys must be 0");
      if (state == RowState::tainted) {
        if (!std::isfinite(exact[c]) && std::isfinite(value)) return fail("a NaN or Inf of the input was lost");
        continue;
      }
      if (!std::isfinite(value)) return fail("the inputs of this row are finite");
      const double error = std::abs(value - exact[c]);
      if (error > measure_.error || worst_.empty()) worst_ = fmt::format("{}, feature {}", r.text(), c);
      measure_.error = std::max(measure_.error, error);
      // Rounded scores may overflow in the plain computation, not in the exact one; such elements say nothing.
      if (std::isfinite(plain[c])) measure_.plain_error = std::max(measure_.plain_error, std::abs(plain[c] - exact[c]));
      floor_ = std::max(floor_, std::abs(rounded(rounded(exact[c] + 0.3) - 0.3) - exact[c]));
    }
    return true;
  }

  /// After the last row.
  void finish() {
    measure_.allowed = slack(dtype_) * measure_.plain_error + 2 * floor_;
    if (measure_.error > measure_.allowed)
      verdict_.fail(fmt::format("{} is off by {:.3g} at {}; {:.3g} is allowed (the plain computation is off by {:.3g})",
                                name_, measure_.error, worst_, measure_.allowed, measure_.plain_error));
  }

 private:
  const char* name_;
  fa3_dtype dtype_;
  Measure& measure_;
  Verdict& verdict_;
  double floor_ = 0;
  std::string worst_;
};

/// What an error of LSE in relation to reference::score_magnitude() may be. E4m3: the tensor core cuts off what lies 13
/// bits below the largest of the terms that it adds.
double score_error(fa3_dtype dtype) { return dtype == FA3_E4M3 ? 0x1p-9 : 0x1p-22; }

/// T: the type of q, k and v, U: that of o.
template <class T, class U>
void compare(const ForwardProblem& p, const Expected& expected, bool exact_scores, Verdict& verdict) {
  const std::vector<bool> tainted = tainted_heads<T>(p, p.k, p.v);
  Comparison<U> o("O", p.dtype_of_o(), verdict.o, verdict);
  std::string lse_worst;
  double lse_excess = 0;
  for (std::size_t i = 0; i < expected.rows.size(); ++i) {
    const Row& r = expected.rows[i];
    const double exact_lse = expected.lse[i];
    const bool row_tainted = tainted[std::size_t(r.batch * p.kv_heads + r.head / p.group())] ||
                             !all_finite(features<const T>(p.q, r.batch, r.row, r.head), p.d);
    const RowState state = p.visible_keys(r.row) == 0 ? RowState::empty
                           : row_tainted              ? RowState::tainted
                                                      : RowState::ordinary;
    if (!o.row(r, state, features<const U>(p.o, r.batch, r.row, r.head), &expected.o[i * std::size_t(p.d_v)],
               &expected.plain_o[i * std::size_t(p.d_v)], p.d_v))
      return;
    if (!p.lse) continue;
    const double lse = lse_at(p, r);
    const auto fail = [&](const char* what) {
      verdict.fail(fmt::format("LSE is {} at {}; {}, fp64 has {}", lse, r.text(), what, exact_lse));
    };
    if (state == RowState::empty) {
      if (lse != -INFINITY) return fail("a row without keys must be -inf");
    } else if (state == RowState::tainted) {
      if (!std::isfinite(exact_lse) && std::isfinite(lse)) return fail("a NaN or Inf of the input was lost");
    } else {
      if (!std::isfinite(lse)) return fail("the inputs of this row are finite");
      const double error = std::abs(lse - exact_lse);
      verdict.lse_error = std::max(verdict.lse_error, error);
      // With sums in f16 exponents and what scores are multiplied by are numbers of f16, and some exponentials
      // polynomials. Exponents are near 4 where a row has few keys; near 8.75 where its scores differ, and A has room.
      double allowed = p.narrow() ? 0x1p-8 + 0x1p-10 * std::abs(exact_lse) : 1e-4 + 0x1p-22 * std::abs(exact_lse);
      if (error > allowed && !exact_scores)
        allowed += score_error(p.dtype) * reference::score_magnitude(p, r.batch, r.head, r.row);
      const double excess = error / allowed;
      if (excess > std::max(lse_excess, 1.0))
        lse_worst = fmt::format("LSE is {} at {}, fp64 has {}: {:.3g} times the error allowed", lse, r.text(),
                                exact_lse, excess);
      lse_excess = std::max(lse_excess, excess);
    }
  }
  if (!lse_worst.empty()) verdict.fail(lse_worst);
  o.finish();
}

struct Reference {
  reference::RowGradients exact, plain;
};

/// What the rows of a gradient ought to be: `width` values each, one row after the other.
struct ExpectedRows {
  std::vector<double> exact, plain;
  ExpectedRows(std::size_t rows, int64_t width) : exact(rows * std::size_t(width)), plain(exact.size()) {}
};

template <class T>
void compare_dq(const BackwardProblem& p, const Reference& reference, int64_t max_rows, int threads,
                const std::vector<bool>& tainted, Verdict& verdict) {
  const std::vector<int64_t> numbers = sample(p.batch * p.seqlen_q * p.heads, max_rows);
  ExpectedRows expected(numbers.size(), p.d);
  reference::share_out(int64_t(numbers.size()), threads, [&](int64_t i) {
    const Row r = row_number(p, numbers[std::size_t(i)]);
    reference.exact.query(r.batch, r.head, r.row, &expected.exact[std::size_t(i * p.d)]);
    reference.plain.query(r.batch, r.head, r.row, &expected.plain[std::size_t(i * p.d)]);
  });
  Comparison<T> dq("dQ", p.dtype, verdict.dq, verdict);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Row r = row_number(p, numbers[i]);
    const bool row_tainted = tainted[std::size_t(r.batch * p.kv_heads + r.head / p.group())] ||
                             !all_finite(features<const T>(p.q, r.batch, r.row, r.head), p.d) || !finite_d_o<T>(p, r);
    const RowState state = p.visible_keys(r.row) == 0 ? RowState::empty
                           : row_tainted              ? RowState::tainted
                                                      : RowState::ordinary;
    if (!dq.row(r, state, features<const T>(p.dq, r.batch, r.row, r.head), &expected.exact[i * std::size_t(p.d)],
                &expected.plain[i * std::size_t(p.d)], p.d))
      return;
  }
  dq.finish();
  verdict.rows += int64_t(numbers.size());
}

template <class T>
void compare_dk_dv(const BackwardProblem& p, const Reference& reference, int64_t max_rows, int threads,
                   std::vector<bool> tainted, Verdict& verdict) {
  for (int64_t i = 0; i < p.batch * p.seqlen_q * p.heads; ++i) {
    const Row r = row_number(p, i);
    if (p.visible_keys(r.row) > 0 &&
        (!all_finite(features<const T>(p.q, r.batch, r.row, r.head), p.d) || !finite_d_o<T>(p, r)))
      tainted[std::size_t(r.batch * p.kv_heads + r.head / p.group())] = true;
  }
  const std::vector<int64_t> numbers = sample(p.batch * p.seqlen_k * p.kv_heads, max_rows);
  const auto key_number = [&](int64_t i) {
    return Row{i / p.kv_heads / p.seqlen_k, i / p.kv_heads % p.seqlen_k, i % p.kv_heads};
  };
  ExpectedRows of_dk(numbers.size(), p.d), of_dv(numbers.size(), p.d_v);
  reference::share_out(int64_t(numbers.size()), threads, [&](int64_t i) {
    const Row r = key_number(numbers[std::size_t(i)]);
    const std::size_t k = std::size_t(i * p.d), v = std::size_t(i * p.d_v);
    reference.exact.key(r.batch, r.head, r.row, &of_dk.exact[k], &of_dv.exact[v]);
    reference.plain.key(r.batch, r.head, r.row, &of_dk.plain[k], &of_dv.plain[v]);
  });
  Comparison<T> dk("dK", p.dtype, verdict.dk, verdict), dv("dV", p.dtype, verdict.dv, verdict);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Row r = key_number(numbers[i]);
    const RowState state = p.seqlen_q == 0                                       ? RowState::empty
                           : tainted[std::size_t(r.batch * p.kv_heads + r.head)] ? RowState::tainted
                                                                                 : RowState::ordinary;
    const std::size_t k = i * std::size_t(p.d), v = i * std::size_t(p.d_v);
    if (!dk.row(r, state, features<const T>(p.dk, r.batch, r.row, r.head), &of_dk.exact[k], &of_dk.plain[k], p.d) ||
        !dv.row(r, state, features<const T>(p.dv, r.batch, r.row, r.head), &of_dv.exact[v], &of_dv.plain[v], p.d_v))
      return;
  }
  dk.finish();
  if (verdict.passed) dv.finish();
  verdict.rows += int64_t(numbers.size());
}

}  // namespace

std::string Verdict::summary() const {
  const auto one = [](const char* name, const Measure& m) {
    return fmt::format("{} off by {:.2g} of {:.2g} allowed, ", name, m.error, m.allowed);
  };
  std::string text = backward ? one("dQ", dq) + one("dK", dk) + one("dV", dv)
                              : one("O", o) + fmt::format("LSE by {:.2g}, ", lse_error);
  return text + fmt::format("{} rows", rows);
}

std::uint32_t poison(fa3_dtype dtype) {
  switch (dtype) {
    case FA3_F16: return 0xfeb5u;
    case FA3_BF16: return 0xffe5u;
    case FA3_E4M3: return 0xffu;  // of inputs only: it has no other NaN
    default: return 0xffe5b5a5u;
  }
}

void fill_poison(void* data, fa3_dtype dtype, int64_t elements) {
  if (element_bytes(dtype) == 1)
    std::fill_n(static_cast<std::uint8_t*>(data), elements, std::uint8_t(poison(dtype)));
  else if (element_bytes(dtype) == 2)
    std::fill_n(static_cast<std::uint16_t*>(data), elements, std::uint16_t(poison(dtype)));
  else
    std::fill_n(static_cast<std::uint32_t*>(data), elements, poison(dtype));
}

/// A dense copy of a d-major V in `memory`: the reference reads features side by side.
TensorRef dense_values(const TensorRef& v, std::vector<E4m3>& memory) {
  const auto& [batch, keys, heads, width] = v.shape;
  memory.reserve(std::size_t(batch * keys * heads * width));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t s = 0; s < keys; ++s)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t c = 0; c < width; ++c) memory.push_back(features<const E4m3>(v, b, s, h)[c * v.stride[3]]);
  return {memory.data(), v.shape, {keys * heads * width, heads * width, width, 1}};
}

Verdict judge(const ForwardProblem& given, int64_t max_rows, int threads, bool exact_scores) {
  ForwardProblem problem = given;
  std::vector<E4m3> dense;
  if (given.v_is_d_major()) problem.v = dense_values(given.v, dense);
  Verdict verdict;
  if (problem.o.empty()) return verdict;
  with_dtype(problem.dtype_of_o(), [&]<class U>(U) {
    for (const std::string& what : {unwritten<U>("O", problem.o, problem.dtype_of_o()), unwritten_lse(problem)})
      if (!what.empty()) return verdict.fail(what);
    const Expected expected = expected_rows(problem, max_rows, threads, !exact_scores);
    verdict.rows = int64_t(expected.rows.size());
    if (problem.dtype == FA3_E4M3)
      compare<E4m3, U>(problem, expected, exact_scores, verdict);
    else
      compare<U, U>(problem, expected, exact_scores, verdict);
  });
  return verdict;
}

reference::Result forward_for_judging(const ForwardProblem& problem, int threads) {
  if (problem.flops() <= 2e9) return reference::forward(problem, threads);
  // f32 is exact enough for 16-bit types, and they are the only ones with cases of this size.
  std::vector<std::vector<float>> memory;
  const auto wide = [&](const TensorRef& tensor) {
    const auto& shape = tensor.shape;
    std::vector<float>& to = memory.emplace_back(std::size_t(shape[0] * shape[1] * shape[2] * shape[3]));
    with_dtype(problem.dtype, [&]<class T>(T) {
      float* next = to.data();
      for (int64_t b = 0; b < shape[0]; ++b)
        for (int64_t s = 0; s < shape[1]; ++s)
          for (int64_t h = 0; h < shape[2]; ++h, next += shape[3])
            std::transform(features<const T>(tensor, b, s, h), features<const T>(tensor, b, s, h) + shape[3], next,
                           [](T x) { return to_float(x); });
    });
    return TensorRef{to.data(), shape, {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}};
  };
  ForwardProblem p = problem;
  p.dtype = FA3_F32;
  p.q = wide(problem.q), p.k = wide(problem.k), p.v = wide(problem.v);
  std::vector<float> o(std::size_t(p.batch * p.seqlen_q * p.heads * p.d_v)),
      lse(std::size_t(p.batch * p.heads * p.seqlen_q));
  p.o = {o.data(), {p.batch, p.seqlen_q, p.heads, p.d_v}, {p.seqlen_q * p.heads * p.d_v, p.heads * p.d_v, p.d_v, 1}};
  p.lse = lse.data();
  p.lse_stride = {p.heads * p.seqlen_q, p.seqlen_q, 1};
  cpu::forward(p);
  return {{o.begin(), o.end()}, {lse.begin(), lse.end()}};
}

reference::Result given_forward(const BackwardProblem& p) {
  reference::Result given;
  with_dtype(p.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < p.batch * p.seqlen_q * p.heads; ++i) {
      const Row r = row_number(p, i);
      const T* o = features<const T>(p.o, r.batch, r.row, r.head);
      for (int64_t c = 0; c < p.d_v; ++c) given.o.push_back(to_float(o[c]));
    }
  });
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = 0; i < p.seqlen_q; ++i)
        given.lse.push_back(p.lse[b * p.lse_stride[0] + h * p.lse_stride[1] + i * p.lse_stride[2]]);
  return given;
}

Verdict judge(const BackwardProblem& problem, const reference::Result& forward, int64_t max_rows, int threads) {
  Verdict verdict;
  verdict.backward = true;
  with_dtype(problem.dtype, [&]<class T>(T) {
    for (const auto& [name, tensor] : {std::pair{"dQ", &problem.dq}, {"dK", &problem.dk}, {"dV", &problem.dv}}) {
      if (tensor->empty()) continue;
      if (const std::string what = unwritten<T>(name, *tensor, problem.dtype); !what.empty()) return verdict.fail(what);
    }
    const std::vector<bool> tainted = tainted_heads<T>(problem, problem.k, problem.v);
    const Reference reference{reference::RowGradients(problem, forward), reference::RowGradients(problem)};
    if (!problem.dq.empty()) compare_dq<T>(problem, reference, max_rows, threads, tainted, verdict);
    if (!problem.dk.empty() && verdict.passed)
      compare_dk_dv<T>(problem, reference, max_rows, threads, tainted, verdict);
  });
  return verdict;
}

}  // namespace fa3::check
