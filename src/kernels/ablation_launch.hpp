// The kernels of ablation_rows on the GPU.
#pragma once

#include <cstddef>

#include "kernels/ablation.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// Throws Error unless the current device can run the row.
void prepare_ablation_row(int row);

/// forward() (launch.hpp) with the kernel of a row of ablation_rows.
void forward_ablation(int row, const ForwardProblem& problem, void* workspace, std::size_t workspace_bytes,
                      fa3_stream stream);

}  // namespace fa3::kernels
