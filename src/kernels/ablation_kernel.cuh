// As forward_kernel.cuh, for the rows of ablation.hpp.
#pragma once

#include "kernels/ablation.hpp"
#include "kernels/forward_kernel.cuh"

namespace fa3::kernels {

template <int index>
struct AblationRow {
  static constexpr ForwardConfig config = ablation_rows[index].config;
};

template <int index>
Kernel ablation_kernel_of_row() {
  return kernel_of<AblationRow<index>>();
}

}  // namespace fa3::kernels
