// The forward pass of e4m3 with every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "cpu/forward.hpp"
#include "dtype.hpp"
#include "reference/forward.hpp"

namespace fa3::test {
namespace {

using std::int64_t;

/// A dense problem with scales for each block; normal values, or what the test puts there.
struct E4m3Problem {
  std::vector<E4m3> q, k, v;
  std::vector<Half> o;
  std::vector<float> lse, q_scale, k_scale, v_scale;
  ForwardProblem p;

  E4m3Problem(int64_t heads, int64_t kv_heads, int64_t seqlen_q, int64_t seqlen_k, int64_t d, int64_t d_v,
              bool causal) {
    p.dtype = FA3_E4M3;
    p.batch = 1, p.heads = heads, p.kv_heads = kv_heads, p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k;
    p.d = d, p.d_v = d_v, p.causal = causal, p.softmax_scale = 1 / std::sqrt(float(d));
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const auto tensor = [&](auto& memory, int64_t seqlen, int64_t n, int64_t width) {
      memory.resize(std::size_t(seqlen * n * width));
      for (auto& x : memory) x = from_float<std::decay_t<decltype(x)>>(normal(random));
      return TensorRef{memory.data(), {1, seqlen, n, width}, {0, n * width, width, 1}};
    };
    p.q = tensor(q, seqlen_q, heads, d), p.k = tensor(k, seqlen_k, kv_heads, d);
    p.v = tensor(v, seqlen_k, kv_heads, d_v), p.o = tensor(o, seqlen_q, heads, d_v);
    lse.resize(std::size_t(heads * seqlen_q));
    p.lse = lse.data(), p.lse_stride = {0, seqlen_q, 1};
    std::uniform_real_distribution<float> exponent(-2, 1);
    const auto scales = [&](std::vector<float>& memory, int64_t n, int64_t seqlen) {
      const int64_t blocks = (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS;
      memory.resize(std::size_t(n * blocks));
      for (float& x : memory) x = std::exp2(exponent(random));
      return ScalesRef{memory.data(), true, {0, blocks, 1}};
    };
    p.q_scale = scales(q_scale, heads, seqlen_q), p.k_scale = scales(k_scale, kv_heads, seqlen_k);
    p.v_scale = scales(v_scale, kv_heads, seqlen_k);
  }
  E4m3Problem(const E4m3Problem&) = delete;
};

TEST(CpuForwardE4m3, AgreesWithFp64OnEveryInstructionSet) {
  for (const bool causal : {false, true}) {
    for (const int64_t d : {16, 80, 128}) {
      E4m3Problem x(4, 2, 270, 301, d, 144 - d, causal);
      const reference::Result exact = reference::forward(x.p);
      const std::vector<double> plain = reference::plain_e4m3_forward(x.p, exact.o, 1);
      double plain_error = 0;
      for (std::size_t i = 0; i < plain.size(); ++i)
        plain_error = std::max(plain_error, std::abs(plain[i] - exact.o[i]));
      for (const cpu::Simd& simd : cpu::usable_simds()) {
        SCOPED_TRACE(testing::Message() << simd.name << ", d " << d << (causal ? " causal" : ""));
        cpu::forward(x.p, simd, 2);
        double error = 0, lse_error = 0;
        for (std::size_t i = 0; i < plain.size(); ++i)
          error = std::max(error, std::abs(double(to_float(x.o[i])) - exact.o[i]));
        for (std::size_t i = 0; i < x.lse.size(); ++i)
          lse_error = std::max(lse_error, std::abs(double(x.lse[i]) - exact.lse[i]));
        EXPECT_LE(error, 2 * plain_error);
        EXPECT_GT(error, plain_error / 100);  // P is rounded
        EXPECT_LE(lse_error, 2e-5);           // what LSE sums is not
      }
    }
  }
}

TEST(CpuForwardE4m3, SameBitsWhateverTheThreads) {
  E4m3Problem x(6, 2, 300, 333, 64, 64, true);
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    cpu::forward(x.p, simd, 1);
    const std::vector<Half> one = x.o;
    cpu::forward(x.p, simd, 3);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), x.o.begin(), [](Half a, Half b) { return a.bits == b.bits; }))
        << simd.name;
  }
}

// Two keys, the weight of one 1, that of the other w. V is 0 and 256: O = 256 e4m3(256 w) / 256 / (1 + w).
TEST(CpuForwardE4m3, WeightsAreRoundedToE4m3) {
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    int different = 0;
    for (float log2_w = 0; log2_w > -20; log2_w -= 0.013f) {
      E4m3Problem x(1, 1, 1, 2, 16, 16, false);
      x.p.q_scale = x.p.v_scale = {};
      x.k_scale[0] = -log2_w * 0.693147181f;  // in one block with key 0, whose score is 0
      x.p.softmax_scale = 1;
      for (int c = 0; c < 16; ++c) {
        x.q[std::size_t(c)] = from_float<E4m3>(c == 0 ? 1.0f : 0.0f);
        x.k[std::size_t(c)] = from_float<E4m3>(0.0f);
        x.k[std::size_t(16 + c)] = from_float<E4m3>(c == 0 ? -1.0f : 0.0f);
        x.v[std::size_t(c)] = from_float<E4m3>(0.0f);
        x.v[std::size_t(16 + c)] = from_float<E4m3>(256.0f);
      }
      cpu::forward(x.p, simd, 1);
      const double w = std::exp(-double(x.k_scale[0]));
      const double rounded = double(to_float(from_float<E4m3>(float(256 * w)))), got = to_float(x.o[0]);
      different += std::abs(got - rounded / (1 + w)) > 1e-3 * (rounded + 1e-3);
    }
    EXPECT_LE(different, 3) << simd.name;  // ties may fall either way: exp2 is not exact
  }
}

TEST(CpuForwardE4m3, NanInAWeightStays) {
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    E4m3Problem x(2, 2, 40, 200, 32, 32, false);
    x.q[0] = {0x7f};  // row 0 of head 0
    cpu::forward(x.p, simd, 1);
    for (std::size_t i = 0; i < x.o.size(); ++i) ASSERT_EQ(std::isnan(to_float(x.o[i])), i < 32) << simd.name;
    EXPECT_TRUE(std::isnan(x.lse[0]));
    EXPECT_FALSE(std::isnan(x.lse[1]));
  }
}

}  // namespace
}  // namespace fa3::test
