// A compiled kernel as the launcher sees it.
#pragma once

namespace fa3::kernels {

struct Kernel {
  const void* function;  // for cudaLaunchKernelExC
  int threads;
  int shared_bytes;
  int registers;  // of all threads together after the hand-over
  int cluster;    // CTAs
};

/// The kernel of a row of forward_rows; defined in the row's own source file.
template <int row>
Kernel forward_kernel_of_row();

}  // namespace fa3::kernels
