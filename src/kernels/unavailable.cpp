// The GPU side of a library built without CUDA.
#include "kernels/backward_launch.hpp"
#include "kernels/launch.hpp"

namespace fa3::kernels {
namespace {

[[noreturn]] void refuse() {
  throw Error(FA3_NO_DEVICE, "this build of fa3 has no CUDA kernels (it was built without nvcc); use the cpu device");
}

}  // namespace

void check_device() { refuse(); }
void init(int) { refuse(); }
void forward(const ForwardProblem&, void*, std::size_t, fa3_stream) { refuse(); }
std::size_t backward_workspace_bytes(const BackwardProblem& problem) { return plan_backward(problem).workspace_bytes; }
const char* backward_kernel_name(const BackwardProblem& problem) {
  return backward_rows[plan_backward(problem).row].name;
}
void backward(const BackwardProblem&, void*, std::size_t, fa3_stream) { refuse(); }

}  // namespace fa3::kernels
