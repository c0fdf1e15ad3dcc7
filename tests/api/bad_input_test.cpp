// Every refusal of the forward pass, in 16 bits and in e4m3.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "bad_input.hpp"
#include "problem_data.hpp"

namespace fa3::test {
namespace {

constexpr Calls<fa3_forward_params> forward_calls = {fa3_forward, fa3_forward_supported, fa3_forward_workspace_size,
                                                     fa3_forward_kernel};

class BadInputTest : public testing::TestWithParam<BadInput<ProblemData>> {};

TEST_P(BadInputTest, IsRefused) { expect_refused(GetParam(), forward_calls); }

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t two_to_31 = std::int64_t(1) << 31;

const BadInput<ProblemData> bad_inputs[] = {
    {"StructSize",
     [](auto& x) { x.params.struct_size = 8; },
     {"struct_size", "8", std::to_string(sizeof(fa3_forward_params)),
      std::to_string(offsetof(fa3_forward_params, sm_margin)), std::to_string(offsetof(fa3_forward_params, q_scale))}},
    {"StructSizeWithinAField", [](auto& x) { x.params.struct_size -= 4; }, {"struct_size"}},
    {"StructSizeOfALaterVersion", [](auto& x) { x.params.struct_size += 8; }, {"struct_size"}},
    {"ApiVersion", [](auto& x) { x.params.api_version = 7; }, {"api_version", "7", "1"}},
    {"DeviceUnset", [](auto& x) { x.params.device = 0; }, {"device", "0", "FA3_DEVICE_CUDA", "FA3_DEVICE_CPU"}},
    {"DeviceUnknown", [](auto& x) { x.params.device = 9; }, {"device", "9", "FA3_DEVICE_CUDA", "FA3_DEVICE_CPU"}},
    {"Causal", [](auto& x) { x.params.causal = 2; }, {"causal", "2", "0 or 1"}},

    {"NullQ", [](auto& x) { x.params.q.data = nullptr; }, {"q.data", "null"}},
    {"NullK", [](auto& x) { x.params.k.data = nullptr; }, {"k.data", "null"}},
    {"NullV", [](auto& x) { x.params.v.data = nullptr; }, {"v.data", "null"}},
    {"NullO", [](auto& x) { x.params.o.data = nullptr; }, {"o.data", "null"}},

    {"DtypeOfQ", [](auto& x) { x.params.q.dtype = 5; }, {"q.dtype", "5", "FA3_F16", "FA3_BF16", "FA3_E4M3", "FA3_F32"}},
    {"DtypeOfK", [](auto& x) { x.params.k.dtype = 0; }, {"k.dtype", "0", "FA3_F16"}},
    {"DtypeOfV", [](auto& x) { x.params.v.dtype = -1; }, {"v.dtype", "-1", "FA3_F16"}},
    {"DtypeOfO", [](auto& x) { x.params.o.dtype = 99; }, {"o.dtype", "99", "FA3_F16"}},
    {"MixedDtypesK", [](auto& x) { x.params.k.dtype = FA3_BF16; }, {"k.dtype", "2", "q.dtype", "1"}},
    {"MixedDtypesV", [](auto& x) { x.params.v.dtype = FA3_F32; }, {"v.dtype", "4", "q.dtype", "1"}},
    {"MixedDtypesO", [](auto& x) { x.params.o.dtype = FA3_F32; }, {"o.dtype", "4", "q.dtype", "1"}},
    {"MixedDtypesKOfE4m3", [](auto& x) { x.params.k.dtype = FA3_E4M3; }, {"k.dtype is 3", "q.dtype is 1"}},
    {"ScalesOf16Bits", [](auto& x) { x.params.k_scale.data = x.lse.data(); }, {"k_scale", "q.dtype is 1", "FA3_E4M3"}},
    {"ScalesPerBlockOf16Bits", [](auto& x) { x.params.v_scale.per_block = 1; }, {"v_scale", "all zero"}},
    {"ScaleStrideOf16Bits", [](auto& x) { x.params.q_scale.stride[2] = 1; }, {"q_scale", "all zero"}},
    {"F32OnCuda",
     [](auto& x) {
       x.params.device = FA3_DEVICE_CUDA;
       for (fa3_tensor* tensor : {&x.params.q, &x.params.k, &x.params.v, &x.params.o}) tensor->dtype = FA3_F32;
     },
     {"q.dtype", "FA3_F32", "FA3_F16", "FA3_BF16"},
     FA3_NOT_SUPPORTED},

    {"DNotAMultipleOf8", [](auto& x) { x.params.d = 12; }, {"d is 12", "multiple of 8", "256"}},
    {"DTooLarge", [](auto& x) { x.params.d = 264; }, {"d is 264", "multiple of 8", "256"}},
    {"DZero", [](auto& x) { x.params.d = 0; }, {"d is 0", "multiple of 8"}},
    {"DNegative", [](auto& x) { x.params.d = -8; }, {"d is -8", "multiple of 8"}},
    {"DvNotAMultipleOf8", [](auto& x) { x.params.d_v = 4; }, {"d_v is 4", "multiple of 8", "256"}},
    {"DvTooLarge", [](auto& x) { x.params.d_v = 512; }, {"d_v is 512", "multiple of 8", "256"}},

    {"HeadsNotAMultipleOfKvHeads", [](auto& x) { x.params.kv_heads = 3; }, {"heads is 4", "multiple of kv_heads", "3"}},
    {"HeadsZero", [](auto& x) { x.params.heads = 0; }, {"heads is 0", "at least 1"}},
    {"KvHeadsZero", [](auto& x) { x.params.kv_heads = 0; }, {"kv_heads is 0", "at least 1"}},
    {"HeadsNegative", [](auto& x) { x.params.heads = -4; }, {"heads is -4", "at least 1"}},
    {"BatchNegative", [](auto& x) { x.params.batch = -1; }, {"batch is -1", "negative"}},
    {"SeqlenQNegative", [](auto& x) { x.params.seqlen_q = -2; }, {"seqlen_q is -2", "negative"}},
    {"SeqlenKNegative", [](auto& x) { x.params.seqlen_k = -3; }, {"seqlen_k is -3", "negative"}},
    {"BatchTooLarge", [](auto& x) { x.params.batch = two_to_31; }, {"batch is 2147483648", "2^31"}},
    {"SeqlenQTooLarge", [](auto& x) { x.params.seqlen_q = two_to_31; }, {"seqlen_q is 2147483648", "2^31"}},
    {"SeqlenKTooLarge", [](auto& x) { x.params.seqlen_k = two_to_31; }, {"seqlen_k is 2147483648", "2^31"}},

    {"NegativeStrideOfQ", [](auto& x) { x.params.q.stride[0] = -192; }, {"q.stride[0] is -192", "negative"}},
    {"NegativeStrideOfK", [](auto& x) { x.params.k.stride[1] = -32; }, {"k.stride[1] is -32", "negative"}},
    {"NegativeStrideOfV", [](auto& x) { x.params.v.stride[2] = -8; }, {"v.stride[2] is -8", "negative"}},
    {"NegativeStrideOfO", [](auto& x) { x.params.o.stride[1] = -32; }, {"o.stride[1] is -32", "negative"}},
    {"NegativeStrideOfLse", [](auto& x) { x.params.lse_stride[2] = -1; }, {"lse_stride[2] is -1", "negative"}},
    {"LastDimensionOfQNotContiguous", [](auto& x) { x.params.q.stride[3] = 2; }, {"q.stride[3] is 2", "contiguous"}},
    {"LastDimensionOfVRepeated", [](auto& x) { x.params.v.stride[3] = 0; }, {"v.stride[3] is 0", "contiguous"}},
    {"LastDimensionOfONotContiguous", [](auto& x) { x.params.o.stride[3] = 4; }, {"o.stride[3] is 4", "contiguous"}},
    {"StrideBeyondMemory", [](auto& x) { x.params.k.stride[0] = std::int64_t(1) << 62; }, {"k", "2^62"}},

    {"OutputRowsOverlap", [](auto& x) { x.params.o.stride[1] = 24; }, {"o.stride[1] is 24", "overlap", "32"}},
    {"OutputHeadsOverlap", [](auto& x) { x.params.o.stride[2] = 7; }, {"o.stride[2] is 7", "overlap", "8"}},
    {"OutputBatchesRepeated", [](auto& x) { x.params.o.stride[0] = 0; }, {"o.stride[0] is 0", "overlap"}},
    {"LseRowsRepeated", [](auto& x) { x.params.lse_stride[2] = 0; }, {"lse_stride[2] is 0", "overlap"}},
    {"LseHeadsOverlap", [](auto& x) { x.params.lse_stride[1] = 2; }, {"lse_stride[1] is 2", "overlap", "3"}},

    {"OIsQ", [](auto& x) { x.params.o.data = x.q.data(); }, {"o overlaps q"}},
    {"OIsK", [](auto& x) { x.params.o.data = x.k.data(); }, {"o overlaps k"}},
    {"OIsV", [](auto& x) { x.params.o.data = x.v.data(); }, {"o overlaps v"}},
    {"OOverlapsTheLastElementOfV",
     [](auto& x) { x.params.o.data = x.v.data() + (x.v.size() - ProblemData::spare) - 1; },
     {"o overlaps v"}},
    {"LseOverlapsK", [](auto& x) { x.params.lse = reinterpret_cast<float*>(x.k.data()); }, {"lse overlaps k"}},
    {"LseOverlapsO", [](auto& x) { x.params.lse = reinterpret_cast<float*>(x.o.data()); }, {"lse overlaps o"}},

    {"QMisaligned",
     [](auto& x) { x.params.q.data = reinterpret_cast<char*>(x.q.data()) + 1; },
     {"q.data", "aligned", "2"}},
    {"OMisaligned",
     [](auto& x) { x.params.o.data = reinterpret_cast<char*>(x.o.data()) + 1; },
     {"o.data", "aligned", "2"}},
    {"LseMisaligned",
     [](auto& x) { x.params.lse = reinterpret_cast<float*>(reinterpret_cast<char*>(x.lse.data()) + 2); },
     {"lse", "aligned", "4"}},
    {"Reserved", [](auto& x) { x.params.v.reserved = 5; }, {"v.reserved is 5", "0"}},

    {"ScaleNan",
     [](auto& x) { x.params.softmax_scale_set = 1, x.params.softmax_scale = NAN; },
     {"softmax_scale", "nan", "finite"}},
    {"ScaleInfinite",
     [](auto& x) { x.params.softmax_scale_set = 1, x.params.softmax_scale = -infinity; },
     {"softmax_scale", "-inf", "finite"}},
    {"SmMarginNegative", [](auto& x) { x.params.sm_margin = -3; }, {"sm_margin is -3", "negative"}},
    {"ReservedParameter", [](auto& x) { x.params.reserved = 9; }, {"reserved is 9", "0"}},
    {"ScaleSet", [](auto& x) { x.params.softmax_scale_set = 3; }, {"softmax_scale_set is 3", "0 or 1"}},
};

INSTANTIATE_TEST_SUITE_P(Forward, BadInputTest, testing::ValuesIn(bad_inputs),
                         [](const auto& info) { return std::string(info.param.name); });

/// The same of e4m3: [batch, seqlen, heads, d] = q [2, 200, 4, 32], k [2, 300, 2, 32], v [2, 300, 2, 16], with scales
/// per block.
struct E4m3Data {
  std::vector<float> memory = std::vector<float>(40000), scales = std::vector<float>(100, 1.0f);
  std::vector<std::uint16_t> o = std::vector<std::uint16_t>(2 * 200 * 4 * 16, poison_f16);
  fa3_forward_params params{};

