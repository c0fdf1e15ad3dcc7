// The C++ layer: what fa3.hpp checks itself (shapes, devices), and that it hands everything else on.
#include <gtest/gtest.h>

#include <algorithm>
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

/// q, k and v of e4m3 ones, and scales.
class CppLayerE4m3 : public CppLayer {
 protected:
  std::vector<std::uint8_t> e4m3 = std::vector<std::uint8_t>(65536, 0x38);
  std::vector<float> scales = std::vector<float>(64, 2.f);
  std::vector<std::uint16_t> o16 = std::vector<std::uint16_t>(2 * 200 * 4 * 16);
  ForwardOptions options;

  CppLayerE4m3() {
    q = {e4m3.data(), Shape{2, 200, 4, 16}, Dtype::e4m3, Device::cpu};
    k = v = {e4m3.data(), Shape{2, 300, 2, 16}, Dtype::e4m3, Device::cpu};
    o = {o16.data(), Shape{2, 200, 4, 16}, Dtype::f16, Device::cpu};
    options.q_scale = ScalesView::of_blocks(scales.data(), 2, 4, 2, Device::cpu);
    options.k_scale = ScalesView::of_heads(scales.data(), 2, 2, Device::cpu);
    options.v_scale = ScalesView::of_blocks(scales.data(), 2, 2, 3, Device::cpu);
  }
  void expect_scales_refused(const std::vector<std::string>& words) {
    const Status status = forward(q, k, v, o, {}, options);
    EXPECT_EQ(status.code(), FA3_INVALID_ARGUMENT);
    for (const std::string& word : words)
      EXPECT_NE(status.message().find(word), std::string::npos) << "no \"" << word << "\" in: " << status.message();
  }
};

TEST_F(CppLayerE4m3, ScalesReachTheKernel) {
  std::vector<float> row_lse(2 * 4 * 200);
  const RowTensor lse_view(row_lse.data(), {2, 4, 200}, Dtype::f32, Device::cpu);
  Status status = forward(q, k, v, o, lse_view, options);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(o16[0], 0x4000);                               // 2
  EXPECT_NEAR(row_lse[0], 4 * 4 + std::log(300.f), 1e-5);  // 16 products of 2 * 2, divided by 4
  status = forward(q, k, v, o, lse_view);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(o16[0], 0x3c00);
  EXPECT_NEAR(row_lse[0], 4 + std::log(300.f), 1e-5);
}

// With data and without.
TEST_F(CppLayerE4m3, LargestReachesDispatch) {
  q.device = k.device = v.device = o.device = Device::cuda;
  for (ScalesView* view : {&options.q_scale, &options.k_scale, &options.v_scale}) view->device = Device::cuda;
  const auto name = [&] {
    const char* kernel = "";
    const Status status = forward_kernel(q, k, v, o, {}, options, kernel);
    return status.ok() ? std::string(kernel) : status.message();
  };
  EXPECT_EQ(name(), "e4m3_d64");
  for (const bool data : {true, false}) {
    if (!data) options.q_scale = options.k_scale = options.v_scale = ScalesView();
    options.q_scale.largest = options.k_scale.largest = FA3_E4M3_NARROW_QK;
    options.v_scale.largest = FA3_E4M3_NARROW_V;
    EXPECT_EQ(name(), "e4m3_narrow_d64") << data;
    options.k_scale.largest = 449;
    EXPECT_NE(name().find("k_scale.largest is 449"), std::string::npos) << name();
  }
}

TEST_F(CppLayerE4m3, ShapesOfScales) {
  options.q_scale.shape[2] = 3;
  expect_scales_refused({"q_scale: shape is [2, 4, 3]", "[batch, heads, ceil(seqlen_q / 128)] = [2, 4, 2]"});
  options.q_scale = ScalesView::of_heads(scales.data(), 2, 4, Device::cpu);  // one for each key/value head, also of q
  expect_scales_refused({"q_scale: shape is [2, 4]", "[batch, kv_heads] = [2, 2]"});
  options.q_scale = {};
  options.k_scale.shape[0] = 1;
  expect_scales_refused({"k_scale: shape is [1, 2]", "[2, 2]"});
  options.k_scale = {};
  options.v_scale.shape[1] = 4;
  expect_scales_refused({"v_scale: shape is [2, 4, 3]", "[batch, kv_heads, ceil(seqlen_k / 128)] = [2, 2, 3]"});
}

TEST_F(CppLayerE4m3, DeviceOfScales) {
  options.v_scale.device = Device::cuda;
  expect_scales_refused({"v_scale", "device"});
}

class CppLayerBackward : public CppLayer {
 protected:
  ConstTensor d_o{memory.data(), Shape{2, 3, 4, 8}, Dtype::f32, Device::cpu};
  ConstTensor o_in{memory.data(), Shape{2, 3, 4, 8}, Dtype::f32, Device::cpu};
  std::vector<float> lse_memory = std::vector<float>(24, 4 + std::log(5.f));
  ConstRowTensor lse_in{lse_memory.data(), {2, 4, 3}, Dtype::f32, Device::cpu};
  Tensor dq{out.data(), Shape{2, 3, 4, 16}, Dtype::f32, Device::cpu};
  Tensor dk{out.data() + 512, Shape{2, 5, 2, 16}, Dtype::f32, Device::cpu};
  Tensor dv{out.data() + 1024, Shape{2, 5, 2, 8}, Dtype::f32, Device::cpu};

