// Tensor views of the C++ layer: pointer, shape, strides, element type, device. They own nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "fa3/fa3.h"

namespace fa3 {

enum class Dtype : std::int32_t { f16 = FA3_F16, bf16 = FA3_BF16, e4m3 = FA3_E4M3, f32 = FA3_F32 };

/// Where a tensor's memory is. `automatic`: on the current GPU if it can run fa3, else in host memory; see resolve().
enum class Device : std::int32_t { automatic = 0, cuda = FA3_DEVICE_CUDA, cpu = FA3_DEVICE_CPU };

/// `automatic` becomes cuda where the current device is a usable Hopper GPU, else cpu.
inline Device resolve(Device device) {
  if (device != Device::automatic) return device;
  return fa3_device_available(FA3_DEVICE_CUDA) == FA3_OK ? Device::cuda : Device::cpu;
}

/// Strides of a dense tensor, in elements, last dimension fastest.
template <std::size_t rank>
constexpr std::array<std::int64_t, rank> contiguous_strides(const std::array<std::int64_t, rank>& shape) {
  std::array<std::int64_t, rank> stride{};
  std::int64_t next = 1;
  for (std::size_t i = rank; i-- > 0;) {
    stride[i] = next;
    next *= shape[i];
  }
  return stride;
}

/// View of `rank` dimensions. `Pointer` is `void*` or `const void*`; stride in elements.
template <class Pointer, std::size_t rank>
struct BasicView {
  Pointer data = nullptr;
  std::array<std::int64_t, rank> shape{};
  std::array<std::int64_t, rank> stride{};
  Dtype dtype = Dtype::f16;
  Device device = Device::automatic;

  BasicView() = default;
  /// A dense tensor.
  BasicView(Pointer data_, std::array<std::int64_t, rank> shape_, Dtype dtype_, Device device_ = Device::automatic)
      : BasicView(data_, shape_, contiguous_strides(shape_), dtype_, device_) {}
  BasicView(Pointer data_, std::array<std::int64_t, rank> shape_, std::array<std::int64_t, rank> stride_, Dtype dtype_,
            Device device_ = Device::automatic)
      : data(data_), shape(shape_), stride(stride_), dtype(dtype_), device(device_) {}
  /// A writable view reads, too.
  template <class Other>
  requires(!std::is_same_v<Other, Pointer> && std::is_convertible_v<Other, Pointer>)
      BasicView(const BasicView<Other, rank>& other)
      : BasicView(other.data, other.shape, other.stride, other.dtype, other.device) {}
};

/// [batch, seqlen, heads, d]
using Tensor = BasicView<void*, 4>;
using ConstTensor = BasicView<const void*, 4>;
/// Row statistics [batch, heads, seqlen_q], f32.
using RowTensor = BasicView<void*, 3>;
using ConstRowTensor = BasicView<const void*, 3>;

/// Scales of an e4m3 tensor, f32: [batch, kv_heads], or with per_block [batch, heads, ceil(seqlen / FA3_SCALE_ROWS)].
/// Without data all are 1. Strides in elements; shape[2] and stride[2] are ignored if not per_block.
struct ScalesView {
  float* data = nullptr;
  std::array<std::int64_t, 3> shape{};
  std::array<std::int64_t, 3> stride{};
  bool per_block = false;
  Device device = Device::automatic;
  float largest = 0;  ///< no e4m3 value of the tensor exceeds this in size (fa3_scales); 0: 448

  /// Dense, one for each key/value head.
  static ScalesView of_heads(float* data, std::int64_t batch, std::int64_t heads, Device device = Device::automatic) {
    return {data, {batch, heads, 1}, contiguous_strides<3>({batch, heads, 1}), false, device};
  }
  /// Dense, one for each block of rows of each head.
  static ScalesView of_blocks(float* data, std::int64_t batch, std::int64_t heads, std::int64_t blocks,
                              Device device = Device::automatic) {
    return {data, {batch, heads, blocks}, contiguous_strides<3>({batch, heads, blocks}), true, device};
  }
  /// One for all heads of all batch entries.
  static ScalesView of_tensor(float* data, std::int64_t batch, std::int64_t heads, Device device = Device::automatic) {
    return {data, {batch, heads, 1}, {0, 0, 0}, false, device};
  }
};

}  // namespace fa3
