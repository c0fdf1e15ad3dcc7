// Legal calls at the edge of the contract: empty tensors, strides that select nothing, interleaved outputs, threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "problem_data.hpp"

namespace fa3::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr std::uint16_t two_f16 = 0x4000, three_f16 = 0x4200;

TEST(Calls, OnesGiveOnes) {
  ProblemData data;
  ASSERT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  for (std::size_t i = 0; i < data.o.size(); ++i)
    EXPECT_EQ(data.o[i], i < data.o.size() - ProblemData::spare ? one_f16 : poison_f16) << "at " << i;
  for (std::size_t i = 0; i < data.lse.size(); ++i) {
    if (i < data.lse.size() - ProblemData::spare)
      EXPECT_NEAR(data.lse[i], 16 / std::sqrt(16.) + std::log(5.), 1e-5) << "at " << i;
    else
      EXPECT_EQ(data.lse[i], poison_lse) << "at " << i;
  }
  EXPECT_TRUE(data.inputs_untouched());
}

TEST(Calls, EmptyBatchNeedsNoMemory) {
  ProblemData data;
  data.params.batch = 0;
  for (fa3_tensor* tensor : {&data.params.q, &data.params.k, &data.params.v, &data.params.o}) tensor->data = nullptr;
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_TRUE(data.outputs_untouched());
}

TEST(Calls, EmptySeqlenQWritesNothing) {
  ProblemData data;
  data.params.seqlen_q = 0;
  data.params.q.data = data.params.o.data = nullptr;
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_TRUE(data.outputs_untouched());
}

TEST(Calls, EmptySeqlenKGivesZeroAndMinusInfinity) {
  ProblemData data;
  data.params.seqlen_k = 0;
  data.params.k.data = data.params.v.data = nullptr;
  ASSERT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  for (std::size_t i = 0; i < data.o.size() - ProblemData::spare; ++i) EXPECT_EQ(data.o[i], 0) << "at " << i;
  for (std::size_t i = 0; i < data.lse.size() - ProblemData::spare; ++i)
    EXPECT_EQ(data.lse[i], -infinity) << "at " << i;
}

// An empty tensor has no strides to check either.
TEST(Calls, StridesOfEmptyTensorsAreIgnored) {
  ProblemData data;
  data.params.seqlen_k = 0;
  std::fill_n(data.params.k.stride, 4, -7);
  std::fill_n(data.params.v.stride, 4, -7);
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
}

TEST(Calls, StridesOfExtentOneAreIgnored) {
  ProblemData data;
  data.params.batch = 1;
  data.params.seqlen_q = 1;
  constexpr std::int64_t garbage = std::numeric_limits<std::int64_t>::min() + 3;
  for (fa3_tensor* tensor : {&data.params.q, &data.params.k, &data.params.v, &data.params.o})
    tensor->stride[0] = garbage;
  data.params.q.stride[1] = data.params.o.stride[1] = garbage;
  data.params.lse_stride[0] = data.params.lse_stride[2] = garbage;
  data.params.lse_stride[1] = 1;
  ASSERT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  constexpr std::size_t written = ProblemData::heads * ProblemData::d_v;
  for (std::size_t i = 0; i < data.o.size(); ++i)
    EXPECT_EQ(data.o[i], i < written ? one_f16 : poison_f16) << "at " << i;
}

TEST(Calls, LseIsOptional) {
  ProblemData data;
  data.params.lse = nullptr;
  std::fill_n(data.params.lse_stride, 3, -1);
  ASSERT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(data.o[0], one_f16);
  EXPECT_EQ(data.lse[0], poison_lse);
}

// q and o side by side in one array share no byte, though their address ranges do.
TEST(Calls, OutputInTheGapsOfAnInput) {
  ProblemData data;
  constexpr std::int64_t rows = ProblemData::batch * ProblemData::seqlen_q * ProblemData::heads;
  constexpr std::int64_t row = ProblemData::d + ProblemData::d_v;
  std::vector<std::uint16_t> shared(rows * row, one_f16);
  data.params.q.data = shared.data();
  data.params.o.data = shared.data() + ProblemData::d;
  for (fa3_tensor* tensor : {&data.params.q, &data.params.o}) {
    tensor->stride[0] = ProblemData::seqlen_q * ProblemData::heads * row;
    tensor->stride[1] = ProblemData::heads * row;
    tensor->stride[2] = row;
  }
  std::fill(data.v.begin(), data.v.end(), two_f16);
  ASSERT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  for (std::size_t i = 0; i < shared.size(); ++i)
    EXPECT_EQ(shared[i], i % row < ProblemData::d ? one_f16 : two_f16) << "at " << i;

  data.params.o.data = shared.data() + ProblemData::d - 1;
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_INVALID_ARGUMENT);
}