  E4m3Data() {
    params.struct_size = sizeof(params);
    params.api_version = FA3_API_VERSION;
    params.device = FA3_DEVICE_CPU;
    params.batch = 2, params.heads = 4, params.kv_heads = 2, params.seqlen_q = 200, params.seqlen_k = 300;
    params.d = 32, params.d_v = 16;
    params.q = {aligned(), FA3_E4M3, 0, {200 * 4 * 32, 4 * 32, 32, 1}};
    params.k = {aligned(), FA3_E4M3, 0, {300 * 2 * 32, 2 * 32, 32, 1}};
    params.v = {aligned(), FA3_E4M3, 0, {300 * 2 * 16, 2 * 16, 16, 1}};
    params.o = {o.data(), FA3_F16, 0, {200 * 4 * 16, 4 * 16, 16, 1}};
    params.q_scale = {scales.data(), 1, 0, {8, 2, 1}};
    params.k_scale = params.v_scale = {scales.data() + 50, 1, 0, {6, 3, 1}};
  }
  E4m3Data(const E4m3Data&) = delete;

  char* aligned() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return reinterpret_cast<char*>((address + 15) / 16 * 16);
  }
  void on_cuda() { params.device = FA3_DEVICE_CUDA; }
  bool outputs_untouched() const { return std::ranges::count(o, poison_f16) == std::ssize(o); }
  bool inputs_untouched() const {
    return std::ranges::count(memory, 0.0f) == std::ssize(memory) &&
           std::ranges::count(scales, 1.0f) == std::ssize(scales);
  }
};

class BadE4m3Test : public testing::TestWithParam<BadInput<E4m3Data>> {};

TEST_P(BadE4m3Test, IsRefused) { expect_refused(GetParam(), forward_calls); }

const BadInput<E4m3Data> bad_e4m3[] = {
    {"DtypeOfQ", [](auto& x) { x.params.q.dtype = FA3_F16; }, {"k.dtype is 3", "q.dtype is 1"}},
    {"DtypeOfK", [](auto& x) { x.params.k.dtype = FA3_F16; }, {"k.dtype is 1", "q.dtype is 3", "q, k and v"}},
    {"DtypeOfV", [](auto& x) { x.params.v.dtype = FA3_BF16; }, {"v.dtype is 2", "q.dtype is 3"}},
    {"OOfE4m3", [](auto& x) { x.params.o.dtype = FA3_E4M3; }, {"o.dtype is 3", "FA3_F16", "FA3_BF16"}},
    {"OOfF32", [](auto& x) { x.params.o.dtype = FA3_F32; }, {"o.dtype is 4", "FA3_F16", "FA3_BF16"}},
    {"OOfNothing", [](auto& x) { x.params.o.dtype = 0; }, {"o.dtype is 0", "FA3_F16", "FA3_BF16"}},
    {"D", [](auto& x) { x.params.d = 24; }, {"d is 24", "multiple of 16"}},
    {"Dv", [](auto& x) { x.params.d_v = 8; }, {"d_v is 8", "multiple of 16"}},
    {"QMisaligned", [](auto& x) { x.params.q.data = x.aligned() + 8; }, {"q.data", "16 bytes"}},
    {"VMisaligned", [](auto& x) { x.params.v.data = x.aligned() + 1; }, {"v.data", "16 bytes"}},
    {"FeaturesOfKApart", [](auto& x) { x.params.k.stride[3] = 2; }, {"k.stride[3] is 2", "contiguous"}},
    {"FeaturesAndKeysOfVApart",
     [](auto& x) { x.params.v.stride[3] = 16; },
     {"v.stride[3] is 16", "v.stride[1] 32", "one of the two must be 1"}},
    {"FeaturesOfDMajorV",
     [](auto& x) { x.params.v.stride[1] = 1, x.params.v.stride[3] = 300; },
     {"v.stride[3] is 300", "multiples of 16"}},
    {"OverlappingFeaturesOfDMajorVOnCuda",
     [](auto& x) { x.on_cuda(), x.params.v.stride[1] = 1, x.params.v.stride[3] = 288; },
     {"v:", "stride 0"},
     FA3_NOT_SUPPORTED},
    {"StrideOfK", [](auto& x) { x.params.k.stride[1] = 72; }, {"k.stride[1] is 72", "multiples of 16"}},
    {"StrideOfQ", [](auto& x) { x.params.q.stride[0] = std::int64_t(1) << 40; }, {"q.stride[0] is", "2^40"}},
    {"RepeatedRowsOnCuda",
     [](auto& x) { x.on_cuda(), x.params.k.stride[1] = 0; },
     {"k:", "stride 0"},
     FA3_NOT_SUPPORTED},
    {"OverlappingHeadsOnCuda",
     [](auto& x) { x.on_cuda(), x.params.q.stride[2] = 16; },
     {"q:", "stride 0"},
     FA3_NOT_SUPPORTED},
    {"LargestBelow0", [](auto& x) { x.params.q_scale.largest = -15; }, {"q_scale.largest is -15", "from 1 on"}},
    {"LargestBelow1", [](auto& x) { x.params.q_scale.largest = 0.5f; }, {"q_scale.largest is 0.5", "from 1 on"}},
    {"LargestJustNotOfE4m3", [](auto& x) { x.params.k_scale.largest = 15.000001f; }, {"k_scale.largest is 15.000001;"}},
    {"LargestNotOfE4m3", [](auto& x) { x.params.k_scale.largest = 14.5f; }, {"k_scale.largest is 14.5", "of e4m3"}},
    {"LargestBeyondE4m3", [](auto& x) { x.params.v_scale.largest = 512; }, {"v_scale.largest is 512", "of e4m3"}},
    {"LargestIsNan",
     [](auto& x) { x.params.v_scale.largest = std::numeric_limits<float>::quiet_NaN(); },
     {"v_scale.largest is nan", "of e4m3"}},
    {"ScalePerBlock", [](auto& x) { x.params.k_scale.per_block = 2; }, {"k_scale.per_block is 2", "0 or 1"}},
    {"ScaleStride", [](auto& x) { x.params.v_scale.stride[1] = -3; }, {"v_scale.stride[1] is -3", "negative"}},
    {"ScaleStrideOfBlocks", [](auto& x) { x.params.q_scale.stride[2] = -1; }, {"q_scale.stride[2] is -1", "negative"}},
    {"ScaleStrideBeyondMemory",
     [](auto& x) { x.params.q_scale.stride[0] = std::int64_t(1) << 61; },
     {"q_scale", "2^62"}},
    {"ScaleMisaligned",
     [](auto& x) { x.params.k_scale.data = reinterpret_cast<float*>(x.aligned() + 2); },
     {"k_scale.data", "aligned", "4"}},
    {"OOverlapsAScale",
     [](auto& x) { x.params.v_scale.data = reinterpret_cast<float*>(x.o.data()); },
     {"o overlaps v_scale"}},
    {"LseOverlapsAScale",
     [](auto& x) {
       x.params.lse = x.params.q_scale.data - 1599;
       x.params.lse_stride[0] = 800, x.params.lse_stride[1] = 200, x.params.lse_stride[2] = 1;
     },
     {"lse overlaps q_scale"}},
};

INSTANTIATE_TEST_SUITE_P(Forward, BadE4m3Test, testing::ValuesIn(bad_e4m3),
                         [](const auto& info) { return std::string(info.param.name); });

// What the tests above spoil is allowed where it is not looked at.
TEST(E4m3, WhatIsNotThereMayBeAnything) {
  E4m3Data data;
  data.params.q_scale = {nullptr, 1, 0, {7, 5, 3}};
  data.params.k_scale.per_block = 0, data.params.k_scale.stride[2] = -5;  // not of blocks
  data.params.v.stride[0] = 0;
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  data.params.k.stride[1] = data.params.q.stride[2] = 0;  // the cpu reads rows wherever they are
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
}

TEST(BadInput, NullParams) {
  std::size_t bytes = 77;
  EXPECT_EQ(fa3_forward(nullptr, nullptr, 0, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_STREQ(fa3_last_error(), "params is null");
  EXPECT_EQ(fa3_forward_supported(nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_forward_workspace_size(nullptr, &bytes), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(bytes, 77u);
}

TEST(BadInput, NullBytes) {
  ProblemData data;
  EXPECT_EQ(fa3_forward_workspace_size(&data.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_STREQ(fa3_last_error(), "bytes is null");
}

TEST(BadInput, NullName) {
  ProblemData data;
  EXPECT_EQ(fa3_forward_kernel(&data.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_STREQ(fa3_last_error(), "name is null");
  const char* name = nullptr;
  EXPECT_EQ(fa3_forward_kernel(nullptr, &name), FA3_INVALID_ARGUMENT);
  EXPECT_STREQ(fa3_last_error(), "params is null");
}

TEST(BadInput, UnknownDeviceIsNotAvailable) {
  EXPECT_EQ(fa3_device_available(3), FA3_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fa3_last_error()).find("device is 3"), std::string::npos) << fa3_last_error();
}

}  // namespace
}  // namespace fa3::test
