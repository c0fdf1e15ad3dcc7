// The kernel that makes V^T ahead of the rows that take it so.
#pragma once

#include "kernels/kernel.hpp"

namespace fa3::kernels {

Kernel transpose_values_kernel();

}  // namespace fa3::kernels
