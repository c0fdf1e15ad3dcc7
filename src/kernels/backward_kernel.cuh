// The __global__ wrapper of attention::backward, one instance per row of the table.
#pragma once

#include "attention/backward.hpp"
#include "kernels/backward_configs.hpp"
#include "kernels/kernel.hpp"

namespace fa3::kernels {

// Why a type: see forward_kernel.cuh.
template <int index>
struct BackwardTableRow {
  static constexpr BackwardConfig config = backward_rows[index].config;
};

template <class Row>
__global__ void __launch_bounds__(Row::config.threads(), 1)
    backward_kernel(const __grid_constant__ attention::BackwardArguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  attention::backward<Row::config>(*reinterpret_cast<attention::BackwardShared<Row::config>*>(memory), args);
}

template <int index>
Kernel backward_kernel_of_row() {
  using Row = BackwardTableRow<index>;
  constexpr int shared_bytes = sizeof(attention::BackwardShared<Row::config>);
  static_assert(shared_bytes <= 227 * 1024, "the tiles do not fit into shared memory");
  return {reinterpret_cast<const void*>(&backward_kernel<Row>), Row::config.threads(), shared_bytes,
          Row::config.registers(), Row::config.cluster};
}

}  // namespace fa3::kernels
