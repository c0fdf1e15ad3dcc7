// The quantiser's kernel on the simulator, bit by bit.
#include "simulate/quantize.hpp"

#include <gtest/gtest.h>

#include <string>

#include "cpu/quantize_case.hpp"

namespace fa3 {
namespace {

using quantize_test::all_bits_case;
using quantize_test::Case;
using quantize_test::Trial;

std::string compare(const Case& c, simulator::Completion completion, std::uint64_t seed) {
  Trial trial(c);
  simulator::Options options;
  options.completion = completion;
  options.seed = seed;
  simulator::quantize(trial.problem(), options);
  return trial.difference();
}

TEST(QuantizeKernel, AgreesWithTheReference) {
  std::uint64_t seed = 0;
  for (const Case& c : quantize_test::small_cases()) {
    SCOPED_TRACE(c.name());
    EXPECT_EQ(compare(c, seed % 2 ? simulator::Completion::lazy : simulator::Completion::random, seed), "");
    ++seed;
  }
}

// Rounding, saturation, NaN and infinity in every place.
TEST(QuantizeKernel, AgreesWithTheReferenceOnAllBitPatterns) {
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16})
    for (const float scale : {0.0f, 1.0f, 0.37f, 1e20f, 1e-40f})
      for (const float largest : quantize_test::limits) {
        EXPECT_EQ(compare(all_bits_case(dtype, scale, largest), simulator::Completion::eager, 0), "")
            << scale << " up to " << largest;
      }
}

TEST(QuantizeKernel, LargestValues) {
  for (const Case& c : quantize_test::full_cases()) {
    SCOPED_TRACE(c.name());
    Trial trial(c);
    simulator::quantize(trial.problem(), {});
    EXPECT_EQ(trial.largest_code_found(), quantize_test::code_of(c.largest));
  }
}

}  // namespace
}  // namespace fa3
