// The GPU side of a library built without CUDA.
#include "kernels/backward_launch.hpp"
#include "kernels/launch.hpp"
#include "kernels/quantize_launch.hpp"

namespace fa3::kernels {
namespace {

[[noreturn]] void refuse() {
  throw Error(FA3_NO_DEVICE, "this build of fa3 has no CUDA kernels (it was built without nvcc); use the cpu device");
}

}  // namespace

void check_device() { refuse(); }
void init(int) { refuse(); }
void forward(const ForwardProblem&, void*, std::size_t, fa3_stream) { refuse(); }
void backward(const BackwardProblem&, void*, std::size_t, fa3_stream) { refuse(); }
void quantize(const QuantizeProblem&, void*, std::size_t, fa3_stream) { refuse(); }

}  // namespace fa3::kernels
