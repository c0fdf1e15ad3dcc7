#include "cpu/backward.hpp"

#include <gtest/gtest.h>

#include "gradient_case.hpp"

namespace fa3::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> run(GradientCase& c, const cpu::Simd& simd, int threads = 1) {
  c.poison_gradients();
  cpu::backward(c.backward(), simd, threads);
  return c.gradient_bytes();
}

/// Runs the case with every instruction set of this machine and compares with the reference; O and LSE are `forward`'s.
void expect_right(GradientCase& c, const reference::Result& forward) {
  c.prepare(forward);
  const GradientExpectation expectation(c, forward);
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    run(c, simd, 2);
    EXPECT_EQ(expectation.complaint(c), "") << simd.name;
  }
}
void expect_right(GradientCase& c) { expect_right(c, reference::forward(c.problem)); }

TEST(CpuBackward, LengthsAroundTheTiles) {
  for (const std::int64_t seqlen_q : {1, 63, 64, 65, 127, 129, 200}) {
    for (const std::int64_t seqlen_k : {1, 63, 64, 65, 127, 129, 200}) {
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(testing::Message() << seqlen_q << " x " << seqlen_k << (causal ? " causal" : ""));
        GradientCase c({.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .d = 16, .d_v = 16, .causal = causal});
        expect_right(c);
      }
    }
  }
}

TEST(CpuBackward, HeadDimsAndTypes) {
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16, FA3_F32}) {
    for (const auto& [d, d_v] :
         {std::pair{8, 8}, {8, 256}, {64, 64}, {72, 40}, {128, 64}, {192, 128}, {256, 8}, {256, 256}}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", d " << d << ", d_v " << d_v);
      GradientCase c({.seqlen_q = 65, .seqlen_k = 100, .d = d, .d_v = d_v, .causal = true, .dtype = dtype});
      expect_right(c);
    }
  }
}

TEST(CpuBackward, GroupsOfHeads) {
  for (const std::int64_t group : {1, 4, 7}) {
    for (const std::int64_t seqlen_q : {1, 70}) {
      for (const std::int64_t seqlen_k : {40, 150}) {
        SCOPED_TRACE(testing::Message() << "group " << group << ", " << seqlen_q << " x " << seqlen_k);
        GradientCase c({.batch = 2,
                        .heads = 2 * group,
                        .kv_heads = 2,
                        .seqlen_q = seqlen_q,
                        .seqlen_k = seqlen_k,
                        .d = 24,
                        .d_v = 16,
                        .causal = true,
                        .dtype = FA3_BF16});
        expect_right(c);
      }
    }
  }
}

TEST(CpuBackward, Layouts) {
  for (const Layout layout : {Layout::dense, Layout::head_major, Layout::gaps}) {
    for (const fa3_dtype dtype : {FA3_F16, FA3_BF16, FA3_F32}) {
      SCOPED_TRACE(testing::Message() << "layout " << int(layout) << ", " << dtype_name(dtype));
      GradientCase c({.batch = 2,
                      .heads = 4,
                      .kv_heads = 2,
                      .seqlen_q = 67,
                      .seqlen_k = 131,
                      .d = 24,
                      .d_v = 40,
                      .causal = true,
                      .dtype = dtype,
                      .layout = layout});
      expect_right(c);
    }
  }
}

TEST(CpuBackward, StrideZeroRepeatsData) {
  for (int dimension = 0; dimension < 4; ++dimension) {
    SCOPED_TRACE(dimension);
    GradientCase c({.batch = 2, .heads = 3, .kv_heads = 3, .seqlen_q = 66, .seqlen_k = 70, .d = 16, .d_v = 16});
    if (dimension < 3)
      for (TensorRef* input : {&c.problem.q, &c.problem.k, &c.problem.v}) input->stride[dimension] = 0;
    c.d_o.stride[dimension] = 0;
    expect_right(c);
  }
  GradientCase c({.batch = 2, .heads = 3, .kv_heads = 3, .seqlen_q = 66, .seqlen_k = 70, .d = 16, .d_v = 16});
  c.d_o.stride = {0, 0, 0, 0};  // what the gradient of a sum is
  expect_right(c);
}

TEST(CpuBackward, FeaturesOfDoApart) {
  GradientCase c({.batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 66, .seqlen_k = 70, .d = 16, .d_v = 16});
  c.d_o.stride = {0, 16, 16, 2};  // elements of it repeat, which an input may
  c.d_o.shape[1] = 66;
  expect_right(c);
}

