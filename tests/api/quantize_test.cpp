// fa3_quantize as a program sees it: refusals, the C++ layer, and the GPU against the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bad_input.hpp"
#include "fa3/fa3.hpp"
#include "problem_data.hpp"

#ifdef FA3_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace fa3::test {
namespace {

/// A small valid call on the cpu device: x [2, 130, 4, 32] of ones, f16; y and scale poisoned, with room to spare.
struct QuantizeData {
  static constexpr std::int64_t batch = 2, seqlen = 130, heads = 4, d = 32, blocks = 2, spare = 64;
  static constexpr std::uint8_t poison = 0xa5;
  static constexpr float poison_scale = -12345;

  std::vector<std::uint16_t> x = std::vector<std::uint16_t>(batch * seqlen * heads * d + spare, one_f16);
  std::vector<std::uint8_t> y = std::vector<std::uint8_t>(batch * seqlen * heads * d + spare, poison);
  std::vector<float> scale = std::vector<float>(batch * heads * blocks + spare, poison_scale);
  std::vector<float> cosines = std::vector<float>(seqlen * d / 2, 1.0f), sines = std::vector<float>(seqlen * d / 2);
  fa3_quantize_params params{};

  QuantizeData() {
    params.struct_size = sizeof(params);
    params.api_version = FA3_API_VERSION;
    params.device = FA3_DEVICE_CPU;
    params.scaling = FA3_SCALING_BLOCK;
    params.batch = batch;
    params.seqlen = seqlen;
    params.heads = heads;
    params.d = d;
    params.x = {x.data(), FA3_F16, 0, {seqlen * heads * d, heads * d, d, 1}};
    params.y = {y.data(), FA3_E4M3, 0, {seqlen * heads * d, heads * d, d, 1}};
    params.scale = {scale.data(), 1, 0, {heads * blocks, blocks, 1}};
    params.rope_cos = cosines.data();
    params.rope_sin = sines.data();
    params.rope_stride = d / 2;
    params.rope_d = d;
  }
  QuantizeData(const QuantizeData&) = delete;

  bool outputs_untouched() const {
    for (const std::uint8_t b : y)
      if (b != poison) return false;
    for (const float s : scale)
      if (s != poison_scale) return false;
    return true;
  }
  bool inputs_untouched() const { return std::ranges::count(x, one_f16) == std::ssize(x); }
  void scale_heads(std::int64_t count) {
    params.scaling = FA3_SCALING_HEAD;
    params.scale_heads = count;
    params.scale = {scale.data(), 0, 0, {count, 1, 0}};
  }
};

constexpr Calls<fa3_quantize_params> quantize_calls = {fa3_quantize, fa3_quantize_supported,
                                                       fa3_quantize_workspace_size};

class QuantizeBadInput : public testing::TestWithParam<BadInput<QuantizeData>> {};

TEST_P(QuantizeBadInput, IsRefused) { expect_refused(GetParam(), quantize_calls); }

template <class T>
T* byte_later(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + 1);
}

