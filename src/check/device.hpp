// Memory, streams and time on either device, for the command and the tests. The library itself needs none of this.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "fa3/fa3.hpp"

namespace fa3::check {

/// `bytes` of memory on cpu or cuda, 256-byte aligned. Throws std::bad_alloc, or Error with CUDA's words.
class Buffer {
 public:
  Buffer(Device device, std::size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from);  // bytes() bytes of host memory
  void download(void* to) const;
  void fill(int byte);

 private:
  Device device_;
  std::size_t bytes_;
  void* data_ = nullptr;
};

/// Enqueues on the stream it is given; on the cpu device the stream is null and the work is done on return.
using Work = std::function<Status(fa3_stream)>;

/// Does `work` on a stream of its own and waits for it.
Status run_and_wait(Device device, const Work& work);

/// Enqueues a copy within the memory of the device; on the cpu device it is done on return.
Status copy(Device device, void* to, const void* from, std::size_t bytes, fa3_stream stream);

/// `work` as a CUDA graph. Throws Error where it cannot be captured.
class Graph {
 public:
  explicit Graph(const Work& work);
  Graph(const Graph&) = delete;
  ~Graph();
  void replay();  // and waits

 private:
  void* graph_ = nullptr;
};

/// Throws Error unless the status is ok.
void require(const Status& status);

/// Of an even number of values the upper one of the middle; at least one.
double median(std::vector<double> values);

struct Timing {
  double seconds = 0;  // median of one run
  int runs = 0;
};

/// Times `work` after a warm-up, for about `budget_seconds`. On the cpu a warm-up longer than that is the one run
/// timed. Throws Error if the work fails.
Timing time_work(Device device, const Work& work, double budget_seconds);

struct CudaDevice {
  std::string name;
  int major = 0, minor = 0;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  bool current = false;
};

struct CudaMachine {
  std::string reason;                           // why `devices` is empty; "" if it is not
  int driver_version = 0, runtime_version = 0;  // 1000 * major + 10 * minor; 0 if unknown
  std::vector<CudaDevice> devices;
};

CudaMachine cuda_machine();

/// "NVIDIA H200", or the name of this machine's processor.
std::string device_name(Device device);

/// Threads of the fp64 reference: those the CPU backend uses.
int host_threads();

}  // namespace fa3::check