TEST(Calls, InputsMayRepeatAndShareMemory) {
  ProblemData data;
  data.params.k.stride[0] = data.params.k.stride[2] = 0;
  data.params.v = data.params.k;
  data.params.q.stride[1] = 0;
  ASSERT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(data.o[0], one_f16);
}

// What a program built against the first release passes: a struct that ends before sm_margin.
TEST(Calls, AStructWithoutTheLaterFieldsIsTaken) {
  ProblemData data;
  constexpr std::size_t first_size = offsetof(fa3_forward_params, sm_margin);
  ASSERT_EQ(first_size, 304u) << "a field of the first release was moved";
  data.params.struct_size = first_size;
  const auto* begin = reinterpret_cast<const std::byte*>(&data.params);
  std::vector<std::byte> memory(begin, begin + first_size);  // on the heap, where a sanitizer sees its end
  const auto* old = reinterpret_cast<const fa3_forward_params*>(memory.data());
  EXPECT_EQ(fa3_forward_supported(old), FA3_OK) << fa3_last_error();
  ASSERT_EQ(fa3_forward(old, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(data.o[0], one_f16);
  data.params.sm_margin = data.params.reserved = -1;  // what lies behind it is not read
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
}

// And of the second: one that ends before q_scale.
TEST(Calls, AStructWithoutScalesIsTaken) {
  ProblemData data;
  constexpr std::size_t second_size = offsetof(fa3_forward_params, q_scale);
  ASSERT_EQ(second_size, 312u) << "a field of the second release was moved";
  data.params.struct_size = second_size;
  data.params.q_scale.per_block = 9;  // is not read
  data.params.sm_margin = -1;         // is
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_INVALID_ARGUMENT);
  data.params.sm_margin = 1;
  ASSERT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(data.o[0], one_f16);
}

// The cpu has none; on cuda only a device can say that it has too few.
TEST(Calls, SmMarginOfAnySizeIsTakenWithoutADevice) {
  ProblemData data;
  data.params.sm_margin = 1 << 20;
  ASSERT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(data.o[0], one_f16);
  data.params.device = FA3_DEVICE_CUDA;
  EXPECT_EQ(fa3_forward_supported(&data.params), FA3_OK) << fa3_last_error();
}

// Head dims go to the row with the least padding, long sequences to its clusters; a build without kernels has their
// names all the same.
TEST(KernelName, IsTheRowThatDispatchTakes) {
  struct Lengths {
    std::int64_t q = ProblemData::seqlen_q, k = ProblemData::seqlen_k;
    bool causal = false;
    std::int32_t sm_margin = 0;
    bool narrow = false;
  };
  const auto name_of = [&](std::int32_t device, std::int32_t dtype, std::int64_t d, std::int64_t d_v,
                           const Lengths& lengths = {}) {
    ProblemData data;
    data.params.device = device;
    data.params.d = d;
    data.params.d_v = d_v;
    data.params.seqlen_q = lengths.q;
    data.params.seqlen_k = lengths.k;
    data.params.causal = lengths.causal;
    data.params.sm_margin = lengths.sm_margin;
    for (fa3_tensor* tensor : {&data.params.q, &data.params.k, &data.params.v, &data.params.o}) {
      tensor->dtype = dtype;
      tensor->data = nullptr;
    }
    if (dtype == FA3_E4M3) data.params.o.dtype = FA3_BF16;
    if (lengths.narrow) {
      data.params.q_scale.largest = data.params.k_scale.largest = FA3_E4M3_NARROW_QK;
      data.params.v_scale.largest = FA3_E4M3_NARROW_V;
    }
    data.params.batch = 0;
    const char* name = nullptr;
    EXPECT_EQ(fa3_forward_kernel(&data.params, &name), FA3_OK) << fa3_last_error();
    return std::string(name ? name : "");
  };
  EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_F16, 64, 64), "f16_d64");
  EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_F16, 8, 72), "f16_d96");
  EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_F16, 8, 104), "f16_d128");
  EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_F16, 192, 128), "f16_d192v128");
  EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_BF16, 192, 136), "bf16_d192");
  EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_BF16, 256, 64), "bf16_d256");

  EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_E4M3, 128, 128), "e4m3_d128");
  EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_E4M3, 128, 128, {.narrow = true}), "e4m3_narrow_d128");

  const std::int64_t length = 1 << 17;  // of a long sequence, whatever the table's thresholds are
  for (const bool causal : {false, true}) {
    const Lengths both{length, length, causal};
    EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_F16, 128, 128, both), "f16_d128_cluster");
    EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_BF16, 104, 8, both), "bf16_d128_cluster");
    EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_BF16, 256, 64, both), "bf16_d256_cluster");
    EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_F16, 64, 64, both), "f16_d64");
    EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_F16, 128, 128, {1, length, causal}), "f16_d128");
    EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_F16, 128, 128, {length, 1, causal}), "f16_d128");
    EXPECT_EQ(name_of(FA3_DEVICE_CUDA, FA3_F16, 128, 128, {length, length, causal, 1}), "f16_d128");
  }

  const std::string cpu = name_of(FA3_DEVICE_CPU, FA3_F32, 64, 64);
  EXPECT_TRUE(cpu.starts_with("cpu_") && cpu.size() > 4) << cpu;
}

