// The backward pass through the C ABI: every refusal, and legal calls at the edge of the contract.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backward_data.hpp"
#include "bad_input.hpp"

namespace fa3::test {
namespace {

constexpr Calls<fa3_backward_params> backward_calls = {fa3_backward, fa3_backward_supported,
                                                       fa3_backward_workspace_size, fa3_backward_kernel};

class BadBackwardInputTest : public testing::TestWithParam<BadInput<BackwardData>> {};

TEST_P(BadBackwardInputTest, IsRefused) { expect_refused(GetParam(), backward_calls); }

template <class T>
T* shifted(T* pointer, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(pointer) + bytes);
}

const BadInput<BackwardData> bad_inputs[] = {
    {"StructSize", [](auto& x) { x.params.struct_size -= 8; }, {"struct_size", "sizeof(fa3_backward_params)"}},
    {"StructSizeOfTheForwardPass", [](auto& x) { x.params.struct_size = sizeof(fa3_forward_params); }, {"struct_size"}},
    {"ApiVersion", [](auto& x) { x.params.api_version = 2; }, {"api_version", "2", "1"}},
    {"E4m3",
     [](auto& x) {
       for (fa3_tensor* t : {&x.params.q, &x.params.k, &x.params.v, &x.params.d_o, &x.params.o, &x.params.dq,
                             &x.params.dk, &x.params.dv})
         t->dtype = FA3_E4M3;
     },
     {"q.dtype is FA3_E4M3 (3)", "forward pass", "FA3_F16", "FA3_BF16", "FA3_F32"}},
    {"Device", [](auto& x) { x.params.device = 0; }, {"device is 0", "FA3_DEVICE_CUDA", "FA3_DEVICE_CPU"}},
    {"Causal", [](auto& x) { x.params.causal = -1; }, {"causal is -1", "0 or 1"}},
    {"Deterministic", [](auto& x) { x.params.deterministic = 2; }, {"deterministic is 2", "0 or 1"}},
    {"SmMargin", [](auto& x) { x.params.sm_margin = -1; }, {"sm_margin is -1", "negative"}},
    {"Scale",
     [](auto& x) { x.params.softmax_scale_set = 1, x.params.softmax_scale = NAN; },
     {"softmax_scale", "nan", "finite"}},
    {"ScaleSet", [](auto& x) { x.params.softmax_scale_set = 3; }, {"softmax_scale_set is 3", "0 or 1"}},
    {"Batch", [](auto& x) { x.params.batch = -1; }, {"batch is -1", "negative"}},
    {"Heads", [](auto& x) { x.params.heads = 3; }, {"heads is 3", "multiple of kv_heads = 2"}},
    {"KvHeads", [](auto& x) { x.params.kv_heads = 0; }, {"kv_heads is 0", "at least 1"}},
    {"SeqlenQ", [](auto& x) { x.params.seqlen_q = -3; }, {"seqlen_q is -3", "negative"}},
    {"SeqlenK", [](auto& x) { x.params.seqlen_k = std::int64_t(1) << 31; }, {"seqlen_k is 2147483648", "2^31"}},
    {"D", [](auto& x) { x.params.d = 12; }, {"d is 12", "multiple of 8", "256"}},
    {"Dv", [](auto& x) { x.params.d_v = 264; }, {"d_v is 264", "multiple of 8", "256"}},

    {"NullDo", [](auto& x) { x.params.d_o.data = nullptr; }, {"d_o.data", "null"}},
    {"NullQ", [](auto& x) { x.params.q.data = nullptr; }, {"q.data", "null"}},
    {"NullK", [](auto& x) { x.params.k.data = nullptr; }, {"k.data", "null"}},
    {"NullV", [](auto& x) { x.params.v.data = nullptr; }, {"v.data", "null"}},
    {"NullO", [](auto& x) { x.params.o.data = nullptr; }, {"o.data", "null"}},
    {"NullLse", [](auto& x) { x.params.lse = nullptr; }, {"lse", "null"}},
    {"NullDq", [](auto& x) { x.params.dq.data = nullptr; }, {"dq.data", "null"}},
    {"NullDk", [](auto& x) { x.params.dk.data = nullptr; }, {"dk.data", "null"}},
    {"NullDv", [](auto& x) { x.params.dv.data = nullptr; }, {"dv.data", "null"}},

    {"DtypeOfDo", [](auto& x) { x.params.d_o.dtype = 5; }, {"d_o.dtype is 5", "FA3_F16", "FA3_BF16", "FA3_F32"}},
    {"MixedDtypesDo", [](auto& x) { x.params.d_o.dtype = FA3_BF16; }, {"d_o.dtype is 2", "q.dtype is 1", "one dtype"}},
    {"MixedDtypesK", [](auto& x) { x.params.k.dtype = FA3_F32; }, {"k.dtype is 4", "q.dtype is 1"}},
    {"MixedDtypesO", [](auto& x) { x.params.o.dtype = FA3_F32; }, {"o.dtype is 4", "q.dtype is 1"}},
    {"MixedDtypesDq", [](auto& x) { x.params.dq.dtype = FA3_F32; }, {"dq.dtype is 4", "q.dtype is 1"}},
    {"MixedDtypesDk", [](auto& x) { x.params.dk.dtype = FA3_F32; }, {"dk.dtype is 4", "q.dtype is 1"}},
    {"DtypeOfDv", [](auto& x) { x.params.dv.dtype = 0; }, {"dv.dtype is 0", "FA3_F16"}},
    {"F32OnCuda",
     [](auto& x) {
       x.params.device = FA3_DEVICE_CUDA;
       for (fa3_tensor* tensor : x.tensors()) tensor->dtype = FA3_F32;
     },
     {"q.dtype", "FA3_F32", "FA3_F16", "FA3_BF16"},
     FA3_NOT_SUPPORTED},
    {"NegativeStrideOfDo", [](auto& x) { x.params.d_o.stride[3] = -1; }, {"d_o.stride[3] is -1", "negative"}},
    {"NegativeStrideOfQ", [](auto& x) { x.params.q.stride[0] = -192; }, {"q.stride[0] is -192", "negative"}},
    {"NegativeStrideOfLse", [](auto& x) { x.params.lse_stride[1] = -1; }, {"lse_stride[1] is -1", "negative"}},
    {"FeaturesOfOApart", [](auto& x) { x.params.o.stride[3] = 2; }, {"o.stride[3] is 2", "contiguous"}},
    {"FeaturesOfDqApart", [](auto& x) { x.params.dq.stride[3] = 2; }, {"dq.stride[3] is 2", "contiguous"}},
    {"DoBeyondMemory", [](auto& x) { x.params.d_o.stride[0] = std::int64_t(1) << 62; }, {"d_o", "2^62"}},
    {"LseBeyondMemory", [](auto& x) { x.params.lse_stride[0] = std::int64_t(1) << 62; }, {"lse", "2^62"}},

    {"RowsOfDqOverlap", [](auto& x) { x.params.dq.stride[1] = 56; }, {"dq.stride[1] is 56", "overlap", "64"}},
    {"HeadsOfDkOverlap", [](auto& x) { x.params.dk.stride[2] = 15; }, {"dk.stride[2] is 15", "overlap", "16"}},
    {"BatchesOfDvRepeated", [](auto& x) { x.params.dv.stride[0] = 0; }, {"dv.stride[0] is 0", "overlap"}},

    {"DqIsDo", [](auto& x) { x.params.dq.data = x.d_o.data(); }, {"dq overlaps d_o"}},
    {"DqIsQ", [](auto& x) { x.params.dq.data = x.q.data(); }, {"dq overlaps q"}},
    {"DqIsK", [](auto& x) { x.params.dq.data = x.k.data(); }, {"dq overlaps k"}},
    {"DkIsV", [](auto& x) { x.params.dk.data = x.v.data(); }, {"dk overlaps v"}},
    {"DvIsO", [](auto& x) { x.params.dv.data = x.o.data(); }, {"dv overlaps o"}},
    {"DvIsLse", [](auto& x) { x.params.dv.data = x.lse.data(); }, {"dv overlaps lse"}},
    {"DkOverlapsTheLastElementOfK",
     [](auto& x) { x.params.dk.data = x.k.data() + (x.k.size() - BackwardData::spare) - 1; },
     {"dk overlaps k"}},
    {"DkIsDq", [](auto& x) { x.params.dk.data = x.dq.data(); }, {"dk overlaps dq", "outputs"}},
    {"DvIsDq", [](auto& x) { x.params.dv.data = x.dq.data(); }, {"dv overlaps dq", "outputs"}},
    {"DvIsDk", [](auto& x) { x.params.dv.data = x.dk.data(); }, {"dv overlaps dk", "outputs"}},

    {"DoMisaligned", [](auto& x) { x.params.d_o.data = shifted(x.d_o.data(), 1); }, {"d_o.data", "aligned", "2"}},
    {"DvMisaligned", [](auto& x) { x.params.dv.data = shifted(x.dv.data(), 1); }, {"dv.data", "aligned", "2"}},
    {"LseMisaligned", [](auto& x) { x.params.lse = shifted(x.lse.data(), 2); }, {"lse", "aligned", "4"}},
    {"ReservedOfDo", [](auto& x) { x.params.d_o.reserved = 5; }, {"d_o.reserved is 5", "0"}},
    {"ReservedOfDk", [](auto& x) { x.params.dk.reserved = 1; }, {"dk.reserved is 1", "0"}},
};

INSTANTIATE_TEST_SUITE_P(Backward, BadBackwardInputTest, testing::ValuesIn(bad_inputs),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BadBackwardInput, NullPointers) {
  std::size_t bytes = 77;
  const char* name = nullptr;
  for (const fa3_status status : {fa3_backward(nullptr, nullptr, 0, nullptr), fa3_backward_supported(nullptr),
                                  fa3_backward_workspace_size(nullptr, &bytes), fa3_backward_kernel(nullptr, &name)}) {
    EXPECT_EQ(status, FA3_INVALID_ARGUMENT);
    EXPECT_STREQ(fa3_last_error(), "params is null");
  }
  BackwardData data;
  EXPECT_EQ(fa3_backward_workspace_size(&data.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_STREQ(fa3_last_error(), "bytes is null");
  EXPECT_EQ(fa3_backward_kernel(&data.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_STREQ(fa3_last_error(), "name is null");
}

/// That the elements of a dense output are `value` and what is behind them is untouched.
void expect_all(const std::vector<std::uint16_t>& output, std::uint16_t value, const char* name) {
  for (std::size_t i = 0; i < output.size(); ++i)
    ASSERT_EQ(output[i], i < output.size() - BackwardData::spare ? value : poison_f16) << name << " at " << i;
}

// P is 1/5 everywhere; dP is 8 for every pair, and so is D: no gradient in q and k. Each of five keys gets 1/5 of the 6
// rows of dO, three of each of its two heads.
TEST(Backward, OfOnes) {
  BackwardData data;
  ASSERT_EQ(fa3_backward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  expect_all(data.dq, 0, "dq");
  expect_all(data.dk, 0, "dk");
  expect_all(data.dv, 0x3ccd, "dv");  // 1.2
  EXPECT_TRUE(data.inputs_untouched());
}

TEST(Backward, KernelAndWorkspaceOnTheCpu) {
  BackwardData data;
  const char* name = nullptr;
  ASSERT_EQ(fa3_backward_kernel(&data.params, &name), FA3_OK) << fa3_last_error();
  EXPECT_EQ(std::string(name).rfind("cpu_", 0), 0u) << name;
  std::size_t bytes = 1;
  ASSERT_EQ(fa3_backward_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
  EXPECT_EQ(bytes, 0u);
}

TEST(Backward, EmptyBatchNeedsNoMemory) {
  BackwardData data;
  data.params.batch = 0;
  for (fa3_tensor* tensor : data.tensors()) tensor->data = nullptr;
  data.params.lse = nullptr;
  for (const std::int32_t device : {FA3_DEVICE_CPU, FA3_DEVICE_CUDA}) {
    data.params.device = device;
    EXPECT_EQ(fa3_backward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  }
  EXPECT_TRUE(data.outputs_untouched());
}

TEST(Backward, NoRowsGiveZero) {
  BackwardData data;
  data.params.seqlen_q = 0;
  data.params.d_o.data = data.params.q.data = data.params.o.data = data.params.dq.data = nullptr;
  data.params.lse = nullptr;
  ASSERT_EQ(fa3_backward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  expect_all(data.dk, 0, "dk");
  expect_all(data.dv, 0, "dv");
}

TEST(Backward, NoKeysGiveZero) {
  BackwardData data;
  data.params.seqlen_k = 0;
  data.params.k.data = data.params.v.data = data.params.dk.data = data.params.dv.data = nullptr;
  std::fill(data.lse.begin(), data.lse.end(), -std::numeric_limits<float>::infinity());
  ASSERT_EQ(fa3_backward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  expect_all(data.dq, 0, "dq");
}

TEST(Backward, InputsMayRepeatAndShareMemory) {
  BackwardData data;
  std::fill_n(data.params.d_o.stride, 4, 0);
  data.params.o = data.params.d_o;
  data.params.o.stride[3] = 1;
  data.params.k.stride[0] = data.params.k.stride[2] = 0;
  std::fill_n(data.params.lse_stride, 3, 0);
  ASSERT_EQ(fa3_backward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  expect_all(data.dv, 0x3ccd, "dv");
}

// dq in the gaps of q: they share no byte, though their address ranges do.
TEST(Backward, OutputInTheGapsOfAnInput) {
  BackwardData data;
  constexpr std::int64_t row = 2 * BackwardData::d;
  std::vector<std::uint16_t> shared(BackwardData::batch * BackwardData::seqlen_q * BackwardData::heads * row, one_f16);
  data.params.q.data = shared.data();
  data.params.dq.data = shared.data() + BackwardData::d;
  for (fa3_tensor* tensor : {&data.params.q, &data.params.dq}) {
    tensor->stride[0] = BackwardData::seqlen_q * BackwardData::heads * row;
    tensor->stride[1] = BackwardData::heads * row;
    tensor->stride[2] = row;
  }
  ASSERT_EQ(fa3_backward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  for (std::size_t i = 0; i < shared.size(); ++i)
    EXPECT_EQ(shared[i], std::int64_t(i) % row < BackwardData::d ? one_f16 : 0) << "at " << i;
  data.params.dq.data = shared.data() + BackwardData::d - 1;
  EXPECT_EQ(fa3_backward(&data.params, nullptr, 0, nullptr), FA3_INVALID_ARGUMENT);
}

#ifdef FA3_WITH_CUDA

// Refused before any device is asked, so this needs no GPU.
TEST(Backward, WorkspaceNullTooSmallOrMisaligned) {
  for (const std::int32_t deterministic : {0, 1}) {
    BackwardData data;
    data.params.device = FA3_DEVICE_CUDA;
    data.params.deterministic = deterministic;
    if (fa3_backward_supported(&data.params) == FA3_NOT_SUPPORTED) GTEST_SKIP() << fa3_last_error();
    std::size_t bytes = 0;
    ASSERT_EQ(fa3_backward_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
    ASSERT_GT(bytes, 0u);
    std::vector<char> memory(bytes + 512);
    char* workspace = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256);
    const auto expect_refused = [&](void* given, std::size_t given_bytes, const std::string& word) {
      EXPECT_EQ(fa3_backward(&data.params, given, given_bytes, nullptr), FA3_WORKSPACE_TOO_SMALL);
      const std::string message = fa3_last_error();
      EXPECT_NE(message.find("workspace"), std::string::npos) << message;
      EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
      EXPECT_TRUE(data.outputs_untouched());
    };
    expect_refused(nullptr, bytes, "null");
    expect_refused(workspace, bytes - 1, std::to_string(bytes));
    expect_refused(workspace + 16, bytes, "256");
  }
}

#endif

}  // namespace
}  // namespace fa3::test