TEST(CpuBackward, Scales) {
  for (const float scale : {0.0f, -0.125f, -1.0f, 1e-20f, 2.0f}) {
    for (const fa3_dtype dtype : {FA3_BF16, FA3_F32}) {
      SCOPED_TRACE(testing::Message() << scale << ", " << dtype_name(dtype));
      GradientCase c({.heads = 2,
                      .kv_heads = 2,
                      .seqlen_q = 65,
                      .seqlen_k = 130,
                      .d = 16,
                      .d_v = 16,
                      .causal = true,
                      .dtype = dtype});
      c.problem.softmax_scale = scale;
      expect_right(c);
    }
  }
}

TEST(CpuBackward, LargeScores) {
  for (const float size : {10.0f, 100.0f}) {
    for (const fa3_dtype dtype : {FA3_F16, FA3_BF16, FA3_F32}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", size " << size);
      GradientCase c({.seqlen_q = 65, .seqlen_k = 130, .d = 16, .d_v = 16, .dtype = dtype});
      c.problem.softmax_scale = 1 / 16.0f;
      for (const TensorRef* t : {&c.problem.q, &c.problem.k})
        AttentionCase::for_each(
            *t, [&](auto b, auto s, auto h, auto i) { c.set(*t, b, s, h, i, size * c.get(*t, b, s, h, i)); });
      expect_right(c);
    }
  }
}

// Scores of 2e11: an LSE in f32 is off by thousands. The weight of the one key is 1 all the same, not an infinity.
TEST(CpuBackward, HugeScoresGiveNoInfinity) {
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    for (const float lse_off : {0.99999f, 1.0f}) {
      GradientCase c({.seqlen_q = 3, .seqlen_k = 1, .d = 8, .d_v = 8, .dtype = FA3_BF16});
      c.problem.softmax_scale = 1;
      AttentionCase::for_each(c.problem.q, [&](auto, auto s, auto, auto i) { c.set(c.problem.q, 0, s, 0, i, 131072); });
      AttentionCase::for_each(c.problem.k, [&](auto, auto s, auto, auto i) { c.set(c.problem.k, 0, s, 0, i, 131072); });
      c.prepare(reference::forward(c.problem));
      for (int i = 0; i < 3; ++i) c.problem.lse[i] *= lse_off;
      run(c, simd);
      for (int i = 0; i < 8; ++i) {
        float sum = 0;
        for (int row = 0; row < 3; ++row) sum += c.get(c.d_o, 0, row, 0, i);
        EXPECT_NEAR(c.get(c.dv, 0, 0, 0, i), sum, 0.02) << simd.name;
      }
    }
  }
}

// P is 1 and O is V: dP and D cancel to the last bit, whatever the instruction set.
TEST(CpuBackward, ARowWithOneKeyHasNoGradientInQ) {
  for (const std::int64_t d_v : {8, 40, 128}) {
    GradientCase c({.heads = 2, .kv_heads = 1, .seqlen_q = 130, .seqlen_k = 1, .d = 16, .d_v = d_v, .dtype = FA3_F32});
    c.prepare(reference::forward(c.problem));
    for (const cpu::Simd& simd : cpu::usable_simds()) {
      run(c, simd);
      AttentionCase::for_each(c.dq, [&](auto b, auto s, auto h, auto i) { ASSERT_EQ(c.get(c.dq, b, s, h, i), 0); });
    }
  }
}

TEST(CpuBackward, RowsWithoutKeys) {
  GradientCase c({.heads = 2, .kv_heads = 1, .seqlen_q = 150, .seqlen_k = 3, .d = 16, .d_v = 8, .causal = true});
  for (int row = 0; row < 147; row += 10) {  // what they hold does not matter
    c.set(c.problem.q, 0, row, 1, 2, nan);
    c.set(c.d_o, 0, row, 0, 2, infinity);
  }
  expect_right(c);
  for (int row = 0; row < 147; ++row) EXPECT_EQ(c.get(c.dq, 0, row, 0, 0), 0) << row;
}

TEST(CpuBackward, RowsWithAnLseOfMinusInfinity) {
  GradientCase c({.heads = 2, .kv_heads = 1, .seqlen_q = 70, .seqlen_k = 80, .d = 16, .d_v = 8});
  reference::Result forward = reference::forward(c.problem);
  for (int i : {0, 5, 6, 64, 69, 75}) forward.lse[std::size_t(i)] = -infinity;
  c.set(c.problem.q, 0, 5, 0, 1, nan);
  c.set(c.d_o, 0, 64, 0, 7, nan);
  expect_right(c, forward);
}

