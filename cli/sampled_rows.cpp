#include "sampled_rows.hpp"

#include <algorithm>
#include <cmath>

#include "check/device.hpp"
#include "dtype.hpp"
#include "reference/forward.hpp"
#include "reference/share_out.hpp"

namespace fa3::cli {
namespace {

using std::int64_t;

template <class RowFunction>
SampledRows compute_rows(const ForwardProblem& p, std::vector<SampledRows::Row> rows, RowFunction row_function) {
  SampledRows result{std::move(rows), {}};
  result.o.resize(result.rows.size() * std::size_t(p.d_v));
  reference::share_out(int64_t(result.rows.size()), check::host_threads(), [&](int64_t i) {
    const SampledRows::Row& r = result.rows[std::size_t(i)];
    row_function(p, r.batch, r.head, r.row, &result.o[std::size_t(i * p.d_v)]);
  });
  return result;
}

}  // namespace

SampledRows exact_rows(const ForwardProblem& p, int64_t count) {
  const int64_t total = p.batch * p.seqlen_q * p.heads;
  count = std::min(count, total);
  std::vector<SampledRows::Row> rows;
  for (int64_t i = 0; i < count; ++i) {
    // Not a stride, which may hit the same head, or place in a block, each time.
    const auto number = count == 1 ? 0 : int64_t(double(i) * double(total - 1) / double(count - 1));
    rows.push_back({number / p.heads / p.seqlen_q, number / p.heads % p.seqlen_q, number % p.heads});
  }
  return compute_rows(p, std::move(rows), reference::forward_row);
}

SampledRows plain_rows(const ForwardProblem& problem, const SampledRows& like) {
  return compute_rows(problem, like.rows, reference::plain_forward_row);
}

SampledRows rows_of(const TensorRef& o, fa3_dtype dtype, const SampledRows& like) {
  SampledRows result{like.rows, {}};
  with_dtype(dtype, [&]<class T>(T) {
    for (const SampledRows::Row& r : like.rows) {
      const T* row = features<const T>(o, r.batch, r.row, r.head);
      for (int64_t c = 0; c < o.shape[3]; ++c) result.o.push_back(to_float(row[c]));
    }
  });
  return result;
}

Errors errors(const SampledRows& got, const SampledRows& right) {
  double squares = 0, right_squares = 0;
  Errors result;
  for (std::size_t i = 0; i < right.o.size(); ++i) {
    const double error = got.o[i] - right.o[i];
    squares += error * error;
    right_squares += right.o[i] * right.o[i];
    if (!(std::abs(error) <= result.largest)) result.largest = std::abs(error);  // NaN counts
  }
  result.rmse = std::sqrt(squares / double(std::max<std::size_t>(right.o.size(), 1)));
  result.relative = std::sqrt(squares / right_squares);
  return result;
}

}  // namespace fa3::cli
