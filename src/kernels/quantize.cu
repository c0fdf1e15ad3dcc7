// The __global__ wrappers of attention::quantize.
#include "attention/quantize.hpp"

#include "kernels/quantize_launch.hpp"

namespace fa3::kernels {
namespace {

using attention::Transform;
using hopper::Element;

/// CTAs that an SM holds, at least: as some wait for memory, or for each other, others compute.
constexpr int ctas_of_sm(Transform transform, int slots) {
  return transform == Transform::embedding || slots == 16 ? 1 : 2;
}

template <Element element, Transform transform, int slots>
__global__ void __launch_bounds__(attention::quantize_threads(slots), ctas_of_sm(transform, slots))
    quantize(const __grid_constant__ attention::QuantizeArguments args) {
  extern __shared__ __align__(16) unsigned char memory[];
  attention::quantize<element, transform, slots>(*reinterpret_cast<attention::QuantizeShared*>(memory), args);
}

template <Element element>
const void* function_of(const QuantizePlan& plan) {
  return with_instance(plan, []<Transform transform, int slots>() {
    return reinterpret_cast<const void*>(&quantize<element, transform, slots>);
  });
}

}  // namespace

Kernel quantize_kernel(const QuantizePlan& plan) {
  return {plan.element == Element::f16 ? function_of<Element::f16>(plan) : function_of<Element::bf16>(plan),
          plan.threads, int(sizeof(attention::QuantizeShared)), 0, plan.cluster};
}

}  // namespace fa3::kernels
