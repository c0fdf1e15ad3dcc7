#include "check/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "dtype.hpp"
#include "reference/forward.hpp"

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

template <class T>
const T* features(const TensorRef& tensor, int64_t batch, int64_t token, int64_t head) {
  return static_cast<const T*>(tensor.data) + batch * tensor.stride[0] + token * tensor.stride[1] +
         head * tensor.stride[2];
}

Row row_number(const ForwardProblem& p, int64_t i) {
  return {i / p.heads / p.seqlen_q, i / p.heads % p.seqlen_q, i % p.heads};
}

/// One row as a problem of its own.
ForwardProblem single_row(const ForwardProblem& p, const Row& row) {
  return with_dtype(p.dtype, [&]<class T>(T) {
    const int64_t kv_head = row.head / p.group(), keys = p.visible_keys(row.row);
    const auto at = [&](const TensorRef& tensor, int64_t token, int64_t head, int64_t rows) {
      void* data = rows ? const_cast<T*>(features<T>(tensor, row.batch, token, head)) : nullptr;
      return TensorRef{data, {1, rows, 1, tensor.shape[3]}, {0, tensor.stride[1], 0, 1}};
    };
    ForwardProblem one = p;
    one.batch = one.heads = one.kv_heads = one.seqlen_q = 1;
    one.seqlen_k = keys;
    one.causal = false;
    one.q = at(p.q, row.row, row.head, 1);
    one.k = at(p.k, 0, kv_head, keys);
    one.v = at(p.v, 0, kv_head, keys);
    return one;
  });
}

