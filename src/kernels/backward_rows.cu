// The __global__ wrappers of attention::before_backward and after_backward.
#include "attention/backward_rows.hpp"

#include "kernels/backward_launch.hpp"

namespace fa3::kernels {
namespace {

using hopper::Element;

template <Element element>
__global__ void __launch_bounds__(attention::row_threads)
    before_backward(const __grid_constant__ attention::BeforeBackwardArguments args) {
  attention::before_backward<element>(args);
}

template <Element element>
__global__ void __launch_bounds__(attention::row_threads)
    after_backward(const __grid_constant__ attention::AfterBackwardArguments args) {
  attention::after_backward<element>(args);
}

Kernel of(const void* function) { return {function, attention::row_threads, 0, 0, 1}; }

}  // namespace

Kernel before_backward_kernel(Element element) {
  return of(element == Element::f16 ? reinterpret_cast<const void*>(&before_backward<Element::f16>)
                                    : reinterpret_cast<const void*>(&before_backward<Element::bf16>));
}
Kernel after_backward_kernel(Element element) {
  return of(element == Element::f16 ? reinterpret_cast<const void*>(&after_backward<Element::f16>)
                                    : reinterpret_cast<const void*>(&after_backward<Element::bf16>));
}

}  // namespace fa3::kernels
