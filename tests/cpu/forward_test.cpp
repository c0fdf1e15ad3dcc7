#include "cpu/forward.hpp"

#include <gtest/gtest.h>

#include "attention_case.hpp"

namespace fa3::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Runs the case with every instruction set of this machine and compares with the reference.
void expect_right(AttentionCase& c) {
  const Expectation expectation(c.problem);
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    c.poison_outputs();
    cpu::forward(c.problem, simd, 2);
    EXPECT_EQ(expectation.complaint(c), "") << simd.name;
  }
}

std::vector<std::byte> run(AttentionCase& c, const cpu::Simd& simd, int threads = 1) {
  c.poison_outputs();
  cpu::forward(c.problem, simd, threads);
  return c.output_bytes();
}

TEST(CpuForward, LengthsAroundTheTiles) {
  for (const std::int64_t seqlen_q : {1, 63, 64, 65, 127, 129, 300}) {
    for (const std::int64_t seqlen_k : {1, 63, 64, 65, 127, 129, 300}) {
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(testing::Message() << seqlen_q << " x " << seqlen_k << (causal ? " causal" : ""));
        AttentionCase c({.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .d = 32, .d_v = 32, .causal = causal});
        expect_right(c);
      }
    }
  }
}

TEST(CpuForward, HeadDimsAndTypes) {
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16, FA3_F32}) {
    for (const std::int64_t d : {8, 64, 72, 128, 256}) {
      for (const std::int64_t d_v : {8, 64, 72, 128, 256}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", d " << d << ", d_v " << d_v);
        AttentionCase c({.seqlen_q = 65, .seqlen_k = 130, .d = d, .d_v = d_v, .causal = true, .dtype = dtype});
        expect_right(c);
      }
    }
  }
}

TEST(CpuForward, GroupsOfHeads) {
  for (const std::int64_t group : {1, 4, 7}) {
    for (const std::int64_t seqlen_q : {1, 70}) {
      for (const std::int64_t seqlen_k : {40, 100}) {
        SCOPED_TRACE(testing::Message() << "group " << group << ", " << seqlen_q << " x " << seqlen_k);
        AttentionCase c({.batch = 2,
                         .heads = 2 * group,
                         .kv_heads = 2,
                         .seqlen_q = seqlen_q,
                         .seqlen_k = seqlen_k,
                         .d = 40,
                         .d_v = 24,
                         .causal = true,
                         .dtype = FA3_BF16});
        expect_right(c);
      }
    }
  }
}

