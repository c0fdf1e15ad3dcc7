// The fp64 gradients against finite differences of the fp64 forward pass, and what they promise beyond that.
#include <gtest/gtest.h>

#include <utility>

#include "gradient_case.hpp"

namespace fa3::test {
namespace {

/// Of f32, where moving an element by a step is exact enough.
Shape f32(Shape shape) {
  shape.dtype = FA3_F32;
  return shape;
}

/// sum of dO * O, with the O of fp64.
double loss(const GradientCase& c) {
  const std::vector<double> o = reference::forward(c.problem).o;
  double sum = 0;
  std::size_t n = 0;
  AttentionCase::for_each(c.d_o, [&](auto b, auto s, auto h, auto i) { sum += c.get(c.d_o, b, s, h, i) * o[n++]; });
  return sum;
}

/// The derivative of loss() along random directions in q, k and v must be the product of gradient and direction.
void expect_derivatives(GradientCase& c) {
  const reference::Gradients gradients = reference::backward(c.backward(), reference::forward(c.problem));
  const std::pair<const TensorRef*, const std::vector<double>*> tensors[] = {
      {&c.problem.q, &gradients.dq}, {&c.problem.k, &gradients.dk}, {&c.problem.v, &gradients.dv}};
  std::mt19937 random(7);
  for (int t = 0; t < 3; ++t) {
    const TensorRef& x = *tensors[t].first;
    for (int direction = 0; direction < 4; ++direction) {
      SCOPED_TRACE(testing::Message() << "qkv"[t] << ", direction " << direction);
      std::vector<float> before;
      std::vector<double> along;
      // Steps of a power of two on elements cut to few digits: every sum is exact.
      constexpr double step = 0x1p-10;
      AttentionCase::for_each(x, [&](auto b, auto s, auto h, auto i) {
        before.push_back(c.get(x, b, s, h, i));
        along.push_back(int(random() % 3) - 1);
      });
      const auto moved = [&](double by) {
        std::size_t n = 0;
        AttentionCase::for_each(x, [&](auto b, auto s, auto h, auto i) {
          c.set(x, b, s, h, i, before[n] + float(by * along[n]));
          ++n;
        });
        return loss(c);
      };
      // Central differences of fourth order.
      const double measured = (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step);
      moved(0);
      double expected = 0, size = 0;
      for (std::size_t n = 0; n < along.size(); ++n) {
        expected += along[n] * (*tensors[t].second)[n];
        size += std::abs((*tensors[t].second)[n]);
      }
      EXPECT_NEAR(measured, expected, 1e-8 * (1 + size));
    }
  }
}

/// Cuts the inputs to multiples of 2^-8, so that what expect_derivatives() adds to them is exact.
void cut(GradientCase& c) {
  for (const TensorRef* t : {&c.problem.q, &c.problem.k, &c.problem.v})
    AttentionCase::for_each(*t, [&](auto b, auto s, auto h, auto i) {
      c.set(*t, b, s, h, i, std::round(c.get(*t, b, s, h, i) * 256) / 256);
    });
}

TEST(ReferenceBackward, AgreesWithFiniteDifferences) {
  const Shape shapes[] = {
      {.batch = 2, .heads = 2, .kv_heads = 2, .seqlen_q = 5, .seqlen_k = 7, .d = 8, .d_v = 8},
      {.batch = 1, .heads = 6, .kv_heads = 2, .seqlen_q = 5, .seqlen_k = 7, .d = 16, .d_v = 8},      // GQA, d_v < d
      {.heads = 4, .kv_heads = 1, .seqlen_q = 6, .seqlen_k = 6, .d = 8, .d_v = 24, .causal = true},  // MQA, d_v > d
      {.heads = 2, .kv_heads = 2, .seqlen_q = 4, .seqlen_k = 9, .d = 8, .d_v = 8, .causal = true},
      {.heads = 2, .kv_heads = 1, .seqlen_q = 9, .seqlen_k = 4, .d = 8, .d_v = 16, .causal = true},  // 5 rows see
                                                                                                     // nothing
      {.seqlen_q = 1, .seqlen_k = 5, .d = 8, .d_v = 8, .layout = Layout::gaps},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.heads << "/" << shape.kv_heads << " heads, " << shape.seqlen_q << " x "
                                    << shape.seqlen_k << ", d " << shape.d << ", " << shape.d_v
                                    << (shape.causal ? ", causal" : ""));
    GradientCase c(f32(shape));
    cut(c);
    expect_derivatives(c);
  }
}

TEST(ReferenceBackward, AgreesWithFiniteDifferencesAtEveryScale) {
  for (const float scale : {0.0f, -0.25f, 1.5f, -1.0f}) {
    SCOPED_TRACE(scale);
    GradientCase c(f32({.heads = 2, .kv_heads = 1, .seqlen_q = 5, .seqlen_k = 6, .d = 8, .d_v = 8, .causal = true}));
    c.problem.softmax_scale = scale;
    cut(c);
    expect_derivatives(c);
  }
}

TEST(ReferenceBackward, RowsThatSeeNothingHaveAndGiveNothing) {
  GradientCase c(f32({.heads = 2, .kv_heads = 2, .seqlen_q = 6, .seqlen_k = 2, .d = 8, .d_v = 8, .causal = true}));
  for (std::int64_t row = 0; row < 4; ++row) {  // they may hold anything
    c.set(c.problem.q, 0, row, 0, 0, NAN);
    c.set(c.d_o, 0, row, 1, 3, INFINITY);
  }
  const reference::Gradients g = reference::backward(c.backward(), reference::forward(c.problem));
  for (std::size_t i = 0; i < 4 * 2 * 8; ++i) EXPECT_EQ(g.dq[i], 0) << i;
  for (std::size_t i = 5 * 2 * 8; i < g.dq.size(); ++i) EXPECT_NE(g.dq[i], 0) << i;  // row 4 sees one key: 0, too
  for (const auto* x : {&g.dk, &g.dv})
    for (const double e : *x) EXPECT_TRUE(std::isfinite(e));
}

TEST(ReferenceBackward, ARowWithAnLseOfMinusInfinityGivesNothing) {
  GradientCase c(f32({.seqlen_q = 3, .seqlen_k = 4, .d = 8, .d_v = 8}));
  reference::Result forward = reference::forward(c.problem);
  const reference::Gradients with = reference::backward(c.backward(), forward);
  forward.lse[1] = -INFINITY;
  const reference::Gradients without = reference::backward(c.backward(), forward);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(without.dq[i], with.dq[i]);
    EXPECT_EQ(without.dq[8 + i], 0);
    EXPECT_NE(without.dv[i], with.dv[i]);
  }
}

