// The __global__ wrapper of attention::forward, one instance per row of the table.
#pragma once

#include "attention/forward.hpp"
#include "kernels/configs.hpp"
#include "kernels/kernel.hpp"

namespace fa3::kernels {

// Why a type: nvcc 13.0 writes a host stub that does not compile if the template argument is the ForwardConfig itself.
template <int index>
struct TableRow {
  static constexpr ForwardConfig config = forward_rows[index].config;
};

template <class Row>
__global__ void __launch_bounds__(Row::config.threads(), 1)
    forward_kernel(const __grid_constant__ attention::ForwardArguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  attention::forward<Row::config>(*reinterpret_cast<attention::Shared<Row::config>*>(memory), args);
}

template <class Row>
Kernel kernel_of() {
  constexpr int shared_bytes = sizeof(attention::Shared<Row::config>);
  static_assert(shared_bytes <= 227 * 1024, "the tiles do not fit into shared memory");
  return {reinterpret_cast<const void*>(&forward_kernel<Row>), Row::config.threads(), shared_bytes,
          Row::config.registers(), Row::config.cluster};
}

template <int index>
Kernel forward_kernel_of_row() {
  return kernel_of<TableRow<index>>();
}

}  // namespace fa3::kernels
