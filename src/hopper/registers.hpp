// Registers: moving them between warpgroups (PTX ISA, "setmaxnreg"), and sparing them.
#pragma once

#include "hopper/backend.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// Every warp of the warpgroup calls it. `count` per thread: a multiple of 8 from 24 to 256. claim waits until the
/// registers are free; the pool is what the launch allocated (threads times registers at entry), and asking for more
/// hangs.
template <int count>
HOPPER_FUNCTION void release_registers();
template <int count>
HOPPER_FUNCTION void claim_registers();

/// x, as a value of which the compiler knows nothing. What is computed from it is computed there, where it would else
/// be computed ahead of a loop and kept.
HOPPER_FUNCTION int recompute(int x);
/// x, which must be the same in the whole (converged) warp, as a value of which the compiler knows that it is: what is
/// computed from it can live in uniform registers.
HOPPER_FUNCTION int uniform(int x);
/// The same by an instruction (redux) whose result is a uniform register: ptxas then computes there what follows, such
/// as the descriptors of a product, where after uniform() it may copy each one over.
HOPPER_FUNCTION int in_uniform_register(int x);

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(registers.hpp)
