#include "reference/forward.hpp"

#include <gtest/gtest.h>

#include "attention_case.hpp"

namespace fa3::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(Reference, TwoKeysByHand) {
  AttentionCase c({.seqlen_q = 1, .seqlen_k = 2, .d = 8, .d_v = 8, .dtype = FA3_F32});
  for (int i = 0; i < 8; ++i) {
    c.set(c.problem.q, 0, 0, 0, i, i == 0 ? 2 : 0);
    c.set(c.problem.k, 0, 0, 0, i, i == 0 ? 3 : 1);
    c.set(c.problem.k, 0, 1, 0, i, i == 0 ? 1 : 5);
    c.set(c.problem.v, 0, 0, 0, i, float(i));
    c.set(c.problem.v, 0, 1, 0, i, 10);
  }
  c.problem.softmax_scale = 0.5f;  // scores 3 and 1
  const auto [o, lse] = reference::forward(c.problem);
  const double weight = 1 / (1 + std::exp(-2.0));
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(o[i], weight * i + (1 - weight) * 10, 1e-14);
  EXPECT_NEAR(lse[0], std::log(std::exp(3.0) + std::exp(1.0)), 1e-14);
}

TEST(Reference, CausalIsAlignedBottomRight) {
  // Scores are all 0: a row's output is the mean of the values it sees.
  for (const auto& [seqlen_q, seqlen_k] : {std::pair{3, 5}, {5, 3}, {4, 4}}) {
    AttentionCase c({.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .d = 8, .d_v = 8, .causal = true, .dtype = FA3_F32});
    c.problem.softmax_scale = 0;
    for (int j = 0; j < seqlen_k; ++j) c.set(c.problem.v, 0, j, 0, 0, float(j));
    const auto [o, lse] = reference::forward(c.problem);
    for (int i = 0; i < seqlen_q; ++i) {
      const int last = i + seqlen_k - seqlen_q;
      EXPECT_DOUBLE_EQ(o[i * 8], last < 0 ? 0 : last / 2.0);
      EXPECT_DOUBLE_EQ(lse[i], last < 0 ? -infinity : std::log(last + 1.0));
    }
  }
}

TEST(Reference, HeadsOfAGroupShareKeys) {
  AttentionCase grouped({.batch = 2, .heads = 6, .kv_heads = 2, .seqlen_q = 5, .seqlen_k = 7, .d = 16, .d_v = 8});
  AttentionCase full({.batch = 2, .heads = 6, .kv_heads = 6, .seqlen_q = 5, .seqlen_k = 7, .d = 16, .d_v = 8});
  const ForwardProblem &g = grouped.problem, &f = full.problem;
  AttentionCase::for_each(
      f.q, [&](auto b, auto s, auto h, auto c) { full.set(f.q, b, s, h, c, grouped.get(g.q, b, s, h, c)); });
  AttentionCase::for_each(
      f.k, [&](auto b, auto s, auto h, auto c) { full.set(f.k, b, s, h, c, grouped.get(g.k, b, s, h / 3, c)); });
  AttentionCase::for_each(
      f.v, [&](auto b, auto s, auto h, auto c) { full.set(f.v, b, s, h, c, grouped.get(g.v, b, s, h / 3, c)); });
  EXPECT_EQ(reference::forward(g).o, reference::forward(f).o);
  EXPECT_EQ(reference::plain_forward(g).o, reference::plain_forward(f).o);
}

TEST(Reference, ThreadsAndSingleRowsGiveTheSame) {
  const AttentionCase c({.batch = 2,
                         .heads = 4,
                         .kv_heads = 2,
                         .seqlen_q = 9,
                         .seqlen_k = 20,
                         .d = 16,
                         .d_v = 24,
                         .causal = true,
                         .layout = Layout::gaps});
  const auto one = reference::forward(c.problem), three = reference::forward(c.problem, 3);
  EXPECT_EQ(one.o, three.o);
  EXPECT_EQ(one.lse, three.lse);
  std::vector<double> o(24);
  EXPECT_EQ(reference::forward_row(c.problem, 1, 3, 8, o.data()), one.lse[(1 * 4 + 3) * 9 + 8]);
  EXPECT_TRUE(std::equal(o.begin(), o.end(), one.o.begin() + ((1 * 9 + 8) * 4 + 3) * 24));
}

TEST(Reference, PlainRoundsScoresWeightsAndOutput) {
  // bf16 has 8 significant bits. Scores 257 and 0 (257 rounds to 256), scale 1/128; values 1 and 0.
  AttentionCase c({.seqlen_q = 1, .seqlen_k = 2, .d = 8, .d_v = 8, .dtype = FA3_BF16});
  c.problem.softmax_scale = 1.0f / 128;
  for (int i = 0; i < 8; ++i) {
    c.set(c.problem.q, 0, 0, 0, i, i < 2 ? 1 : 0);
    c.set(c.problem.k, 0, 0, 0, i, i == 0 ? 256 : i == 1 ? 1 : 0);
    c.set(c.problem.k, 0, 1, 0, i, 0);
    c.set(c.problem.v, 0, 0, 0, i, 1);
    c.set(c.problem.v, 0, 1, 0, i, 0);
  }
  const float score = to_float(from_float<Bfloat16>(257.0f / 128));
  ASSERT_NE(score, 257.0f / 128);
  const auto plain = reference::plain_forward(c.problem);
  EXPECT_EQ(plain.o[0], to_float(from_float<Bfloat16>(1 / (1 + std::exp(-score)))));
  EXPECT_NEAR(plain.lse[0], score + std::log1p(std::exp(-score)), 1e-6);
  EXPECT_NEAR(reference::forward(c.problem).o[0], 1 / (1 + std::exp(-257.0 / 128)), 1e-14);
}

TEST(Reference, HugeScoresKeepTheLargestWeightAtOne) {
  AttentionCase c({.seqlen_q = 1, .seqlen_k = 3, .d = 8, .d_v = 8, .dtype = FA3_F32});
  c.problem.softmax_scale = 1;
  AttentionCase::for_each(c.problem.k,
                          [&](auto, auto s, auto, auto i) { c.set(c.problem.k, 0, s, 0, i, s == 1 ? 2e10f : 1); });
  AttentionCase::for_each(c.problem.q, [&](auto, auto, auto, auto i) { c.set(c.problem.q, 0, 0, 0, i, 1); });
  const auto [o, lse] = reference::forward(c.problem);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(o[i], c.get(c.problem.v, 0, 1, 0, i));
  EXPECT_EQ(lse[0], 8.0 * double(2e10f));
}

}  // namespace
}  // namespace fa3::test
