#include "kernels/cuda_check.hpp"

#include <cuda_runtime_api.h>

#include <string>

#include "error.hpp"

namespace fa3::kernels {
namespace {

using std::string;
using std::to_string;

string version_text(int version) { return to_string(version / 1000) + "." + to_string(version % 1000 / 10); }

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the caller hears of it here; leave no trace for the next unrelated call
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    throw Error(FA3_NO_DEVICE, driver == 0 ? string("no NVIDIA driver is installed (libcuda.so.1 was not found)")
                                           : "the NVIDIA driver is too old: it supports CUDA " + version_text(driver) +
                                                 ", this build needs " + version_text(CUDART_VERSION));
  }
  if (error == cudaErrorNoDevice) throw Error(FA3_NO_DEVICE, "no CUDA device is visible to this process");
  throw Error(FA3_CUDA_ERROR, string(what) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

}  // namespace fa3::kernels
