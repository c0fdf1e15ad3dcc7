// The workspace of a simulated launch, and the copies into it and out of it, as kernels/launch_parts.hpp has them on
// the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "kernels/plan.hpp"
#include "problem.hpp"

namespace fa3::simulator {

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(256)); }
};
using PoisonedWorkspace = std::unique_ptr<std::byte, AlignedDelete>;

/// 256-byte aligned, every byte 0xff (NaN in all types).
inline PoisonedWorkspace poisoned_workspace(std::size_t bytes) {
  PoisonedWorkspace workspace(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(256))));
  std::memset(workspace.get(), 0xff, bytes);
  return workspace;
}

/// What strided_copy does on the GPU: the elements of `packed`'s distinct positions.
inline void strided_copy(const TensorRef& from, const TensorRef& to, const TensorRef& packed) {
  const auto extent = [&](std::size_t i) { return packed.stride[i] == 0 ? 1 : packed.shape[i]; };
  for (std::int64_t b = 0; b < extent(0); ++b)
    for (std::int64_t s = 0; s < extent(1); ++s)
      for (std::int64_t h = 0; h < extent(2); ++h) {
        const auto row = [&](const TensorRef& tensor) {
          return static_cast<std::uint16_t*>(tensor.data) + b * tensor.stride[0] + s * tensor.stride[1] +
                 h * tensor.stride[2];
        };
        for (std::int64_t i = 0; i < packed.shape[3]; ++i) row(to)[i] = row(from)[i * from.stride[3]];
      }
}

inline void copy_in(const TensorRef& from, const kernels::StagedTensor& to) {
  if (to.copied) strided_copy(from, to.tensor, to.tensor);
}
inline void copy_out(const kernels::StagedTensor& from, const TensorRef& to) {
  if (from.copied) strided_copy(from.tensor, to, from.tensor);
}

}  // namespace fa3::simulator