// Keys shared out over two calls, each with O and LSE of all: dK and dV are parts of the whole, dQ adds up.
TEST(ReferenceBackward, PartsOfAKeySequenceAddUp) {
  GradientCase c(f32({.heads = 2, .kv_heads = 1, .seqlen_q = 5, .seqlen_k = 9, .d = 8, .d_v = 16}));
  const reference::Result forward = reference::forward(c.problem);
  const BackwardProblem whole = c.backward();
  const reference::Gradients all = reference::backward(whole, forward);
  std::vector<double> dq(all.dq.size()), dk, dv;
  for (const auto& [first, end] : {std::pair<std::int64_t, std::int64_t>{0, 4}, {4, 9}}) {
    BackwardProblem part = whole;
    part.seqlen_k = part.k.shape[1] = part.v.shape[1] = end - first;
    part.k.data = features<float>(whole.k, 0, first, 0);
    part.v.data = features<float>(whole.v, 0, first, 0);
    const reference::Gradients g = reference::backward(part, forward);
    for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += g.dq[i];
    dk.insert(dk.end(), g.dk.begin(), g.dk.end());
    dv.insert(dv.end(), g.dv.begin(), g.dv.end());
  }
  for (std::size_t i = 0; i < dq.size(); ++i) EXPECT_NEAR(dq[i], all.dq[i], 1e-13);
  EXPECT_EQ(dk, all.dk);
  EXPECT_EQ(dv, all.dv);
}

