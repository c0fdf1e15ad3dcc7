// The cuda device: the words where there is none, and the refusals that need one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "fa3/fa3.hpp"
#include "problem_data.hpp"

#ifdef FA3_WITH_CUDA
#include <cuda.h>
#include <cuda_runtime_api.h>
#endif

namespace fa3::test {
namespace {

bool has_gpu() { return fa3_device_available(FA3_DEVICE_CUDA) == FA3_OK; }

TEST(Cuda, NoDeviceIsSaidInWords) {
  if (has_gpu()) GTEST_SKIP() << "there is a usable GPU here";
  EXPECT_EQ(fa3_device_available(FA3_DEVICE_CUDA), FA3_NO_DEVICE);
  EXPECT_GT(std::string(fa3_last_error()).size(), 20u) << fa3_last_error();

  ProblemData data;
  data.params.device = FA3_DEVICE_CUDA;
  alignas(256) static char workspace[1 << 16];
  EXPECT_EQ(fa3_forward(&data.params, workspace, sizeof(workspace), nullptr), FA3_NO_DEVICE);
  EXPECT_GT(std::string(fa3_last_error()).size(), 20u) << fa3_last_error();
  EXPECT_TRUE(data.outputs_untouched());
  EXPECT_EQ(fa3_init(0), FA3_NO_DEVICE);
  EXPECT_GT(std::string(fa3_last_error()).size(), 20u) << fa3_last_error();
}

TEST(Cuda, AutomaticFallsBackToTheCpu) {
  EXPECT_EQ(resolve(Device::automatic), has_gpu() ? Device::cuda : Device::cpu);
  EXPECT_EQ(resolve(Device::cuda), Device::cuda);
}

// Supported and workspace size are questions about the arguments, not about the machine.
TEST(Cuda, HostQuestionsNeedNoGpu) {
  ProblemData data;
  data.params.device = FA3_DEVICE_CUDA;
  EXPECT_EQ(fa3_forward_supported(&data.params), FA3_OK) << fa3_last_error();
  std::size_t bytes = 0;
  EXPECT_EQ(fa3_forward_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
}

TEST(Cuda, EmptyOutputNeedsNoGpu) {
  ProblemData data;
  data.params.device = FA3_DEVICE_CUDA;
  data.params.batch = 0;
  EXPECT_EQ(fa3_forward(&data.params, nullptr, 0, nullptr), FA3_OK) << fa3_last_error();
}

#ifdef FA3_WITH_CUDA

// Refused before any device is asked, so these need no GPU; a build without kernels refuses all of cuda first.
TEST(Cuda, WorkspaceNullTooSmallOrMisaligned) {
  ProblemData data;
  data.params.device = FA3_DEVICE_CUDA;
  std::size_t bytes = 0;
  ASSERT_EQ(fa3_forward_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
  alignas(256) static char workspace[1 << 16];
  ASSERT_LE(bytes, sizeof(workspace) - 256);
  const auto expect_refused = [&](void* memory, std::size_t given, const std::string& word) {
    EXPECT_EQ(fa3_forward(&data.params, memory, given, nullptr), FA3_WORKSPACE_TOO_SMALL);
    const std::string message = fa3_last_error();
    EXPECT_NE(message.find("workspace"), std::string::npos) << message;
    EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
    EXPECT_TRUE(data.outputs_untouched());
  };
  expect_refused(nullptr, bytes, "null");
  expect_refused(workspace, bytes - 1, std::to_string(bytes));
  expect_refused(workspace + 16, bytes, "256");
}

/// Device memory for a whole ProblemData, with the contents of its host arrays.
class OnGpu {
 public:
  explicit OnGpu(ProblemData& data) : data_(data) {
    data.params.device = FA3_DEVICE_CUDA;
    data.params.q.data = upload(data.q);
    data.params.k.data = upload(data.k);
    data.params.v.data = upload(data.v);
    data.params.o.data = upload(data.o);
    data.params.lse = static_cast<float*>(upload(data.lse));
  }
  ~OnGpu() {
    for (void* p : allocations_) cudaFree(p);
  }
  void* allocate(std::size_t bytes) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, bytes), cudaSuccess);
    allocations_.push_back(p);
    return p;
  }
  /// Copies o and lse back into `data` and says whether they still hold the poison.
  bool outputs_untouched() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    download(data_.o, allocations_[3]);
    download(data_.lse, allocations_[4]);
    return data_.outputs_untouched();
  }
  void poison_outputs() {
    copy_up(allocations_[3], std::vector(data_.o.size(), poison_f16));
    copy_up(allocations_[4], std::vector(data_.lse.size(), poison_lse));
  }