TEST(CpuForward, Layouts) {
  for (const Layout layout : {Layout::dense, Layout::head_major, Layout::gaps}) {
    for (const fa3_dtype dtype : {FA3_F16, FA3_BF16, FA3_F32}) {
      SCOPED_TRACE(testing::Message() << "layout " << int(layout) << ", " << dtype_name(dtype));
      AttentionCase c({.batch = 2,
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

TEST(CpuForward, StrideZeroRepeatsData) {
  for (int dimension = 0; dimension < 3; ++dimension) {
    SCOPED_TRACE(dimension);
    AttentionCase c({.batch = 2, .heads = 3, .kv_heads = 3, .seqlen_q = 66, .seqlen_k = 70, .d = 16, .d_v = 16});
    for (TensorRef* input : {&c.problem.q, &c.problem.k, &c.problem.v}) input->stride[dimension] = 0;
    expect_right(c);
  }
}

TEST(CpuForward, Scales) {
  for (const float scale : {0.0f, -0.125f, -3.0f, 1e-20f, 7.0f, 3e38f}) {
    SCOPED_TRACE(scale);
    AttentionCase c({.heads = 2, .kv_heads = 2, .seqlen_q = 65, .seqlen_k = 200, .causal = true, .dtype = FA3_F32});
    c.problem.softmax_scale = scale;
    if (scale == 3e38f) {
      // The plain computation overflows here: one key takes all.
      const std::vector<double> exact = reference::forward(c.problem).o;
      for (const cpu::Simd& simd : cpu::usable_simds()) {
        run(c, simd);
        AttentionCase::for_each(c.problem.o, [&](auto b, auto s, auto h, auto i) {
          ASSERT_EQ(c.get(c.problem.o, b, s, h, i), exact[std::size_t((s * 2 + h) * 64 + i)]);
        });
      }
    } else {
      expect_right(c);
    }
  }
}

TEST(CpuForward, OneHotKey) {
  // Its score is so far above the others that its weight is exactly 1: O is its value, bit by bit, and LSE its score.
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16, FA3_F32}) {
    for (const float score : {1e5f, 1e6f, 2e11f}) {
      for (const std::int64_t hot : {0, 63, 64, 150}) {
        if (dtype == FA3_F16 && score > 1e9f) continue;  // out of its range
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", score " << score << ", key " << hot);
        AttentionCase c({.seqlen_q = 3, .seqlen_k = 151, .dtype = dtype});
        c.problem.softmax_scale = 1;
        const float half = std::exp2(std::round(std::log2(score) / 2));  // q = k = half: the score is half * half
        AttentionCase::for_each(c.problem.q,
                                [&](auto, auto s, auto, auto i) { c.set(c.problem.q, 0, s, 0, i, i == 0 ? half : 0); });
        c.set(c.problem.k, 0, hot, 0, 0, half);
        for (const cpu::Simd& simd : cpu::usable_simds()) {
          run(c, simd);
          for (int row = 0; row < 3; ++row) {
            for (int i = 0; i < 64; ++i) ASSERT_EQ(c.get(c.problem.o, 0, row, 0, i), c.get(c.problem.v, 0, hot, 0, i));
            ASSERT_EQ(c.lse(0, 0, row), half * half);
          }
        }
      }
    }
  }
}

TEST(CpuForward, LargeScores) {
  // d is small: summed over many features, scores of this size carry more rounding of f32 than LSE is allowed.
  for (const float size : {10.0f, 100.0f, 240.0f}) {  // scaled scores up to about 6e4 with the largest
    for (const fa3_dtype dtype : {FA3_F16, FA3_BF16, FA3_F32}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", size " << size);
      AttentionCase c({.seqlen_q = 65, .seqlen_k = 200, .d = 16, .dtype = dtype});
      c.problem.softmax_scale = 1 / 16.0f;
      for (const TensorRef* t : {&c.problem.q, &c.problem.k}) {
        AttentionCase::for_each(
            *t, [&](auto b, auto s, auto h, auto i) { c.set(*t, b, s, h, i, size * c.get(*t, b, s, h, i)); });
      }
      expect_right(c);
    }
  }
}

TEST(CpuForward, NoKeys) {
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    AttentionCase none({.batch = 2, .heads = 2, .seqlen_q = 66, .seqlen_k = 0});
    none.problem.k.data = none.problem.v.data = nullptr;
    run(none, simd);
    AttentionCase::for_each(
        none.problem.o, [&](auto b, auto s, auto h, auto i) { ASSERT_EQ(none.get(none.problem.o, b, s, h, i), 0); });
    for (int row = 0; row < 66; ++row) ASSERT_EQ(none.lse(1, 1, row), -infinity);
  }
  AttentionCase some({.seqlen_q = 150, .seqlen_k = 3, .causal = true});  // rows 0 to 146 see none
  expect_right(some);
  EXPECT_EQ(some.lse(0, 0, 146), -infinity);
  EXPECT_TRUE(std::isfinite(some.lse(0, 0, 147)));
}

TEST(CpuForward, NothingToDo) {
  for (const Shape& shape : {Shape{.batch = 0}, Shape{.seqlen_q = 0}, Shape{.heads = 0, .kv_heads = 0}}) {
    AttentionCase c(shape);
    for (TensorRef* tensor : {&c.problem.q, &c.problem.o}) tensor->data = nullptr;
    cpu::forward(c.problem);  // must not touch anything
  }
}

TEST(CpuForward, LseIsOptional) {
  AttentionCase c({.seqlen_q = 70, .seqlen_k = 70});
  const Expectation expectation(c.problem);
  c.poison_outputs();
  c.problem.lse = nullptr;
  cpu::forward(c.problem);
  EXPECT_EQ(c.gaps_written(), -70);  // only the 70 elements of lse are untouched
}

TEST(CpuForward, NanStaysInItsHeadAndBatch) {
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    for (const float bad : {nan, infinity, -infinity}) {
      SCOPED_TRACE(testing::Message() << simd.name << ", " << bad);
      AttentionCase c({.batch = 2, .heads = 4, .kv_heads = 2, .seqlen_q = 70, .seqlen_k = 90, .d = 16, .d_v = 16});
      run(c, simd);
      std::vector<float> clean;
      AttentionCase::for_each(c.problem.o,
                              [&](auto b, auto s, auto h, auto i) { clean.push_back(c.get(c.problem.o, b, s, h, i)); });
      // Batch 0, key/value head 1: query heads 2 and 3.
      for (int j = 0; j < 90; ++j) {
        c.set(c.problem.k, 0, j, 1, j % 16, bad);
        c.set(c.problem.v, 0, j, 1, j % 16, bad);
      }
      run(c, simd, 2);
      std::size_t n = 0;
      AttentionCase::for_each(c.problem.o, [&](auto b, auto s, auto h, auto i) {
        const float value = c.get(c.problem.o, b, s, h, i);
        if (b == 0 && h >= 2) {
          ASSERT_FALSE(std::isfinite(value)) << s;
        } else {
          ASSERT_EQ(value, clean[n]) << b << ' ' << s << ' ' << h;
        }
        ++n;
      });
    }
  }
}