TEST(CpuBackward, NoKeysOrNoRows) {
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    GradientCase no_keys({.batch = 2, .heads = 2, .seqlen_q = 66, .seqlen_k = 0});
    no_keys.prepare(reference::forward(no_keys.problem));
    run(no_keys, simd);
    AttentionCase::for_each(no_keys.dq,
                            [&](auto b, auto s, auto h, auto i) { ASSERT_EQ(no_keys.get(no_keys.dq, b, s, h, i), 0); });
    GradientCase no_rows({.batch = 2, .heads = 2, .kv_heads = 2, .seqlen_q = 0, .seqlen_k = 66});
    run(no_rows, simd);
    for (const TensorRef* t : {&no_rows.dk, &no_rows.dv})
      AttentionCase::for_each(*t, [&](auto b, auto s, auto h, auto i) { ASSERT_EQ(no_rows.get(*t, b, s, h, i), 0); });
  }
  for (const Shape& shape : {Shape{.batch = 0}, Shape{.seqlen_q = 0, .seqlen_k = 0}}) {
    GradientCase c(shape);
    for (TensorRef* tensor : {&c.problem.q, &c.problem.k, &c.problem.v, &c.problem.o, &c.d_o, &c.dq, &c.dk, &c.dv})
      tensor->data = nullptr;
    cpu::backward(c.backward());  // must not touch anything
  }
}

TEST(CpuBackward, APartOfALongerKeySequence) {
  for (const bool causal : {false, true}) {
    for (const fa3_dtype dtype : {FA3_F16, FA3_F32}) {
      GradientCase c({.heads = 4,
                      .kv_heads = 2,
                      .seqlen_q = 100,
                      .seqlen_k = 170,
                      .d = 24,
                      .d_v = 16,
                      .causal = causal,
                      .dtype = dtype});
      const reference::Result forward = reference::forward(c.problem);
      c.prepare(forward);
      // The last 90 keys: with the mask aligned bottom-right, the first rows see none of them but have a finite LSE.
      for (TensorRef* t : {&c.problem.k, &c.problem.v, &c.dk, &c.dv}) {
        t->data = static_cast<std::byte*>(t->data) + 80 * t->stride[1] * std::int64_t(element_bytes(dtype));
        t->shape[1] = 90;
      }
      c.problem.seqlen_k = 90;
      const GradientExpectation expectation(c, forward);
      for (const cpu::Simd& simd : cpu::usable_simds()) {
        run(c, simd, 2);
        EXPECT_EQ(expectation.complaint(c), "") << simd.name;
      }
    }
  }
}

TEST(CpuBackward, NanReachesOnlyWhatSeesIt) {
  for (const float bad : {nan, infinity}) {
    for (const std::int64_t at : {0, 1, 64, 100, 129}) {
      SCOPED_TRACE(testing::Message() << bad << " in row " << at);
      const auto make = [] {
        return std::make_unique<GradientCase>(Shape{.batch = 2,
                                                    .heads = 2,
                                                    .kv_heads = 2,
                                                    .seqlen_q = 130,
                                                    .seqlen_k = 130,
                                                    .d = 16,
                                                    .d_v = 8,
                                                    .causal = true});
      };
      for (const int which : {0, 1, 2, 3}) {
        SCOPED_TRACE(which);
        auto c = make();
        const TensorRef* tensors[] = {&c->problem.q, &c->problem.k, &c->problem.v, &c->d_o};
        c->set(*tensors[which], 1, at, 1, 3, bad);
        expect_right(*c);
      }
    }
  }
}

TEST(CpuBackward, ThreadsDoNotChangeABit) {
  GradientCase c({.batch = 2,
                  .heads = 6,
                  .kv_heads = 3,
                  .seqlen_q = 200,
                  .seqlen_k = 170,
                  .d = 24,
                  .d_v = 24,
                  .causal = true,
                  .dtype = FA3_F32});
  c.prepare(reference::forward(c.problem));
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    const auto one = run(c, simd, 1);
    for (const int threads : {2, 3, 16}) EXPECT_EQ(run(c, simd, threads), one) << simd.name << ", " << threads;
  }
}

TEST(CpuBackward, DefaultIsTheWidestInstructionSet) {
  GradientCase c({.heads = 4, .kv_heads = 2, .seqlen_q = 300, .seqlen_k = 300});
  c.prepare(reference::forward(c.problem));
  const auto widest = run(c, cpu::usable_simds().front());
  c.poison_gradients();
  cpu::backward(c.backward());
  EXPECT_EQ(c.gradient_bytes(), widest);
}

}  // namespace
}  // namespace fa3::test