Expected expected_rows(const ForwardProblem& p, int64_t max_rows, int threads, bool round_scores) {
  const int64_t total = p.batch * p.seqlen_q * p.heads;
  Expected expected;
  if (total <= max_rows) {
    reference::Result exact = reference::forward(p, threads), plain = reference::plain_forward(p, threads, round_scores);
    expected.o = std::move(exact.o);
    expected.plain_o = std::move(plain.o);
    for (int64_t i = 0; i < total; ++i) {
      const Row row = row_number(p, i);
      const std::size_t at = std::size_t((row.batch * p.heads + row.head) * p.seqlen_q + row.row);
      expected.rows.push_back(row);
      expected.lse.push_back(exact.lse[at]);
    }
    return expected;
  }
  for (int64_t i = 0; i < max_rows; ++i) {
    const int64_t number = max_rows > 1 ? int64_t(double(i) * double(total - 1) / double(max_rows - 1)) : 0;
    const Row row = row_number(p, number);
    const ForwardProblem one = single_row(p, row);
    const reference::Result exact = reference::forward(one), plain = reference::plain_forward(one, 1, round_scores);
    expected.rows.push_back(row);
    expected.o.insert(expected.o.end(), exact.o.begin(), exact.o.end());
    expected.plain_o.insert(expected.plain_o.end(), plain.o.begin(), plain.o.end());
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
std::vector<bool> tainted_heads(const ForwardProblem& p) {
  std::vector<bool> tainted(std::size_t(p.batch * p.kv_heads));
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.kv_heads; ++h)
      for (int64_t j = 0; j < p.seqlen_k; ++j)
        if (!all_finite(features<T>(p.k, b, j, h), p.d) || !all_finite(features<T>(p.v, b, j, h), p.d_v))
          tainted[std::size_t(b * p.kv_heads + h)] = true;
  return tainted;
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

template <class T>
std::string unwritten(const ForwardProblem& p) {
  int64_t o_count = 0, lse_count = 0;
  std::string o_first, lse_first;
  for (int64_t i = 0; i < p.batch * p.seqlen_q * p.heads; ++i) {
    const Row r = row_number(p, i);
    const T* o = features<T>(p.o, r.batch, r.row, r.head);
    for (int64_t c = 0; c < p.d_v; ++c)
      if (is_poison(o[c], p.dtype) && o_count++ == 0) o_first = fmt::format("{}, feature {}", r.text(), c);
    if (p.lse && is_poison(lse_at(p, r), FA3_F32) && lse_count++ == 0) lse_first = r.text();
  }
  if (o_count) return fmt::format("O: {} elements were not written, the first at {}", o_count, o_first);
  if (lse_count) return fmt::format("LSE: {} elements were not written, the first at {}", lse_count, lse_first);
  return "";
}

/// How many times the plain computation's error is allowed. Why more in f32: there it is rounded no more than what is
/// judged, and the order of the sums alone changes either error by a factor of two.
double slack(fa3_dtype dtype) { return dtype == FA3_F32 ? 4 : 2; }

template <class T>
void compare(const ForwardProblem& p, const Expected& expected, bool exact_scores, Verdict& verdict) {
  const auto rounded = [](double x) { return double(to_float(from_float<T>(float(x)))); };
  const std::vector<bool> tainted = tainted_heads<T>(p);
  double floor = 0;
  std::string o_worst, lse_worst;
  double lse_excess = 0;
  for (std::size_t i = 0; i < expected.rows.size(); ++i) {
    const Row& r = expected.rows[i];
    const T* o = features<T>(p.o, r.batch, r.row, r.head);
    const double *exact = &expected.o[i * std::size_t(p.d_v)], *plain = &expected.plain_o[i * std::size_t(p.d_v)];
    const double exact_lse = expected.lse[i];
    const bool row_tainted = tainted[std::size_t(r.batch * p.kv_heads + r.head / p.group())] ||
                             !all_finite(features<T>(p.q, r.batch, r.row, r.head), p.d);
    const bool blind = p.visible_keys(r.row) == 0;
    for (int64_t c = 0; c < p.d_v; ++c) {
      const double value = to_float(o[c]);
      const auto fail = [&](const char* what) {
        verdict.fail(fmt::format("O is {} at {}, feature {}; {}, fp64 has {}", value, r.text(), c, what, exact[c]));
      };
      if (blind && value != 0) return fail("a row without keys must be 0");
      if (row_tainted && !blind) {
        if (!std::isfinite(exact[c]) && std::isfinite(value)) return fail("a NaN or Inf of the input was lost");
        continue;
      }
      if (!std::isfinite(value)) return fail("the inputs of this row are finite");
      const double error = std::abs(value - exact[c]);
      if (error > verdict.o_error || o_worst.empty()) o_worst = fmt::format("{}, feature {}", r.text(), c);
      verdict.o_error = std::max(verdict.o_error, error);
      // Rounded scores may overflow in the plain computation, not in the exact one; such elements say nothing.
      if (std::isfinite(plain[c])) verdict.plain_error = std::max(verdict.plain_error, std::abs(plain[c] - exact[c]));
      floor = std::max(floor, std::abs(rounded(rounded(exact[c] + 0.3) - 0.3) - exact[c]));
    }
    if (!p.lse) continue;
    const double lse = lse_at(p, r);
    const auto fail = [&](const char* what) {
      verdict.fail(fmt::format("LSE is {} at {}; {}, fp64 has {}", lse, r.text(), what, exact_lse));
    };
    if (blind) {
      if (lse != -INFINITY) return fail("a row without keys must be -inf");
    } else if (row_tainted) {
      if (!std::isfinite(exact_lse) && std::isfinite(lse)) return fail("a NaN or Inf of the input was lost");
    } else {
      if (!std::isfinite(lse)) return fail("the inputs of this row are finite");
      const double error = std::abs(lse - exact_lse);
      verdict.lse_error = std::max(verdict.lse_error, error);
      double allowed = 1e-4 + 0x1p-22 * std::abs(exact_lse);
      if (error > allowed && !exact_scores) allowed += 0x1p-22 * reference::score_magnitude(p, r.batch, r.head, r.row);
      const double excess = error / allowed;
      if (excess > std::max(lse_excess, 1.0))
        lse_worst = fmt::format("LSE is {} at {}, fp64 has {}: {:.3g} times the error allowed", lse, r.text(),
                                exact_lse, excess);
      lse_excess = std::max(lse_excess, excess);
    }
  }
  verdict.o_allowed = slack(p.dtype) * verdict.plain_error + 2 * floor;
  if (!lse_worst.empty()) verdict.fail(lse_worst);
  if (verdict.o_error > verdict.o_allowed)
    verdict.fail(fmt::format("O is off by {:.3g} at {}; {:.3g} is allowed (the plain computation is off by {:.3g})",
                             verdict.o_error, o_worst, verdict.o_allowed, verdict.plain_error));
}

}  // namespace

std::uint32_t poison(fa3_dtype dtype) {
  switch (dtype) {
    case FA3_F16: return 0xfeb5u;
    case FA3_BF16: return 0xffe5u;
    default: return 0xffe5b5a5u;
  }
}

void fill_poison(void* data, fa3_dtype dtype, int64_t elements) {
  if (element_bytes(dtype) == 2)
    std::fill_n(static_cast<std::uint16_t*>(data), elements, std::uint16_t(poison(dtype)));
  else
    std::fill_n(static_cast<std::uint32_t*>(data), elements, poison(dtype));
}

Verdict judge(const ForwardProblem& problem, int64_t max_rows, int threads, bool exact_scores) {
  Verdict verdict;
  if (problem.o.empty()) return verdict;
  with_dtype(problem.dtype, [&]<class T>(T) {
    if (const std::string what = unwritten<T>(problem); !what.empty()) return verdict.fail(what);
    const Expected expected = expected_rows(problem, max_rows, threads, !exact_scores);
    verdict.rows = int64_t(expected.rows.size());
    compare<T>(problem, expected, exact_scores, verdict);
  });
  return verdict;
}

}  // namespace fa3::check
