
#include "kernels/ablation_launch.hpp"
#include "kernels/launch.hpp"
#include "of_rows.hpp"

namespace fa3::kernels {

template <int row>
Kernel ablation_kernel_of_row();

namespace {

static_assert(FA3_FORWARD_ROWS == ablation_row_count, "the build read another number of rows from ablation.hpp");

Kernel kernel_of_row(int row) {
  static constexpr auto kernels =
      of_rows<ablation_row_count>([]<int index>() { return &ablation_kernel_of_row<index>; });
  return kernels[std::size_t(row)]();
}

}  // namespace

void prepare_ablation_row(int row) { prepare_kernel(kernel_of_row(row), ablation_rows[row].name); }

void forward_ablation(int row, const ForwardProblem& problem, void* workspace, std::size_t workspace_bytes,
                      fa3_stream stream) {
  forward_with(kernel_of_row(row), ablation_rows[row], problem, workspace, workspace_bytes, stream);
}

}  // namespace fa3::kernels
