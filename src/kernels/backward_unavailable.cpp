// The backward pass of a library without kernels for it.
#include "kernels/backward_launch.hpp"

namespace fa3::kernels {
namespace {

[[noreturn]] void refuse() {
  throw Error(FA3_NOT_SUPPORTED,
              "device is FA3_DEVICE_CUDA (1): the backward pass has no CUDA kernels in this build; "
              "use FA3_DEVICE_CPU (2)");
}

}  // namespace

const char* backward_kernel_name(const BackwardProblem&) { refuse(); }
std::size_t backward_workspace_bytes(const BackwardProblem&) { refuse(); }
void backward(const BackwardProblem&, void*, std::size_t, fa3_stream) { refuse(); }

}  // namespace fa3::kernels