TEST(ReferenceBackward, ThreadsAndSingleRowsGiveTheSame) {
  GradientCase c({.batch = 2,
                  .heads = 4,
                  .kv_heads = 2,
                  .seqlen_q = 9,
                  .seqlen_k = 11,
                  .d = 16,
                  .d_v = 24,
                  .causal = true,
                  .layout = Layout::gaps});
  const reference::Result forward = reference::forward(c.problem);
  c.prepare(forward);
  const BackwardProblem p = c.backward();
  for (const bool plain : {false, true}) {
    const auto all = [&](int threads) {
      return plain ? reference::plain_backward(p, threads) : reference::backward(p, forward, threads);
    };
    const reference::Gradients one = all(1), three = all(3);
    EXPECT_EQ(one.dq, three.dq);
    EXPECT_EQ(one.dk, three.dk);
    EXPECT_EQ(one.dv, three.dv);
    std::vector<double> dq(16), dk(16), dv(24);
    const reference::RowGradients rows = plain ? reference::RowGradients(p) : reference::RowGradients(p, forward);
    rows.query(1, 3, 8, dq.data());
    rows.key(1, 1, 10, dk.data(), dv.data());
    EXPECT_TRUE(std::equal(dq.begin(), dq.end(), one.dq.begin() + ((1 * 9 + 8) * 4 + 3) * 16));
    EXPECT_TRUE(std::equal(dk.begin(), dk.end(), one.dk.begin() + ((1 * 11 + 10) * 2 + 1) * 16));
    EXPECT_TRUE(std::equal(dv.begin(), dv.end(), one.dv.begin() + ((1 * 11 + 10) * 2 + 1) * 24));
  }
}

TEST(ReferenceBackward, PlainRoundsPAndDsAndReadsOAndLse) {
  // One row, two keys of score 0, LSE log(3): P = 1/3, rounded to bf16. dO is 1 in feature 0, so dP = v_j0 and D = o_0.
  GradientCase c({.seqlen_q = 1, .seqlen_k = 2, .d = 8, .d_v = 8, .dtype = FA3_BF16});
  const auto zero = [&](const TensorRef& t) {
    AttentionCase::for_each(t, [&](auto b, auto s, auto h, auto i) { c.set(t, b, s, h, i, 0); });
  };
  for (const TensorRef* t : {&c.problem.q, &c.problem.k, &c.problem.v, &c.problem.o, &c.d_o}) zero(*t);
  c.problem.softmax_scale = 0.5f;
  c.set(c.problem.k, 0, 0, 0, 3, 1);
  c.set(c.problem.q, 0, 0, 0, 5, 1);
  c.set(c.problem.v, 0, 0, 0, 0, 2);
  c.set(c.problem.o, 0, 0, 0, 0, 0.75f);
  c.set(c.d_o, 0, 0, 0, 0, 1);
  c.problem.lse[0] = std::log(3.0f);
  const auto round = [](float x) { return to_float(from_float<Bfloat16>(x)); };
  const reference::Gradients g = reference::plain_backward(c.backward());
  const float p = std::exp(-std::log(3.0f)), ds = round(p * (2 - 0.75f));
  ASSERT_NE(round(p), p);
  EXPECT_EQ(g.dv[0], round(p));
  EXPECT_EQ(g.dq[3], round(0.5f * ds));
  EXPECT_EQ(g.dk[5], round(0.5f * ds));
  EXPECT_EQ(g.dk[8 + 5], round(0.5f * round(p * -0.75f)));
}

}  // namespace
}  // namespace fa3::test