const BadInput<QuantizeData> bad_inputs[] = {
    {"StructSize", [](auto& x) { x.params.struct_size = 8; }, {"struct_size", "8"}},
    {"ApiVersion", [](auto& x) { x.params.api_version = 7; }, {"api_version", "7", "1"}},
    {"Device", [](auto& x) { x.params.device = 0; }, {"device is 0", "FA3_DEVICE_CUDA", "FA3_DEVICE_CPU"}},
    {"ScalingUnset", [](auto& x) { x.params.scaling = 0; }, {"scaling is 0", "FA3_SCALING_BLOCK", "FA3_SCALING_GIVEN"}},
    {"ScalingUnknown", [](auto& x) { x.params.scaling = 5; }, {"scaling is 5", "FA3_SCALING_TENSOR"}},
    {"BatchNegative", [](auto& x) { x.params.batch = -1; }, {"batch is -1", "negative"}},
    {"SeqlenNegative", [](auto& x) { x.params.seqlen = -2; }, {"seqlen is -2", "negative"}},
    {"SeqlenTooLarge", [](auto& x) { x.params.seqlen = std::int64_t(1) << 31; }, {"seqlen is 2147483648", "2^31"}},
    {"HeadsZero", [](auto& x) { x.params.heads = 0; }, {"heads is 0", "at least 1"}},
    {"ScaleHeadsNoDivisor", [](auto& x) { x.scale_heads(3); }, {"scale_heads is 3", "divisor", "4"}},
    {"ScaleHeadsNegative", [](auto& x) { x.params.scale_heads = -1; }, {"scale_heads is -1", "divisor"}},
    {"ScaleHeadsTooMany", [](auto& x) { x.scale_heads(8); }, {"scale_heads is 8", "divisor"}},
    {"DNotAMultipleOf16", [](auto& x) { x.params.d = 24; }, {"d is 24", "multiple of 16", "256"}},
    {"DTooLarge", [](auto& x) { x.params.d = 272; }, {"d is 272", "multiple of 16", "256"}},
    {"DZero", [](auto& x) { x.params.d = 0; }, {"d is 0", "multiple of 16"}},

    {"DtypeOfX", [](auto& x) { x.params.x.dtype = FA3_E4M3; }, {"x.dtype is 3", "FA3_F16", "FA3_BF16", "FA3_F32"}},
    {"DtypeOfY", [](auto& x) { x.params.y.dtype = FA3_F16; }, {"y.dtype is 1", "FA3_E4M3"}},
    {"F32OnCuda",
     [](auto& x) { x.params.device = FA3_DEVICE_CUDA, x.params.x.dtype = FA3_F32; },
     {"x.dtype", "FA3_F32", "FA3_F16", "FA3_BF16"},
     FA3_NOT_SUPPORTED},
    {"NullX", [](auto& x) { x.params.x.data = nullptr; }, {"x.data", "null"}},
    {"NullY", [](auto& x) { x.params.y.data = nullptr; }, {"y.data", "null"}},
    {"XMisaligned", [](auto& x) { x.params.x.data = byte_later(x.x.data()); }, {"x.data", "aligned", "2"}},
    {"ReservedOfX", [](auto& x) { x.params.x.reserved = 5; }, {"x.reserved is 5", "0"}},
    {"ReservedOfY", [](auto& x) { x.params.y.reserved = 6; }, {"y.reserved is 6", "0"}},
    {"NegativeStrideOfX", [](auto& x) { x.params.x.stride[1] = -4; }, {"x.stride[1] is -4", "negative"}},
    {"FeaturesOfXNotContiguous", [](auto& x) { x.params.x.stride[3] = 2; }, {"x.stride[3] is 2", "contiguous"}},
    {"FeaturesOfYNotContiguous", [](auto& x) { x.params.y.stride[3] = 2; }, {"y.stride[3] is 2", "contiguous"}},
    {"RowsOfYOverlap", [](auto& x) { x.params.y.stride[1] = 64; }, {"y.stride[1] is 64", "overlap", "128"}},
    {"YRepeated", [](auto& x) { x.params.y.stride[0] = 0; }, {"y.stride[0] is 0", "overlap"}},
    {"YIsX", [](auto& x) { x.params.y.data = x.x.data(); }, {"y overlaps x"}},

    {"ScalePerBlockIsNoFlag", [](auto& x) { x.params.scale.per_block = 2; }, {"scale.per_block is 2", "0 or 1"}},
    {"BlockScalesNotPerBlock",
     [](auto& x) { x.params.scale.per_block = 0; },
     {"scale.per_block is 0", "scaling = 1", "1"}},
    {"HeadScalesPerBlock",
     [](auto& x) { x.scale_heads(4), x.params.scale.per_block = 1; },
     {"scale.per_block is 1", "scaling = 2", "0"}},
    {"ScaleLargest", [](auto& x) { x.params.scale.largest = 3.1f; }, {"scale.largest is 3.1", "of e4m3"}},
    {"ScaleNull", [](auto& x) { x.params.scale.data = nullptr; }, {"scale.data", "null", "FA3_SCALING_GIVEN"}},
    {"ScaleMisaligned",
     [](auto& x) { x.params.scale.data = byte_later(x.scale.data()); },
     {"scale.data", "aligned", "4"}},
    {"ScaleStrideNegative", [](auto& x) { x.params.scale.stride[2] = -1; }, {"scale.stride[2] is -1", "negative"}},
    {"ScalesOverlap", [](auto& x) { x.params.scale.stride[1] = 0; }, {"scale.stride[1] is 0", "overlap", "1"}},
    {"TensorScaleWithStride",
     [](auto& x) { x.scale_heads(4), x.params.scaling = FA3_SCALING_TENSOR; },
     {"scale.stride[0] is 4", "FA3_SCALING_TENSOR", "0"}},
    {"ScaleOverlapsX",
     [](auto& x) { x.params.scale.data = reinterpret_cast<float*>(x.x.data()); },
     {"scale overlaps x"}},
    {"ScaleOverlapsY",
     [](auto& x) { x.params.scale.data = reinterpret_cast<float*>(x.y.data()); },
     {"scale overlaps y"}},
    {"GivenScaleOverlapsY",
     [](auto& x) { x.params.scaling = FA3_SCALING_GIVEN, x.params.scale.data = reinterpret_cast<float*>(x.y.data()); },
     {"y overlaps scale"}},

    {"OnlyCosines", [](auto& x) { x.params.rope_sin = nullptr; }, {"rope_sin", "null", "both"}},
    {"OnlySines", [](auto& x) { x.params.rope_cos = nullptr; }, {"rope_cos", "null", "both"}},
    {"RopeDOdd", [](auto& x) { x.params.rope_d = 7; }, {"rope_d is 7", "even", "32"}},
    {"RopeDTooLarge", [](auto& x) { x.params.rope_d = 34; }, {"rope_d is 34", "even", "32"}},
    {"RopeDZero", [](auto& x) { x.params.rope_d = 0; }, {"rope_d is 0", "even"}},
    {"RopeStrideNegative", [](auto& x) { x.params.rope_stride = -1; }, {"rope_stride is -1", "negative"}},
    {"RopeStrideTooLarge", [](auto& x) { x.params.rope_stride = std::int64_t(1) << 61; }, {"rope_cos", "2^62"}},
    {"CosinesMisaligned",
     [](auto& x) { x.params.rope_cos = byte_later(x.cosines.data()); },
     {"rope_cos", "aligned", "4"}},
    {"SinesMisaligned", [](auto& x) { x.params.rope_sin = byte_later(x.sines.data()); }, {"rope_sin", "aligned", "4"}},
    {"YOverlapsCosines",
     [](auto& x) { x.params.rope_cos = reinterpret_cast<float*>(x.y.data()); },
     {"y overlaps rope_cos"}},
    {"RopeInterleaved", [](auto& x) { x.params.rope_interleaved = 2; }, {"rope_interleaved is 2", "0 or 1"}},
    {"Rotate", [](auto& x) { x.params.rotate = -1; }, {"rotate is -1", "0 or 1"}},
};

