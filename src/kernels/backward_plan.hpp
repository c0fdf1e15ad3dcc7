// What a backward pass on the GPU will do, decided on the host from the problem alone, and the arguments of its
// kernels; the same for the GPU and the simulator.
#pragma once

#include <cstddef>

#include "attention/backward_arguments.hpp"
#include "kernels/arguments.hpp"
#include "kernels/backward_configs.hpp"
#include "kernels/plan.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// The workspace holds, in this order: two f32 for every query row; dQ in f32 (attention::DqLayout); counts: of items,
/// deterministic: the turns, of what has been zeroed; copies of the tensors that TMA cannot address. Rows of a sequence
/// are padded to whole blocks.
struct BackwardPlan {
  int row = -1;  // of backward_rows
  BackwardConfig config{};
  // With a causal mask the first rows may see no key. The kernels leave them out, so that what they hold does not show.
  int zero_rows = 0;
  int blocks = 0;     // of config.tile_q of the other query rows in a sequence
  int key_items = 0;  // of config.item_keys() keys in a sequence
  StagedTensor d_o, q, k, v, dk, dv;
  std::size_t statistics = 0, dq = 0, counts = 0;  // offsets
  std::int64_t turn_count = 0;
  std::int64_t count_count = 0;  // next_item, turn_count turns, and one for every key/value sequence
  std::size_t workspace_bytes = 0;
};

/// With `row` -1 the row dispatch takes, else that one. Throws Error as plan_forward.
BackwardPlan plan_backward(const BackwardProblem& problem, int row = -1);

/// The three launches.
struct BackwardLaunch {
  attention::BeforeBackwardArguments before;
  attention::BackwardArguments main;
  attention::AfterBackwardArguments after;
  int before_ctas, main_ctas, after_ctas;  // 0: nothing to do
};

/// For a chip with `sm_count` SMs. Points the plan's copied tensors into `workspace`. Throws Error if sm_margin leaves
/// no SM.
BackwardLaunch backward_launch(const BackwardProblem& problem, BackwardPlan& plan, void* workspace, int sm_count,
                               TensorMapEncoder encode);

}  // namespace fa3::kernels
