// Runs a case through the public API and judges it.
#pragma once

#include "check/case.hpp"
#include "check/judge.hpp"
#include "fa3/fa3.hpp"
#include "pass_functions.hpp"

namespace fa3::check {

/// Makes the data of `case_`, of the forward pass, runs it on `device` (cpu or cuda) and judges the result (see
/// judge()). Beyond that it checks that nothing is written outside the elements of O and LSE (guard zones around them,
/// gaps between their rows), that the inputs are as before, and that repeats give the same bits. The workspace holds
/// garbage. Throws if the machine fails (memory, CUDA), not if the case does. The tests of this code put faulty
/// functions in place of fa3's.
Verdict run_case(const Case& case_, Device device, const ForwardFunction& forward);

/// The same for a case of the backward pass: outputs are dQ, dK and dV, and O and LSE are inputs, made by fa3::forward
/// on `device`. Repeats must give the same bits if the case is deterministic.
Verdict run_backward_case(const Case& case_, Device device, const BackwardFunction& backward);

/// A case of either pass, through the library.
Verdict run_case(const Case& case_, Device device);

}  // namespace fa3::check
