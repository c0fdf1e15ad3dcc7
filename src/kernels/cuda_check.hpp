// Errors of the CUDA runtime as exceptions.
#pragma once

#include <driver_types.h>

namespace fa3::kernels {

/// Throws Error(FA3_NO_DEVICE) where there is no driver, a too old one or no GPU, Error(FA3_CUDA_ERROR) for any other
/// failure; `what` is the call, for the message.
void check(cudaError_t error, const char* what);

}  // namespace fa3::kernels
