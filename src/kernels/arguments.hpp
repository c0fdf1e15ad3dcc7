// From a checked problem and its plan to the kernel's arguments; the same for the GPU and the simulator.
#pragma once

#include <cstdint>

#include "attention/arguments.hpp"
#include "attention/transpose_arguments.hpp"
#include "kernels/plan.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// Makes a backend's tensor map: the driver's, or the simulator's. May throw.
using TensorMapEncoder = hopper::TensorMap (*)(const hopper::TensorMapSpec&);

/// Tensor map with boxes of 64 features x box_rows rows, 128-byte swizzle. An empty tensor gives one that no kernel may
/// touch.
hopper::TensorMap tensor_map(const char* name, const TensorRef& tensor, hopper::Element element, int box_rows,
                             TensorMapEncoder encode);

/// The kernel's form of a softmax_scale of at most 2^64 in size.
attention::Scale kernel_scale(float softmax_scale);

/// For a chip with `sm_count` SMs. Points the plan's copied tensors into `workspace` and fills in everything the kernel
/// needs. args.next_item, if not null, is the first word of the workspace and must be 0 at launch.
attention::ForwardArguments forward_arguments(const ForwardProblem& problem, ForwardPlan& plan, void* workspace,
                                              int sm_count, TensorMapEncoder encode);

/// After forward_arguments(), for a plan whose row takes V^T. Without keys there are no items.
attention::TransposeArguments transpose_arguments(const ForwardProblem& problem, const ForwardPlan& plan,
                                                  TensorMapEncoder encode);

}  // namespace fa3::kernels