 private:
  template <class T>
  void* upload(const std::vector<T>& host) {
    void* p = allocate(host.size() * sizeof(T));
    copy_up(p, host);
    return p;
  }
  template <class T>
  void copy_up(void* p, const std::vector<T>& host) {
    EXPECT_EQ(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  template <class T>
  void download(std::vector<T>& host, const void* p) {
    EXPECT_EQ(cudaMemcpy(host.data(), p, host.size() * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  }

  ProblemData& data_;
  std::vector<void*> allocations_;
};

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << fa3_last_error();
  }
};

TEST_F(CudaDevice, HostPointerIsRefused) {
  ProblemData data;
  OnGpu gpu(data);
  std::size_t bytes = 0;
  ASSERT_EQ(fa3_forward_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
  void* workspace = gpu.allocate(bytes + 256);
  for (const auto& [tensor, host, name] : {std::tuple{&data.params.q, data.q.data(), "q"},
                                           {&data.params.k, data.k.data(), "k"},
                                           {&data.params.v, data.v.data(), "v"},
                                           {&data.params.o, data.o.data(), "o"}}) {
    void* device = std::exchange(tensor->data, host);
    EXPECT_EQ(fa3_forward(&data.params, workspace, bytes, nullptr), FA3_INVALID_ARGUMENT);
    const std::string message = fa3_last_error();
    EXPECT_EQ(message.rfind(name, 0), 0u) << "does not begin with " << name << ": " << message;
    EXPECT_NE(message.find("host"), std::string::npos) << message;
    tensor->data = device;
  }
  float* device_lse = std::exchange(data.params.lse, data.lse.data());
  EXPECT_EQ(fa3_forward(&data.params, workspace, bytes, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fa3_last_error()).rfind("lse", 0), 0u) << fa3_last_error();
  data.params.lse = device_lse;
  alignas(256) static char host_workspace[1 << 16];
  EXPECT_EQ(fa3_forward(&data.params, host_workspace, sizeof(host_workspace), nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fa3_last_error()).rfind("workspace", 0), 0u) << fa3_last_error();
  EXPECT_TRUE(gpu.outputs_untouched());
}

// Eight threads with streams, workspaces and outputs of their own: all get the bits of a lone call.
TEST_F(CudaDevice, ThreadsDoNotDisturbEachOther) {
  ProblemData data;
  std::uint16_t next = 0;
  for (auto* input : {&data.q, &data.k, &data.v})
    for (std::uint16_t& x : *input) x = std::uint16_t(0x3000 + (next += 7919) % 0x0c00);  // f16 from 0.125 to 1
  OnGpu gpu(data);
  std::size_t bytes = 0;
  ASSERT_EQ(fa3_forward_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
  const std::size_t o_bytes = data.o.size() * sizeof(data.o[0]);
  const auto call = [&](void* o, void* workspace, cudaStream_t stream) {
    fa3_forward_params params = data.params;
    params.o.data = o;
    params.lse = nullptr;
    return fa3_forward(&params, workspace, bytes, stream);
  };
  constexpr int threads = 8, calls = 50;
  std::vector<void*> outputs, workspaces;
  for (int i = 0; i <= threads; ++i) {
    outputs.push_back(gpu.allocate(o_bytes));
    workspaces.push_back(gpu.allocate(bytes));
    ASSERT_EQ(cudaMemset(outputs.back(), 0xff, o_bytes), cudaSuccess);
  }
  ASSERT_EQ(call(outputs[threads], workspaces[threads], nullptr), FA3_OK) << fa3_last_error();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::atomic<int> failures = 0;
  {
    std::vector<std::jthread> running;
    for (int i = 0; i < threads; ++i)
      running.emplace_back([&, i] {
        cudaStream_t stream;
        failures += cudaStreamCreate(&stream) != cudaSuccess;
        for (int n = 0; n < calls; ++n)
          failures += call(outputs[std::size_t(i)], workspaces[std::size_t(i)], stream) != FA3_OK;
        failures += cudaStreamSynchronize(stream) != cudaSuccess;
        cudaStreamDestroy(stream);
      });
  }
  EXPECT_EQ(failures, 0);
  const auto bits = [&](int i) {
    std::vector<std::uint16_t> host(o_bytes / 2);
    EXPECT_EQ(cudaMemcpy(host.data(), outputs[std::size_t(i)], o_bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  };
  for (int i = 0; i < threads; ++i) EXPECT_EQ(bits(i), bits(threads)) << "thread " << i;
}

/// CTAs of the kernel a call launches, from what a stream captures. Why the driver's function: the runtime linked into
/// this program does not know the kernels of the one in the library.
int ctas_of(const fa3_forward_params& params, void* workspace, std::size_t bytes) {
  void* get_params = nullptr;
  cudaDriverEntryPointQueryResult found;
  EXPECT_EQ(
      cudaGetDriverEntryPointByVersion("cuGraphKernelNodeGetParams", &get_params, 12000, cudaEnableDefault, &found),
      cudaSuccess);
  cudaStream_t stream;
  cudaGraph_t graph;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(fa3_forward(&params, workspace, bytes, stream), FA3_OK) << fa3_last_error();
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  std::size_t count = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
  std::vector<cudaGraphNode_t> nodes(count);
  EXPECT_EQ(cudaGraphGetNodes(graph, nodes.data(), &count), cudaSuccess);
  int ctas = 0;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    EXPECT_EQ(cudaGraphNodeGetType(node, &type), cudaSuccess);
    if (type != cudaGraphNodeTypeKernel) continue;
    CUDA_KERNEL_NODE_PARAMS kernel{};
    EXPECT_EQ(reinterpret_cast<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>(get_params)(node, &kernel),
              CUDA_SUCCESS);
    ctas += int(kernel.gridDimX);
  }
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return ctas;
}

// Eight tiles on eight SMs, on three, and on one.
TEST_F(CudaDevice, SmMarginChangesNoBitAndLeavesAtLeastOneSm) {
  ProblemData data;
  std::uint16_t next = 0;
  for (auto* input : {&data.q, &data.k, &data.v})
    for (std::uint16_t& x : *input) x = std::uint16_t(0x3000 + (next += 7919) % 0x0c00);  // f16 from 0.125 to 1
  OnGpu gpu(data);
  int device = 0, sm_count = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device), cudaSuccess);
  std::size_t bytes = 0;
  ASSERT_EQ(fa3_forward_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
  void* workspace = gpu.allocate(bytes);

  data.params.sm_margin = sm_count;
  EXPECT_EQ(fa3_forward(&data.params, workspace, bytes, nullptr), FA3_INVALID_ARGUMENT);
  const std::string message = fa3_last_error(), count = std::to_string(sm_count);
  EXPECT_EQ(message, "sm_margin is " + count + "; it must be below the device's number of SMs, " + count);
  EXPECT_TRUE(gpu.outputs_untouched());

  std::vector<std::uint16_t> o;
  std::vector<float> lse;
  for (const int margin : {0, 1, sm_count - 3, sm_count - 1}) {
    data.params.sm_margin = margin;
    ASSERT_EQ(fa3_forward(&data.params, workspace, bytes, nullptr), FA3_OK) << fa3_last_error();
    EXPECT_FALSE(gpu.outputs_untouched());  // copies them back
    EXPECT_EQ(ctas_of(data.params, workspace, bytes), std::min(8, sm_count - margin));
    if (margin == 0) o = data.o, lse = data.lse;
    EXPECT_EQ(data.o, o) << "margin " << margin;
    EXPECT_EQ(data.lse, lse) << "margin " << margin;
    gpu.poison_outputs();
  }
}

TEST_F(CudaDevice, InitLeavesTheCurrentDeviceAlone) {
  int before = -1, after = -1;
  ASSERT_EQ(cudaGetDevice(&before), cudaSuccess);
  EXPECT_EQ(fa3_init(before), FA3_OK) << fa3_last_error();
  EXPECT_EQ(fa3_init(1 << 20), FA3_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fa3_last_error()).find("1048576"), std::string::npos) << fa3_last_error();
  ASSERT_EQ(cudaGetDevice(&after), cudaSuccess);
  EXPECT_EQ(before, after);
}

TEST_F(CudaDevice, PointerOfAnotherDeviceIsRefused) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  if (devices < 2) GTEST_SKIP() << "needs two GPUs, there is one";
  ProblemData data;
  OnGpu gpu(data);
  std::size_t bytes = 0;
  ASSERT_EQ(fa3_forward_workspace_size(&data.params, &bytes), FA3_OK) << fa3_last_error();
  void* workspace = gpu.allocate(bytes + 256);
  int current = 0;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(current == 0 ? 1 : 0), cudaSuccess);
  data.params.k.data = gpu.allocate(data.k.size() * 2);
  ASSERT_EQ(cudaSetDevice(current), cudaSuccess);
  EXPECT_EQ(fa3_forward(&data.params, workspace, bytes, nullptr), FA3_INVALID_ARGUMENT);
  const std::string message = fa3_last_error();
  EXPECT_EQ(message.rfind("k", 0), 0u) << message;
  EXPECT_NE(message.find("device"), std::string::npos) << message;
  EXPECT_TRUE(gpu.outputs_untouched());
}

#endif

}  // namespace
}  // namespace fa3::test
