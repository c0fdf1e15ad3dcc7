// The C++ layer: what fa3.hpp checks itself (shapes, devices), and that it hands everything else on.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "fa3/fa3.hpp"

namespace fa3 {
namespace {

using Shape = std::array<std::int64_t, 4>;

class CppLayer : public testing::Test {
 protected:
  std::vector<float> memory = std::vector<float>(4096, 1.f);
  std::vector<float> out = std::vector<float>(2048, -1.f);
  ConstTensor q{memory.data(), Shape{2, 3, 4, 16}, Dtype::f32, Device::cpu};
  ConstTensor k{memory.data(), Shape{2, 5, 2, 16}, Dtype::f32, Device::cpu};
  ConstTensor v{memory.data(), Shape{2, 5, 2, 8}, Dtype::f32, Device::cpu};
  Tensor o{out.data(), Shape{2, 3, 4, 8}, Dtype::f32, Device::cpu};
  RowTensor lse{out.data() + 1024, {2, 4, 3}, Dtype::f32, Device::cpu};

  void expect_refused(const std::vector<std::string>& words) {
    const Status status = forward(q, k, v, o, lse);
    EXPECT_EQ(status.code(), FA3_INVALID_ARGUMENT);
    for (const std::string& word : words)
      EXPECT_NE(status.message().find(word), std::string::npos) << "no \"" << word << "\" in: " << status.message();
    for (float x : out) ASSERT_EQ(x, -1.f);
  }
};

TEST_F(CppLayer, Forward) {
  const Status status = forward(q, k, v, o, lse);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(status.message(), "");
  for (int i = 0; i < 2 * 3 * 4 * 8; ++i) ASSERT_EQ(out[i], 1.f);
  EXPECT_EQ(out[2 * 3 * 4 * 8], -1.f);
  EXPECT_NEAR(out[1024], 4 + std::log(5.f), 1e-5);
}

TEST_F(CppLayer, ScaleReachesTheKernel) {
  ASSERT_TRUE(forward(q, k, v, o, lse, {.softmax_scale = 0.f}).ok());
  EXPECT_NEAR(out[1024], std::log(5.f), 1e-5);
}

TEST_F(CppLayer, CausalReachesTheKernel) {
  ASSERT_TRUE(forward(q, k, v, o, lse, {.causal = true}).ok());
  EXPECT_NEAR(out[1024], 4 + std::log(3.f), 1e-5);  // row 0 of 3 sees 3 of 5 keys
  EXPECT_NEAR(out[1026], 4 + std::log(5.f), 1e-5);
}

TEST_F(CppLayer, SmMarginReachesTheLibrary) {
  EXPECT_TRUE(forward(q, k, v, o, lse, {.sm_margin = 5}).ok());
  const Status status = forward(q, k, v, o, lse, {.sm_margin = -5});
  EXPECT_EQ(status.code(), FA3_INVALID_ARGUMENT);
  EXPECT_NE(status.message().find("sm_margin is -5"), std::string::npos) << status.message();
}

TEST_F(CppLayer, KernelName) {
  const char* name = nullptr;
  ASSERT_TRUE(forward_kernel(q, k, v, o, lse, {}, name).ok());
  EXPECT_TRUE(std::string(name).starts_with("cpu_")) << name;
  v.shape[1] = 6;
  EXPECT_EQ(forward_kernel(q, k, v, o, lse, {}, name).code(), FA3_INVALID_ARGUMENT);
}

TEST_F(CppLayer, WorkspaceOnTheCpuIsNothing) {
  std::size_t bytes = 1;
  ASSERT_TRUE(forward_workspace_size(q, k, v, o, lse, {}, bytes).ok());
  EXPECT_EQ(bytes, 0u);
  EXPECT_TRUE(forward_supported(q, k, v, o).ok());
}

TEST_F(CppLayer, ShapeOfK) {
  k.shape[3] = 24;
  expect_refused({"k", "[2, 5, 2, 24]", "[2, 5, 2, 16]"});
}

TEST_F(CppLayer, ShapeOfV) {
  v.shape[1] = 6;
  expect_refused({"v", "[2, 6, 2, 8]", "[2, 5, 2, 8]"});
}

TEST_F(CppLayer, ShapeOfO) {
  o.shape[0] = 1;
  expect_refused({"o", "[1, 3, 4, 8]", "[2, 3, 4, 8]"});
}

TEST_F(CppLayer, ShapeOfLse) {
  lse.shape[2] = 4;
  expect_refused({"lse", "[2, 4, 4]", "[2, 4, 3]"});
}

TEST_F(CppLayer, DtypeOfLse) {
  lse.dtype = Dtype::f16;
  expect_refused({"lse", "f32"});
}

TEST_F(CppLayer, DeviceOfV) {
  v.device = Device::cuda;
  expect_refused({"v", "device"});
}

TEST_F(CppLayer, TheLibrarysReasonIsHandedOn) {
  k.dtype = Dtype::bf16;
  expect_refused({"k.dtype", "q.dtype"});
}

}  // namespace
}  // namespace fa3
