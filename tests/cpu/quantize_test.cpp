// The quantiser of the CPU backend, bit by bit against one written from docs/numerics.md alone, in fp64 and integers
// where that is exact.
#include "cpu/quantize.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "quantize_case.hpp"

namespace fa3 {
namespace {

using quantize_test::all_bits_case;
using quantize_test::Case;
using quantize_test::Trial;

std::string compare(const Case& c) {
  Trial run(c);
  cpu::quantize(run.problem());
  return run.difference();
}

TEST(Quantize, AgreesWithTheReferenceOnManyValues) {
  std::int64_t values = 0;
  for (const Case& c : quantize_test::large_cases()) {
    SCOPED_TRACE(c.name());
    EXPECT_EQ(compare(c), "");
    values += c.elements();
  }
  EXPECT_GT(values, 10'000'000);
}

TEST(Quantize, AgreesWithTheReferenceOnSmallShapes) {
  for (const Case& c : quantize_test::small_cases()) {
    SCOPED_TRACE(c.name());
    EXPECT_EQ(compare(c), "");
  }
  Case c;
  c.dtype = FA3_F32;
  c.rotate = true;
  EXPECT_EQ(compare(c), "");
}

// Rounding, saturation and the ends of the range: every product of a 16-bit value and a scale.
TEST(Quantize, AgreesWithTheReferenceOnAllBitPatterns) {
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16})
    for (const float scale : {0.0f, 1.0f, 0.37f, 0x1p-20f, 1e20f, 1e-40f})
      for (const float largest : quantize_test::limits) {
        EXPECT_EQ(compare(all_bits_case(dtype, scale, largest)), "") << scale << " up to " << largest;
      }
}

TEST(Quantize, LargestValues) {
  for (const Case& c : quantize_test::full_cases()) {
    SCOPED_TRACE(c.name());
    Trial run(c);
    cpu::quantize(run.problem());
    EXPECT_EQ(run.largest_code_found(), quantize_test::code_of(c.largest));
  }
}

TEST(Quantize, RotationKeepsScalarProducts) {
  for (const std::int64_t d : {16, 32, 48, 64, 80, 96, 112, 128, 192, 240, 256}) {
    Case c;
    c.dtype = FA3_F32;
    c.batch = 1, c.seqlen = 2, c.heads = 1, c.d = d;
    c.rotate = true;
    Trial run(c);
    const std::vector<float> x = run.transformed(0, 0, 0), y = run.transformed(0, 1, 0);
    c.rotate = false;
    Trial plain(c);
    const std::vector<float> x0 = plain.transformed(0, 0, 0), y0 = plain.transformed(0, 1, 0);
    double product = 0, product0 = 0, norm = 0, norm0 = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      product += double(x[i]) * y[i], product0 += double(x0[i]) * y0[i];
      norm += double(x[i]) * x[i], norm0 += double(x0[i]) * x0[i];
    }
    EXPECT_NEAR(norm, norm0, 4e-6 * norm0) << d;
    EXPECT_NEAR(product, product0, 4e-6 * norm0) << d;
  }
}

// An outlier is spread over all features.
TEST(Quantize, RotationSpreadsOutliers) {
  Case c;
  c.dtype = FA3_F32;
  c.batch = 1, c.seqlen = 1, c.heads = 1, c.d = 128;
  c.values = Case::Values::one_outlier;
  c.rotate = true;
  for (const float x : Trial(c).transformed(0, 0, 0)) EXPECT_NEAR(std::abs(x), 1000 / std::sqrt(128.0f), 1e-3);
}

TEST(Quantize, SignsDependOnTheSeed) {
  Case c;
  c.batch = 1, c.seqlen = 1, c.heads = 1, c.d = 128, c.dtype = FA3_F32;
  c.rotate = true;
  const std::vector<float> first = Trial(c).transformed(0, 0, 0);
  ++c.seed;
  EXPECT_NE(first, Trial(c).transformed(0, 0, 0));
}

}  // namespace
}  // namespace fa3