INSTANTIATE_TEST_SUITE_P(, QuantizeBadInput, testing::ValuesIn(bad_inputs),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Quantize, NullArguments) {
  std::size_t bytes = 77;
  EXPECT_EQ(fa3_quantize(nullptr, nullptr, 0, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_STREQ(fa3_last_error(), "params is null");
  EXPECT_EQ(fa3_quantize_supported(nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(fa3_quantize_workspace_size(nullptr, &bytes), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(bytes, 77u);
  QuantizeData data;
  EXPECT_EQ(fa3_quantize_workspace_size(&data.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_STREQ(fa3_last_error(), "bytes is null");
}

TEST(Quantize, EmptyTensorsAreNotTouched) {
  for (std::int64_t fa3_quantize_params::*extent : {&fa3_quantize_params::batch, &fa3_quantize_params::seqlen})
    for (const std::int32_t device : {FA3_DEVICE_CPU, FA3_DEVICE_CUDA}) {
      QuantizeData data;
      data.params.*extent = 0;
      data.params.device = device;
      data.params.x.data = data.params.y.data = nullptr;
      EXPECT_EQ(fa3_quantize(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
      EXPECT_TRUE(data.outputs_untouched());
    }
}

TEST(Quantize, OfOnes) {
  for (const auto& [largest, most] : {std::pair{0.0f, 0x7e}, {15.0f, 0x57}, {1.125f, 0x39}}) {
    QuantizeData data;
    data.params.scale.largest = largest;
    ASSERT_EQ(fa3_quantize(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
    const float scale = 1 / (largest == 0 ? 448.0f : largest);
    for (std::size_t i = 0; i < data.y.size(); ++i)
      EXPECT_EQ(data.y[i], i < data.y.size() - QuantizeData::spare ? most : QuantizeData::poison);
    for (std::size_t i = 0; i < data.scale.size(); ++i)
      EXPECT_EQ(data.scale[i], i < data.scale.size() - QuantizeData::spare ? scale : QuantizeData::poison_scale);
  }
}

TEST(Quantize, WorkspaceOfScalesThatBlocksShare) {
  QuantizeData data;
  std::size_t bytes = 77;
  for (const std::int32_t device : {FA3_DEVICE_CPU, FA3_DEVICE_CUDA}) {
    data.params.device = device;
    EXPECT_EQ(fa3_quantize_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
    EXPECT_EQ(bytes, 0u);
  }
  data.scale_heads(2);
  EXPECT_EQ(fa3_quantize_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
  EXPECT_GE(bytes, 4 * sizeof(float));
#ifdef FA3_WITH_CUDA
  EXPECT_EQ(fa3_quantize(&data.params, nullptr, 0, nullptr), FA3_WORKSPACE_TOO_SMALL);
  EXPECT_NE(std::string(fa3_last_error()).find("workspace is null"), std::string::npos) << fa3_last_error();
#endif
  data.params.device = FA3_DEVICE_CPU;
  EXPECT_EQ(fa3_quantize_workspace_size(&data.params, &bytes), FA3_OK);
  EXPECT_EQ(bytes, 0u);
}

// The C++ layer gives the bits of the C ABI.
TEST(Quantize, CppLayer) {
  QuantizeData c, cpp;
  std::uint16_t next = 0;
  for (std::uint16_t& x : c.x) x = std::uint16_t(0x3000 + (next += 7919) % 0x0c00);
  cpp.x = c.x;
  const std::array<std::int64_t, 4> shape = {QuantizeData::batch, QuantizeData::seqlen, QuantizeData::heads,
                                             QuantizeData::d};
  const ConstTensor x(cpp.x.data(), shape, Dtype::f16, Device::cpu);
  const Tensor y(cpp.y.data(), shape, Dtype::e4m3, Device::cpu);
  QuantizeOptions options;
  options.rope = Rope{cpp.cosines.data(), cpp.sines.data(), 32, 16, true};
  options.rotate = true;
  options.seed = 9;
  c.params.rotate = c.params.rope_interleaved = 1;
  c.params.seed = 9;
  const auto agree = [&](ScalesView scale) {
    scale.largest = c.params.scale.largest;
    EXPECT_TRUE(quantize_supported(x, y, scale, options));
    const Status status = quantize(x, y, scale, options);
    EXPECT_TRUE(status) << status.message();
    EXPECT_EQ(fa3_quantize(&c.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
    EXPECT_EQ(c.y, cpp.y);
    EXPECT_EQ(c.scale, cpp.scale);
  };
  agree(ScalesView::of_blocks(cpp.scale.data(), 2, 4, 2, Device::cpu));
  const std::vector<std::uint8_t> wide = cpp.y;
  c.params.scale.largest = 15;
  agree(ScalesView::of_blocks(cpp.scale.data(), 2, 4, 2, Device::cpu));
  EXPECT_NE(cpp.y, wide);
  options.scaling = Scaling::head;
  c.scale_heads(2);
  agree(ScalesView::of_heads(cpp.scale.data(), 2, 2, Device::cpu));
  options.scaling = Scaling::tensor;
  c.params.scaling = FA3_SCALING_TENSOR;
  c.params.scale.stride[0] = c.params.scale.stride[1] = 0;
  agree(ScalesView::of_tensor(cpp.scale.data(), 2, 2, Device::cpu));
  options.scaling = Scaling::given;
  c.params.scaling = FA3_SCALING_GIVEN;
  c.params.scale.data = nullptr;
  agree({});
}

TEST(Quantize, CppLayerChecksShapesAndDevices) {
  QuantizeData data;
  const std::array<std::int64_t, 4> shape = {2, 130, 4, 32};
  const ConstTensor x(data.x.data(), shape, Dtype::f16, Device::cpu);
  Tensor y(data.y.data(), shape, Dtype::e4m3, Device::cpu);
  const auto refused = [&](const Tensor& to, const ScalesView& scale, const QuantizeOptions& options,
                           std::initializer_list<std::string> words) {
    const Status status = quantize(x, to, scale, options);
    EXPECT_EQ(status.code(), FA3_INVALID_ARGUMENT);
    for (const std::string& word : words)
      EXPECT_NE(status.message().find(word), std::string::npos) << "no \"" << word << "\" in: " << status.message();
    EXPECT_TRUE(data.outputs_untouched());
  };
  float* const s = data.scale.data();
  Tensor other = y;
  other.shape[2] = 3;
  refused(other, ScalesView::of_blocks(s, 2, 4, 2, Device::cpu), {},
          {"y: shape is [2, 130, 3, 32]", "[2, 130, 4, 32]"});
  refused(y, ScalesView::of_blocks(s, 2, 4, 1, Device::cpu), {}, {"scale: shape is [2, 4, 1]", "[2, 4, 2]"});
  refused(y, ScalesView::of_heads(s, 1, 4, Device::cpu), {Scaling::head}, {"scale: shape is [1, 4]", "[2, 4]"});
  refused(y, ScalesView::of_heads(s, 2, 3, Device::cpu), {Scaling::head}, {"scale: shape is [2, 3]", "divisor", "4"});
  refused(y, ScalesView::of_heads(s, 2, 0, Device::cpu), {Scaling::head}, {"scale: shape is [2, 0]", "divisor"});
  refused(y, ScalesView::of_blocks(s, 2, 4, 2, Device::cuda), {}, {"scale", "another device"});
  refused(y, ScalesView::of_blocks(s, 2, 4, 2, Device::cpu), {Scaling::block, Rope{}}, {"rope", "null"});
  other = y;
  other.device = Device::cuda;
  refused(other, ScalesView::of_blocks(s, 2, 4, 2, Device::cpu), {}, {"y", "another device"});
}

#ifdef FA3_WITH_CUDA

/// Device memory with the content of host memory.
class OnGpu {
 public:
  OnGpu(const void* host, std::size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  }
  OnGpu(const OnGpu&) = delete;
  ~OnGpu() { cudaFree(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::vector<std::uint8_t> read() const {
    std::vector<std::uint8_t> host(bytes_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

struct GpuCase {
  std::int64_t d;
  int scaling;
  bool rotate, rope, interleaved, aligned;
  std::int64_t batch = 2;
  float largest = 0;
};

/// [batch, 200, 6, d]: bits of all kinds in 16-bit words. Returns the number of values that were compared.
std::int64_t compare_with_cpu(const GpuCase& c, fa3_dtype dtype) {
  constexpr std::int64_t seqlen = 200, heads = 6, blocks = 2;
  const std::int64_t batch = c.batch;
  const std::int64_t row = c.d + (c.aligned ? 0 : 3), elements = batch * seqlen * heads * row;
  std::mt19937_64 random(5);
  std::vector<std::uint16_t> x;
  std::vector<float> cosines, sines;
  for (std::int64_t i = 0; i < elements; ++i) {
    // One in a thousand is any bit pattern, NaN and infinity included; else of a size from 2^-7 to 2.
    const std::uint64_t bits = random();
    const int exponent = int(bits >> 32 & 7);
    const auto normal = dtype == FA3_F16 ? std::uint16_t((bits & 0x83ff) | std::uint64_t(exponent + 8) << 10)
                                         : std::uint16_t((bits & 0x807f) | std::uint64_t(exponent + 120) << 7);
    x.push_back(bits >> 40 & 1023 ? normal : std::uint16_t(bits));
  }
  const std::int64_t rope_stride = c.d / 2 + (c.aligned ? 0 : 1);
  for (std::int64_t i = 0; i < seqlen * rope_stride; ++i) {
    cosines.push_back(float(std::int64_t(random() >> 40)) * 0x1p-23f - 1);
    sines.push_back(float(std::int64_t(random() >> 40)) * 0x1p-23f - 1);
  }
  std::vector<std::uint8_t> y(std::size_t(elements), 0xa5);
  std::vector<float> scale(std::size_t(batch * heads * blocks), 0.01f);

  fa3_quantize_params params{};
  params.struct_size = sizeof(params);
  params.api_version = FA3_API_VERSION;
  params.scaling = c.scaling;
  params.batch = batch, params.seqlen = seqlen, params.heads = heads, params.d = c.d;
  params.scale_heads = c.scaling == FA3_SCALING_HEAD ? 3 : 0;
  for (fa3_tensor* tensor : {&params.x, &params.y})
    *tensor = {nullptr, 0, 0, {seqlen * heads * row, heads * row, row, 1}};
  params.x.dtype = dtype;
  params.y.dtype = FA3_E4M3;
  params.scale.per_block = c.scaling == FA3_SCALING_BLOCK || c.scaling == FA3_SCALING_GIVEN;
  if (params.scale.per_block)
    params.scale.stride[0] = heads * blocks, params.scale.stride[1] = blocks, params.scale.stride[2] = 1;
  if (c.scaling == FA3_SCALING_HEAD) params.scale.stride[0] = 3, params.scale.stride[1] = 1;
  params.scale.largest = c.largest;
  params.rope_stride = rope_stride;
  params.rope_d = c.d;
  params.rope_interleaved = c.interleaved;
  params.rotate = c.rotate;
  params.seed = 11;

  const OnGpu x_gpu(x.data(), x.size() * 2), y_gpu(y.data(), y.size()), scale_gpu(scale.data(), scale.size() * 4),
      cosines_gpu(cosines.data(), cosines.size() * 4), sines_gpu(sines.data(), sines.size() * 4);
  const auto call = [&](int device, void* from, void* to, float* scales, const float* of_cos, const float* of_sin) {
    params.device = device;
    params.x.data = from, params.y.data = to, params.scale.data = scales;
    params.rope_cos = c.rope ? of_cos : nullptr, params.rope_sin = c.rope ? of_sin : nullptr;
    std::size_t bytes = 0;
    EXPECT_EQ(fa3_quantize_workspace_size(&params, &bytes), FA3_OK) << fa3_last_error();
    const std::vector<std::uint8_t> garbage(bytes + 1, 0xff);
    const OnGpu workspace(garbage.data(), garbage.size());
    EXPECT_EQ(fa3_quantize(&params, workspace.as<void>(), bytes, nullptr), FA3_OK) << fa3_last_error();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  };
  call(FA3_DEVICE_CUDA, x_gpu.as<void>(), y_gpu.as<void>(), scale_gpu.as<float>(), cosines_gpu.as<float>(),
       sines_gpu.as<float>());
  call(FA3_DEVICE_CPU, x.data(), y.data(), scale.data(), cosines.data(), sines.data());
  EXPECT_TRUE(y_gpu.read() == y);
  EXPECT_EQ(std::memcmp(scale_gpu.read().data(), scale.data(), scale.size() * 4), 0);
  return batch * seqlen * heads * c.d;
}

TEST(QuantizeOnCuda, HasTheBitsOfTheCpu) {
  if (fa3_device_available(FA3_DEVICE_CUDA) != FA3_OK) GTEST_SKIP() << fa3_last_error();
  std::int64_t values = 0;
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16})
    for (const std::int64_t d : {16, 32, 48, 64, 80, 96, 128, 160, 192, 240, 256})
      for (const int scaling : {FA3_SCALING_BLOCK, FA3_SCALING_HEAD, FA3_SCALING_TENSOR, FA3_SCALING_GIVEN})
        for (const bool rotate : {false, true})
          for (const int rope : {0, 1, 2})
            for (const bool aligned : {true, false})
              for (const float largest : {0.0f, 15.0f}) {
                if (!aligned && scaling != FA3_SCALING_BLOCK) continue;
                SCOPED_TRACE(testing::Message()
                             << "dtype " << dtype << " d " << d << " scaling " << scaling << " rotate " << rotate
                             << " rope " << rope << " aligned " << aligned << " up to " << largest);
                values += compare_with_cpu({d, scaling, rotate, rope != 0, rope == 2, aligned, 2, largest}, dtype);
              }
  EXPECT_GT(values, 10'000'000);
}

// Some twice the blocks that an H200 has CTAs for.
TEST(QuantizeOnCuda, HasTheBitsOfTheCpuWhereACtaHasMoreThanOneBlock) {
  if (fa3_device_available(FA3_DEVICE_CUDA) != FA3_OK) GTEST_SKIP() << fa3_last_error();
  for (const std::int64_t d : {64, 128, 240, 256})
    for (const int scaling : {FA3_SCALING_BLOCK, FA3_SCALING_HEAD})
      for (const bool rotate : {false, true})
        for (const bool rope : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << "d " << d << " scaling " << scaling << " rotate " << rotate << " rope " << rope);
          compare_with_cpu({d, scaling, rotate, rope, false, true, 6400 / d}, FA3_BF16);
        }
}

TEST(QuantizeOnCuda, HostPointersAreRefused) {
  if (fa3_device_available(FA3_DEVICE_CUDA) != FA3_OK) GTEST_SKIP() << fa3_last_error();
  QuantizeData data;
  data.params.device = FA3_DEVICE_CUDA;
  EXPECT_EQ(fa3_quantize(&data.params, nullptr, 0, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fa3_last_error()).rfind("x.data", 0), 0u) << fa3_last_error();
  EXPECT_TRUE(data.outputs_untouched());
}

#endif

}  // namespace
}  // namespace fa3::test
