#include "check/device.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <utility>

#include "cpu/threads.hpp"
#include "error.hpp"

#ifdef FA3_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace fa3::check {
namespace {

constexpr std::size_t alignment = 256;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// How often to repeat what took `once` seconds.
int repeats(double once, double budget_seconds) {
  return int(std::clamp(budget_seconds / std::max(once, 1e-6), 3.0, 1000.0));
}

#ifdef FA3_WITH_CUDA
void require_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw Error(FA3_CUDA_ERROR, std::string(call) + ": " + cudaGetErrorString(error));
}

struct Stream {
  Stream() { require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream); }
  void wait() { require_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }
  cudaStream_t stream = nullptr;
};

struct Event {
  Event() { require_cuda(cudaEventCreate(&event), "cudaEventCreate"); }
  Event(Event&& other) noexcept : event(std::exchange(other.event, nullptr)) {}
  ~Event() {
    if (event) cudaEventDestroy(event);
  }
  cudaEvent_t event = nullptr;
};

Timing time_on_cuda(const Work& work, double budget_seconds) {
  Stream stream;
  require(work(stream.stream));
  stream.wait();
  const double start = seconds_now();
  require(work(stream.stream));
  stream.wait();
  const int runs = repeats(seconds_now() - start, budget_seconds);
  std::vector<Event> events(std::size_t(runs) + 1);
  require_cuda(cudaEventRecord(events[0].event, stream.stream), "cudaEventRecord");
  for (int i = 1; i <= runs; ++i) {
    require(work(stream.stream));
    require_cuda(cudaEventRecord(events[std::size_t(i)].event, stream.stream), "cudaEventRecord");
  }
  stream.wait();
  std::vector<double> seconds;
  for (std::size_t i = 1; i < events.size(); ++i) {
    float milliseconds = 0;
    require_cuda(cudaEventElapsedTime(&milliseconds, events[i - 1].event, events[i].event), "cudaEventElapsedTime");
    seconds.push_back(milliseconds * 1e-3);
  }
  return {median(seconds), runs};
}
#else
[[noreturn]] void no_cuda() { throw Error(FA3_NO_DEVICE, "this fa3 was built without CUDA"); }
#endif

}  // namespace

void require(const Status& status) {
  if (!status) throw Error(status.code(), status.message());
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Buffer::Buffer(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {
  const std::size_t reserved = (bytes + alignment) / alignment * alignment;  // never 0
  if (device_ == Device::cpu) {
    data_ = std::aligned_alloc(alignment, reserved);
    if (!data_) throw std::bad_alloc();
    return;
  }
#ifdef FA3_WITH_CUDA
  require_cuda(cudaMalloc(&data_, reserved), ("cudaMalloc of " + std::to_string(reserved) + " bytes").c_str());
#else
  no_cuda();
#endif
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}

Buffer::~Buffer() {
  if (device_ == Device::cpu) std::free(data_);
#ifdef FA3_WITH_CUDA
  else if (data_)
    cudaFree(data_);
#endif
}

void Buffer::upload(const void* from) {
  if (bytes_ == 0) return;
  if (device_ == Device::cpu) {
    std::memcpy(data_, from, bytes_);
    return;
  }
#ifdef FA3_WITH_CUDA
  require_cuda(cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  require_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // Why: a small copy may return before it is done
#endif
}

void Buffer::download(void* to) const {
  if (bytes_ == 0) return;
  if (device_ == Device::cpu) {
    std::memcpy(to, data_, bytes_);
    return;
  }
#ifdef FA3_WITH_CUDA
  require_cuda(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
#endif
}

void Buffer::fill(int byte) {
  if (bytes_ == 0) return;
  if (device_ == Device::cpu) {
    std::memset(data_, byte, bytes_);
    return;
  }
#ifdef FA3_WITH_CUDA
  require_cuda(cudaMemset(data_, byte, bytes_), "cudaMemset");
  require_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
#endif
}

Status run_and_wait(Device device, const Work& work) {
  if (device == Device::cpu) return work(nullptr);
#ifdef FA3_WITH_CUDA
  Stream stream;
  const Status status = work(stream.stream);
  stream.wait();
  return status;
#else
  no_cuda();
#endif
}

Status copy(Device device, void* to, const void* from, std::size_t bytes, fa3_stream stream) {
  if (device == Device::cpu) {
    std::memcpy(to, from, bytes);
    return Status();
  }
#ifdef FA3_WITH_CUDA
  require_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  return Status();
#else
  static_cast<void>(stream);
  no_cuda();
#endif
}

#ifdef FA3_WITH_CUDA
Graph::Graph(const Work& work) {
  int device = 0;
  require_cuda(cudaGetDevice(&device), "cudaGetDevice");
  require(Status::of(fa3_init(device)));
  Stream stream;
  require_cuda(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const Status status = work(stream.stream);
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.stream, &captured);
  cudaGraphExec_t executable = nullptr;
  cudaError_t instantiated = cudaSuccess;
  if (status && ended == cudaSuccess) instantiated = cudaGraphInstantiate(&executable, captured, 0);
  if (captured) cudaGraphDestroy(captured);
  require(status);
  require_cuda(ended, "cudaStreamEndCapture");
  require_cuda(instantiated, "cudaGraphInstantiate");
  graph_ = executable;
}

Graph::~Graph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_)); }

void Graph::replay() {
  Stream stream;
  require_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), stream.stream), "cudaGraphLaunch");
  stream.wait();
}
#else
Graph::Graph(const Work&) { no_cuda(); }
Graph::~Graph() = default;
void Graph::replay() { no_cuda(); }
#endif

Timing time_work(Device device, const Work& work, double budget_seconds) {
  if (device == Device::cuda) {
#ifdef FA3_WITH_CUDA
    return time_on_cuda(work, budget_seconds);
#else
    no_cuda();
#endif
  }
  const auto once = [&] {
    const double start = seconds_now();
    require(work(nullptr));
    return seconds_now() - start;
  };
  const double first = once();
  if (first > budget_seconds) return {first, 1};
  std::vector<double> seconds(std::size_t(repeats(first, budget_seconds)));
  for (double& s : seconds) s = once();
  return {median(seconds), int(seconds.size())};
}

CudaMachine cuda_machine() {
  CudaMachine machine;
#ifdef FA3_WITH_CUDA
  if (cudaDriverGetVersion(&machine.driver_version) != cudaSuccess) machine.driver_version = 0;
  if (cudaRuntimeGetVersion(&machine.runtime_version) != cudaSuccess) machine.runtime_version = 0;
  int count = 0, current = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    machine.reason = cudaGetErrorString(error);
    return machine;
  }
  cudaGetDevice(&current);
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    require_cuda(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    machine.devices.push_back({properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                               properties.totalGlobalMem, i == current});
  }
  if (count == 0) machine.reason = "this machine has no CUDA device";
#else
  machine.reason = "this fa3 was built without CUDA";
#endif
  return machine;
}

std::string device_name(Device device) {
  if (device == Device::cuda) {
    for (const CudaDevice& cuda : cuda_machine().devices)
      if (cuda.current) return cuda.name;
    return "no CUDA device";
  }
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "cpu";
}

int host_threads() { return cpu::thread_limit(); }

}  // namespace fa3::check
