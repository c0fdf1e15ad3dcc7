// The scales of e4m3 tensors are read where they are and nowhere else: behind the last one memory may end.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>

#include "dtype.hpp"
#include "fa3/fa3.hpp"
#include "simulate/forward.hpp"

namespace fa3 {
namespace {

/// `count` floats of 1 whose last one ends at a page that nobody may touch.
class FloatsBeforeTheEnd {
 public:
  explicit FloatsBeforeTheEnd(std::size_t count) : page_(std::size_t(sysconf(_SC_PAGESIZE))) {
    memory_ =
        static_cast<std::byte*>(mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED || mprotect(memory_ + page_, page_, PROT_NONE) != 0) std::abort();
    first_ = reinterpret_cast<float*>(memory_ + page_) - count;
    std::fill_n(first_, count, 1.0f);
  }
  ~FloatsBeforeTheEnd() { munmap(memory_, 2 * page_); }
  FloatsBeforeTheEnd(const FloatsBeforeTheEnd&) = delete;
  FloatsBeforeTheEnd& operator=(const FloatsBeforeTheEnd&) = delete;
  float* first() const { return first_; }

 private:
  std::size_t page_;
  std::byte* memory_;
  float* first_;
};

template <class T>
std::unique_ptr<T[], decltype(&std::free)> aligned(std::size_t count) {
  return {static_cast<T*>(std::aligned_alloc(256, (count * sizeof(T) + 255) / 256 * 256)), &std::free};
}

/// Tiles of 256, 192 and 128 rows begin and end inside and outside the sequence.
TEST(Scales, NothingIsReadBehindThem) {
  for (const std::int64_t d : {64, 128, 256})
    for (const std::int64_t seqlen : {1, 128, 129, 193, 200, 256, 257, 300}) {
      const auto q = aligned<E4m3>(std::size_t(seqlen * d));
      const auto o = aligned<Half>(std::size_t(seqlen * d));
      std::mt19937 random(1);
      for (std::int64_t i = 0; i < seqlen * d; ++i) q[std::size_t(i)] = from_float<E4m3>(float(random() % 5) - 2);
      const std::int64_t blocks = (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS;
      const FloatsBeforeTheEnd scales{std::size_t(blocks)};
      const ConstTensor input(q.get(), {1, seqlen, 1, d}, Dtype::e4m3, Device::cuda);
      ForwardOptions options;
      options.q_scale = options.k_scale = options.v_scale =
          ScalesView::of_blocks(scales.first(), 1, 1, blocks, Device::cuda);
      const Status status = simulator::forward_as_device(
          input, input, input, Tensor(o.get(), {1, seqlen, 1, d}, Dtype::f16, Device::cuda), {}, options, {}, nullptr);
      EXPECT_TRUE(status) << "d = " << d << ", seqlen = " << seqlen << ": " << status.message();
    }
}

}  // namespace
}  // namespace fa3
