// Running test kernels on the GPU; see machine.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

#include "fa3/fa3.h"
#include "kernels/cuda_check.hpp"
#include "kernels/tensor_map.hpp"

namespace fa3::hopper_test {

using kernels::check;

template <class T>
class Buffer {
 public:
  explicit Buffer(const std::vector<T>& values) : count_(values.size()) {
    check(cudaMalloc(&data_, count_ * sizeof(T)), "cudaMalloc");
    check(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  Buffer(std::size_t count, const T& fill) : Buffer(std::vector<T>(count, fill)) {}
  ~Buffer() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    check(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

inline hopper::TensorMap encode(const hopper::TensorMapSpec& spec) { return kernels::encode_tensor_map(spec); }

struct Mode {};
inline void PrintTo(const Mode&, std::ostream* out) { *out << "gpu"; }
inline auto modes() { return ::testing::Values(Mode{}); }

struct ModeName {
  std::string operator()(const ::testing::TestParamInfo<Mode>&) const { return "gpu"; }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads, 1) entry(const __grid_constant__ typename Kernel::Arguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Kernel::run(*reinterpret_cast<typename Kernel::Shared*>(memory), args);
}

class MachineTest : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    if (fa3_device_available(FA3_DEVICE_CUDA) != FA3_OK) GTEST_SKIP() << "no Hopper GPU: " << fa3_last_error();
  }

  template <class Kernel>
  void launch(const typename Kernel::Arguments& args, int ctas = 1, int cluster_ctas = 1) const {
    constexpr int shared_bytes = sizeof(typename Kernel::Shared);
    check(cudaFuncSetAttribute(entry<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
          "cudaFuncSetAttribute");
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {unsigned(cluster_ctas), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(ctas));
    config.blockDim = dim3(Kernel::threads);
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    check(cudaLaunchKernelEx(&config, &entry<Kernel>, args), "kernel launch");
    // A wrong barrier waits for ever, and a process that waits for it cannot say so.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    cudaError_t status;
    while ((status = cudaStreamQuery(nullptr)) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > deadline) {
        const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
        std::fprintf(stderr, "%s.%s: kernel %s did not end within 20 s\n", test->test_suite_name(), test->name(),
                     typeid(Kernel).name());
        std::_Exit(1);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    check(status, typeid(Kernel).name());
  }
};

}  // namespace fa3::hopper_test