  Status call(const BackwardOptions& options = {}) { return backward(d_o, q, k, v, o_in, lse_in, dq, dk, dv, options); }
  void expect_backward_refused(const std::vector<std::string>& words) {
    const Status status = call();
    EXPECT_EQ(status.code(), FA3_INVALID_ARGUMENT);
    for (const std::string& word : words)
      EXPECT_NE(status.message().find(word), std::string::npos) << "no \"" << word << "\" in: " << status.message();
    for (float x : out) ASSERT_EQ(x, -1.f);
    std::size_t bytes = 77;
    EXPECT_FALSE(backward_workspace_size(d_o, q, k, v, o_in, lse_in, dq, dk, dv, {}, bytes));
    EXPECT_EQ(bytes, 77u);
    EXPECT_FALSE(backward_supported(d_o, q, k, v, o_in, lse_in, dq, dk, dv));
    const char* name = nullptr;
    EXPECT_FALSE(backward_kernel(d_o, q, k, v, o_in, lse_in, dq, dk, dv, {}, name));
    EXPECT_EQ(name, nullptr);
  }
};

TEST_F(CppLayerBackward, Gradients) {
  const Status status = call();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_NEAR(out[0], 0, 1e-6);
  EXPECT_NEAR(out[1024], 1.2f, 1e-6);
  std::size_t bytes = 1;
  const char* name = nullptr;
  ASSERT_TRUE(backward_workspace_size(d_o, q, k, v, o_in, lse_in, dq, dk, dv, {}, bytes).ok());
  ASSERT_TRUE(backward_supported(d_o, q, k, v, o_in, lse_in, dq, dk, dv).ok());
  ASSERT_TRUE(backward_kernel(d_o, q, k, v, o_in, lse_in, dq, dk, dv, {}, name).ok());
  EXPECT_EQ(bytes, 0u);
  EXPECT_TRUE(std::string(name).starts_with("cpu_")) << name;
}

TEST_F(CppLayerBackward, OptionsReachTheLibrary) {
  std::fill(lse_memory.begin(), lse_memory.end(), std::log(5.f));
  ASSERT_TRUE(call({.softmax_scale = 0.f, .deterministic = true}).ok());
  EXPECT_NEAR(out[1024], 1.2f, 1e-6);
  ASSERT_TRUE(call({.causal = true, .softmax_scale = 0.f}).ok());
  EXPECT_NEAR(out[1024 + 4 * 2 * 8], 0.4f, 1e-6);  // the last key is seen by the last of three rows only
  const Status status = call({.sm_margin = -5});
  EXPECT_NE(status.message().find("sm_margin is -5"), std::string::npos) << status.message();
}

TEST_F(CppLayerBackward, ShapeOfDo) {
  d_o.shape[1] = 4;
  expect_backward_refused({"d_o: shape is [2, 4, 4, 8]", "[batch, seqlen_q, heads, d_v] = [2, 3, 4, 8]"});
}

TEST_F(CppLayerBackward, ShapeOfO) {
  o_in.shape[3] = 16;
  expect_backward_refused({"o: shape is [2, 3, 4, 16]", "[2, 3, 4, 8]"});
}

TEST_F(CppLayerBackward, ShapeOfLse) {
  lse_in.shape = {2, 3, 4};
  expect_backward_refused({"lse: shape is [2, 3, 4]", "[batch, heads, seqlen_q] = [2, 4, 3]"});
}

TEST_F(CppLayerBackward, DtypeOfLse) {
  lse_in.dtype = Dtype::bf16;
  expect_backward_refused({"lse", "f32"});
}

TEST_F(CppLayerBackward, ShapesOfGradients) {
  dq.shape[3] = 8;
  expect_backward_refused({"dq: shape is [2, 3, 4, 8]", "[batch, seqlen_q, heads, d] = [2, 3, 4, 16]"});
  dq.shape[3] = 16, dk.shape[2] = 4;
  expect_backward_refused({"dk: shape is [2, 5, 4, 16]", "[batch, seqlen_k, kv_heads, d] = [2, 5, 2, 16]"});
  dk.shape[2] = 2, dv.shape[1] = 3;
  expect_backward_refused({"dv: shape is [2, 3, 2, 8]", "[batch, seqlen_k, kv_heads, d_v] = [2, 5, 2, 8]"});
}

TEST_F(CppLayerBackward, DeviceOfDv) {
  dv.device = Device::cuda;
  expect_backward_refused({"dv", "device"});
}

TEST_F(CppLayerBackward, TheLibrarysReasonIsHandedOn) {
  d_o.dtype = Dtype::bf16;
  expect_backward_refused({"d_o.dtype", "q.dtype"});
}

}  // namespace
}  // namespace fa3
