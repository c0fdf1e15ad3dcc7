// The __global__ wrappers of attention::quantize.
#include "attention/quantize.hpp"

#include "kernels/quantize_launch.hpp"

namespace fa3::kernels {
namespace {

using attention::quantize_shapes;
using attention::Transform;
using hopper::Element;

/// CTAs that must have the registers to be in an SM at a time. The embedding would spill.
constexpr int resident(Transform transform, int shape) {
  return transform == Transform::embedding ? 1 : quantize_shapes[shape].ctas_of_sm();
}

// The shape by its index: nvcc 13.0 cannot write down a structure in the name of a kernel.
template <Element element, Transform transform, int shape>
__global__ void __launch_bounds__(quantize_shapes[shape].threads(), resident(transform, shape))
    quantize(const __grid_constant__ attention::QuantizeArguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  attention::quantize<element, transform, quantize_shapes[shape]>(*reinterpret_cast<attention::QuantizeShared*>(memory),
                                                                  args);
}

template <Element element>
const void* function_of(const QuantizePlan& plan) {
  return with_instance(plan, []<Transform transform, int shape>() {
    return reinterpret_cast<const void*>(&quantize<element, transform, shape>);
  });
}

}  // namespace

Kernel quantize_kernel(const QuantizePlan& plan) {
  return {plan.element == Element::f16 ? function_of<Element::f16>(plan) : function_of<Element::bf16>(plan),
          plan.sharing().threads(), int(sizeof(attention::QuantizeShared)), 0, 1};
}

}  // namespace fa3::kernels