TEST(CpuForward, NanReachesOnlyRowsThatSeeIt) {
  for (const float bad : {nan, infinity}) {
    for (const std::int64_t key : {0, 1, 64, 100, 129}) {
      SCOPED_TRACE(testing::Message() << bad << " in key " << key);
      AttentionCase c({.seqlen_q = 130, .seqlen_k = 130, .d = 16, .d_v = 16, .causal = true});
      for (int i = 0; i < 16; ++i) c.set(c.problem.v, 0, key, 0, i, bad);
      expect_right(c);
      for (int i = 0; i < 16; ++i) c.set(c.problem.k, 0, key, 0, i, nan);
      expect_right(c);
    }
  }
  AttentionCase c({.seqlen_q = 130, .seqlen_k = 130, .d = 16, .d_v = 16});
  c.set(c.problem.q, 0, 77, 0, 3, nan);
  expect_right(c);
}

TEST(CpuForward, ScoresOfMinusInfinity) {
  // Keys 0 to 69 score -inf for every row, more than one block of them: they have no weight. Rows that see only those
  // are 0 / 0.
  AttentionCase c({.seqlen_q = 80, .seqlen_k = 80, .d = 16, .d_v = 16, .causal = true});
  for (int row = 0; row < 80; ++row) c.set(c.problem.q, 0, row, 0, 5, 1);
  for (int j = 0; j < 70; ++j) c.set(c.problem.k, 0, j, 0, 5, -infinity);
  expect_right(c);
  EXPECT_TRUE(std::isnan(c.lse(0, 0, 69)));
  EXPECT_TRUE(std::isfinite(c.lse(0, 0, 70)));
}

TEST(CpuForward, ThreadsDoNotChangeABit) {
  AttentionCase c({.batch = 2,
                   .heads = 6,
                   .kv_heads = 3,
                   .seqlen_q = 200,
                   .seqlen_k = 170,
                   .d = 24,
                   .d_v = 24,
                   .causal = true,
                   .dtype = FA3_F32});
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    const auto one = run(c, simd, 1);
    for (const int threads : {2, 3, 16}) EXPECT_EQ(run(c, simd, threads), one) << simd.name << ", " << threads;
  }
}

TEST(CpuForward, ARowAloneGetsTheSameBits) {
  AttentionCase c({.heads = 3, .kv_heads = 1, .seqlen_q = 131, .seqlen_k = 150, .d = 24, .d_v = 40, .dtype = FA3_F32});
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    run(c, simd);
    AttentionCase all(
        {.heads = 3, .kv_heads = 1, .seqlen_q = 131, .seqlen_k = 150, .d = 24, .d_v = 40, .dtype = FA3_F32});
    run(all, simd);
    for (std::int64_t row = 0; row < 131; ++row) {
      ForwardProblem alone = c.problem;
      alone.seqlen_q = alone.q.shape[1] = alone.o.shape[1] = 1;
      alone.q.data = static_cast<float*>(c.problem.q.data) + row * c.problem.q.stride[1];
      std::vector<float> o(3 * 40), lse(3);
      alone.o.data = o.data();
      alone.o.stride = {0, 0, 40, 1};
      alone.lse = lse.data();
      alone.lse_stride = {0, 1, 0};
      cpu::forward(alone, simd, 1);
      for (int h = 0; h < 3; ++h) {
        for (int i = 0; i < 40; ++i) ASSERT_EQ(o[std::size_t(h * 40 + i)], all.get(all.problem.o, 0, row, h, i));
        ASSERT_EQ(lse[std::size_t(h)], all.lse(0, h, row));
      }
    }
  }
}

TEST(CpuForward, DefaultIsTheWidestInstructionSet) {
  AttentionCase c({.heads = 4, .kv_heads = 2, .seqlen_q = 300, .seqlen_k = 300});
  const auto widest = run(c, cpu::usable_simds().front());
  c.poison_outputs();
  cpu::forward(c.problem);
  EXPECT_EQ(c.output_bytes(), widest);
  EXPECT_STREQ(cpu::simd_name(), cpu::usable_simds().front().name);
}

}  // namespace
}  // namespace fa3::test
