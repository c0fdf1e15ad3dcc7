// fa3::forward and fa3::backward with kernels that run on the simulator as their device. Apart from forward.hpp, whose
// library holds the table's kernels: a program with kernels of its own takes this alone.
#pragma once

#include <functional>
#include <utility>

#include "api/checks.hpp"
#include "error.hpp"
#include "fa3/fa3.hpp"
#include "hopper/sim/machine.hpp"
#include "pass_functions.hpp"
#include "problem.hpp"

namespace fa3::simulator {

/// The status of `work`, which throws an Error or a Failure if it fails.
template <class Work>
Status status_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return Status(error.code, error.what());
  } catch (const Failure& failure) {
    return Status(FA3_INTERNAL, failure.what());
  }
  return Status();
}

/// Views of host memory, arguments checked as for cuda; `workspace` and `stream` are not used. `run` does the work; an
/// Error or a Failure it throws becomes a status with its message.
inline ForwardFunction on_simulator(std::function<void(const ForwardProblem&)> run) {
  return [run = std::move(run)](const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
                                const std::optional<RowTensor>& lse, const ForwardOptions& options, Workspace,
                                fa3_stream) {
    fa3_forward_params params;
    if (Status status = detail::forward_params(q, k, v, o, lse, options, params); !status) return status;
    params.device = FA3_DEVICE_CUDA;  // what the simulator stands for: the same types and layouts
    return status_of([&] { run(api::check_forward(&params)); });
  };
}
inline BackwardFunction backward_on_simulator(std::function<void(const BackwardProblem&)> run) {
  return
      [run = std::move(run)](const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                             const ConstTensor& o, const ConstRowTensor& lse, const Tensor& dq, const Tensor& dk,
                             const Tensor& dv, const BackwardOptions& options, Workspace, fa3_stream) {
        fa3_backward_params params;
        if (Status status = detail::backward_params(d_o, q, k, v, o, lse, dq, dk, dv, options, params); !status)
          return status;
        params.device = FA3_DEVICE_CUDA;
        return status_of([&] { run(api::check_backward(&params)); });
      };
}

}  // namespace fa3::simulator