TEST(LastError, IsClearedBySuccess) {
  ProblemData data;
  data.params.d = 12;
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_STRNE(fa3_last_error(), "");
  data.params.d = ProblemData::d;
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK);
  EXPECT_STREQ(fa3_last_error(), "");
}

TEST(LastError, BelongsToItsThread) {
  ProblemData data;
  data.params.d = 12;
  EXPECT_EQ(fa3_forward_supported(&data.params), FA3_INVALID_ARGUMENT);
  const std::string mine = fa3_last_error();
  std::string others;
  std::thread([&others] { others = fa3_last_error(); }).join();
  EXPECT_EQ(others, "");
  EXPECT_EQ(fa3_last_error(), mine);
}

TEST(StatusString, EveryStatusHasItsOwn) {
  std::vector<std::string> seen;
  for (int status = FA3_OK; status <= FA3_INTERNAL; ++status) {
    const std::string text = fa3_status_string(static_cast<fa3_status>(status));
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(std::count(seen.begin(), seen.end(), text), 0) << text;
    seen.push_back(text);
  }
  EXPECT_STREQ(fa3_status_string(static_cast<fa3_status>(1000)), "unknown status");
}

// Eight threads at once, each with its own sizes and values, every other one with a wrong d between its calls.
TEST(Threads, CallAtTheSameTime) {
  constexpr int thread_count = 8, repeats = 20;
  std::vector<std::string> failures(thread_count);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < thread_count; ++t) {
      threads.emplace_back([t, &failure = failures[t]] {
        ProblemData data;
        const std::uint16_t value = t % 2 ? two_f16 : three_f16;
        std::fill(data.v.begin(), data.v.end(), value);
        data.params.seqlen_k = 1 + t % ProblemData::seqlen_k;
        const std::string wrong_d = "d is " + std::to_string(1000 + t);
        for (int i = 0; i < repeats && failure.empty(); ++i) {
          if (t % 2) {
            data.params.d = 1000 + t;
            if (fa3_forward(&data.params, nullptr, 0, nullptr) != FA3_INVALID_ARGUMENT) failure = "wrong d accepted";
            if (std::string(fa3_last_error()).find(wrong_d) == std::string::npos) failure = fa3_last_error();
            data.params.d = ProblemData::d;
          }
          std::fill(data.o.begin(), data.o.end(), poison_f16);
          if (fa3_forward(&data.params, nullptr, 0, nullptr) != FA3_OK) failure = fa3_last_error();
          const auto end = data.o.end() - ProblemData::spare;
          if (std::count(data.o.begin(), end, value) != end - data.o.begin()) failure = "wrong o";
          if (std::abs(data.lse[0] - (4 + std::log(float(data.params.seqlen_k)))) > 1e-5) failure = "wrong lse";
        }
      });
    }
  }
  for (int t = 0; t < thread_count; ++t) EXPECT_EQ(failures[t], "") << "thread " << t;
}

}  // namespace
}  // namespace fa3::test
