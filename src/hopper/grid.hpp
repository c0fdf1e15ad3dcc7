// What CTAs of a grid, and grids of a stream, do with each other by way of global memory. PTX ISA, "red",
// "griddepcontrol", "Memory Consistency Model".
#pragma once

#include "hopper/backend.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// Adds four f32 to the 16-byte aligned `to` in global memory, each atomically, in no particular order. PTX:
/// red.global.add.v4.f32.
HOPPER_FUNCTION void add_to_global(float* to, const float (&value)[4]);

/// Waits until the counter has come to `count`; acquires what came before the raise_count()s. Only for what
/// CTAs that run already will do.
HOPPER_FUNCTION void wait_for_count(const unsigned& counter, unsigned count);
/// Adds 1; releases what this thread has done to global memory, or knows that others have.
HOPPER_FUNCTION void raise_count(unsigned& counter);

/// Waits until the grid before this one in the stream has ended, if it was launched to overlap with it; what that wrote
/// may be read by threads that are ordered after this. Must not be left out by a grid launched so.
HOPPER_FUNCTION void wait_for_previous_grid();
/// Lets the grid after this one begin to start, if it was launched to overlap with this one.
HOPPER_FUNCTION void let_next_grid_start();

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(grid.hpp)
