// fa3::forward on the simulator, in the form check::run_case takes.
#pragma once

#include <functional>
#include <optional>

#include "api/checks.hpp"
#include "check/run.hpp"
#include "error.hpp"
#include "hopper/sim/cta.hpp"
#include "problem.hpp"

namespace fa3::test {

/// Checks the arguments as the library does and hands the problem to `run`; what that throws becomes the status.
inline check::ForwardFunction on_simulator(std::function<void(const ForwardProblem&)> run) {
  return [run](const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
               const std::optional<RowTensor>& lse, const ForwardOptions& options, Workspace, fa3_stream) {
    fa3_forward_params params;
    if (const Status status = detail::forward_params(q, k, v, o, lse, options, params); !status) return status;
    try {
      run(api::check_forward(&params));
    } catch (const Error& error) {
      return Status(error.code, error.what());
    } catch (const simulator::Failure& failure) {
      return Status(FA3_INTERNAL, failure.what());
    }
    return Status();
  };
}

}  // namespace fa3::test
