// Every refusal: its status, a message that names the argument, the value and what is allowed, and nothing written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "problem_data.hpp"

namespace fa3::test {
namespace {

struct BadInput {
  const char* name;
  std::function<void(ProblemData&)> spoil;
  std::vector<std::string> words;  // all of them must be in the message
  fa3_status status = FA3_INVALID_ARGUMENT;
};

void PrintTo(const BadInput& bad, std::ostream* out) { *out << bad.name; }

class BadInputTest : public testing::TestWithParam<BadInput> {};

TEST_P(BadInputTest, IsRefused) {
  ProblemData data;
  ASSERT_EQ(fa3_forward_supported(&data.params), FA3_OK) << fa3_last_error();
  GetParam().spoil(data);

  ASSERT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), GetParam().status) << fa3_last_error();
  const std::string message = fa3_last_error();
  for (const std::string& word : GetParam().words)
    EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
  EXPECT_TRUE(data.outputs_untouched());
  EXPECT_TRUE(data.inputs_untouched());

  EXPECT_EQ(fa3_forward_supported(&data.params), GetParam().status);
  EXPECT_EQ(fa3_last_error(), message);
  std::size_t bytes = 77;
  EXPECT_EQ(fa3_forward_workspace_size(&data.params, &bytes), GetParam().status);
  EXPECT_EQ(fa3_last_error(), message);
  EXPECT_EQ(bytes, 77u);
  const char* name = "untouched";
  EXPECT_EQ(fa3_forward_kernel(&data.params, &name), GetParam().status);
  EXPECT_EQ(fa3_last_error(), message);
  EXPECT_STREQ(name, "untouched");
}

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t two_to_31 = std::int64_t(1) << 31;

const BadInput bad_inputs[] = {
    {"StructSize",
     [](auto& x) { x.params.struct_size = 8; },
     {"struct_size", "8", std::to_string(sizeof(fa3_forward_params)),
      std::to_string(offsetof(fa3_forward_params, sm_margin))}},
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

    {"DtypeOfQ", [](auto& x) { x.params.q.dtype = 3; }, {"q.dtype", "3", "FA3_F16", "FA3_BF16", "FA3_F32"}},
    {"DtypeOfK", [](auto& x) { x.params.k.dtype = 0; }, {"k.dtype", "0", "FA3_F16"}},
    {"DtypeOfV", [](auto& x) { x.params.v.dtype = -1; }, {"v.dtype", "-1", "FA3_F16"}},
    {"DtypeOfO", [](auto& x) { x.params.o.dtype = 99; }, {"o.dtype", "99", "FA3_F16"}},
    {"MixedDtypesK", [](auto& x) { x.params.k.dtype = FA3_BF16; }, {"k.dtype", "2", "q.dtype", "1"}},
    {"MixedDtypesV", [](auto& x) { x.params.v.dtype = FA3_F32; }, {"v.dtype", "4", "q.dtype", "1"}},
    {"MixedDtypesO", [](auto& x) { x.params.o.dtype = FA3_F32; }, {"o.dtype", "4", "q.dtype", "1"}},
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
