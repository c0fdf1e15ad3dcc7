// Pure functions of the argument checks that no call on a single machine can exercise.
#include "api/checks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "backward_data.hpp"
#include "problem_data.hpp"

namespace fa3::api {
namespace {

TEST(CheckCapability, HopperOnly) {
  EXPECT_NO_THROW(check_capability(9, 0, "NVIDIA H200"));
  for (const auto& [major, minor] : {std::pair{7, 0}, {8, 0}, {8, 9}, {9, 1}, {10, 0}, {12, 0}}) {
    try {
      check_capability(major, minor, "Some GPU");
      ADD_FAILURE() << "accepted " << major << "." << minor;
    } catch (const Error& error) {
      EXPECT_EQ(error.code, FA3_NO_DEVICE);
      const std::string message = error.what();
      EXPECT_NE(message.find("Some GPU"), std::string::npos) << message;
      EXPECT_NE(message.find(std::to_string(major) + "." + std::to_string(minor)), std::string::npos) << message;
      EXPECT_NE(message.find("9.0"), std::string::npos) << message;
    }
  }
}

TEST(CheckForward, SmMarginReachesTheProblem) {
  test::ProblemData data;
  EXPECT_EQ(check_forward(&data.params).sm_margin, 0);
  data.params.sm_margin = 7;
  EXPECT_EQ(check_forward(&data.params).sm_margin, 7);
  data.params.struct_size = offsetof(fa3_forward_params, sm_margin);
  EXPECT_EQ(check_forward(&data.params).sm_margin, 0);
}

TEST(CheckBackward, TheProblemIsTheCallersWithDefaultsFilledIn) {
  test::BackwardData data;
  data.params.sm_margin = 7;
  data.params.deterministic = 1;
  data.params.causal = 1;
  const BackwardProblem p = check_backward(&data.params);
  EXPECT_EQ(p.sm_margin, 7);
  EXPECT_TRUE(p.deterministic);
  EXPECT_TRUE(p.causal);
  EXPECT_EQ(p.softmax_scale, 0.25f);
  EXPECT_EQ(p.lse, data.lse.data());
  EXPECT_EQ(p.lse_stride, (std::array<std::int64_t, 3>{12, 3, 1}));
  using Shape = std::array<std::int64_t, 4>;
  for (const auto& [tensor, given, shape] : {std::tuple{&p.d_o, &data.params.d_o, Shape{2, 3, 4, 8}},
                                             {&p.q, &data.params.q, Shape{2, 3, 4, 16}},
                                             {&p.k, &data.params.k, Shape{2, 5, 2, 16}},
                                             {&p.v, &data.params.v, Shape{2, 5, 2, 8}},
                                             {&p.o, &data.params.o, Shape{2, 3, 4, 8}},
                                             {&p.dq, &data.params.dq, Shape{2, 3, 4, 16}},
                                             {&p.dk, &data.params.dk, Shape{2, 5, 2, 16}},
                                             {&p.dv, &data.params.dv, Shape{2, 5, 2, 8}}}) {
    EXPECT_EQ(tensor->data, given->data);
    EXPECT_EQ(tensor->shape, shape);
    EXPECT_TRUE(std::equal(tensor->stride.begin(), tensor->stride.end(), given->stride));
  }
}

std::set<std::uintptr_t> bytes_of(const ByteBox& box) {
  std::set<std::uintptr_t> bytes = {box.base};
  for (const auto& [extent, stride] : box.dimensions) {
    std::set<std::uintptr_t> next;
    for (std::uintptr_t byte : bytes)
      for (std::int64_t i = 0; i < extent; ++i) next.insert(byte + std::uintptr_t(i * stride));
    bytes = next;
  }
  return bytes;
}

// Against the definition, over all small boxes of two dimensions of 2-byte elements.
TEST(BytesOverlap, AgreesWithListingTheBytes) {
  int overlapping = 0, separate = 0;
  for (std::uintptr_t base = 0; base < 40; base += 3)
    for (std::int64_t rows : {1, 2, 5})
      for (std::int64_t row_stride : {0, 4, 10, 16})
        for (std::int64_t other_rows : {1, 3, 4})
          for (std::int64_t other_stride : {0, 6, 16}) {
            const ByteBox a{100, {{rows, row_stride}, {2, 2}, {2, 1}}};
            const ByteBox b{90 + base, {{other_rows, other_stride}, {3, 2}, {2, 1}}};
            bool expected = false;
            const std::set<std::uintptr_t> of_b = bytes_of(b);
            for (std::uintptr_t byte : bytes_of(a)) expected |= of_b.count(byte) != 0;
            ++(expected ? overlapping : separate);
            ASSERT_EQ(bytes_overlap(a, b), expected) << "base " << base << " rows " << rows << " x " << row_stride
                                                     << ", " << other_rows << " x " << other_stride;
            ASSERT_EQ(bytes_overlap(b, a), expected);
          }
  EXPECT_GT(overlapping, 100);
  EXPECT_GT(separate, 100);
}

// q and o interleaved per head in one large allocation: decided, and without a search that takes long.
TEST(BytesOverlap, LargeInterleavedTensors) {
  const auto box = [](std::uintptr_t base) {
    return ByteBox{base, {{64, 8192LL * 32 * 512}, {8192, 32 * 512}, {32, 512}, {128, 2}, {2, 1}}};
  };
  EXPECT_FALSE(bytes_overlap(box(1 << 20), box((1 << 20) + 256)));
  EXPECT_TRUE(bytes_overlap(box(1 << 20), box((1 << 20) + 254)));
}

}  // namespace
}  // namespace fa3::api
