// What the launchers of all kernels do alike.
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/kernel.hpp"
#include "kernels/plan.hpp"
#include "problem.hpp"

namespace fa3::kernels {

/// The current device, its kernels loaded at its first use, and its number of SMs. Throws Error.
std::pair<int, int> current_device();

/// Loads the kernel into the current context and allows it its shared memory.
void allow_shared_memory(const Kernel& kernel);

/// setmaxnreg moves registers within what the launch allocates; were that less than the roles claim, the kernel would
/// wait for ever. Throws Error(FA3_INTERNAL), naming the row.
void check_registers(const Kernel& kernel, const char* row);

/// Throws Error(FA3_INVALID_ARGUMENT) unless the pointer is null or memory that the device reaches.
void check_device_pointer(const char* name, const void* pointer, int device);

/// Throws Error(FA3_WORKSPACE_TOO_SMALL) unless the workspace will do.
void check_workspace(const void* workspace, std::size_t given, std::size_t needed);

/// Enqueue copies between the caller's tensor and its dense twin in the workspace; nothing if there is none.
void copy_in(const TensorRef& from, const StagedTensor& to, fa3_stream stream);
void copy_out(const StagedTensor& from, const TensorRef& to, fa3_stream stream);

/// `argument`: the kernel's one parameter. `overlaps`: may start before the kernel before it in the stream has ended
/// (hopper::wait_for_previous_grid). `what`: for the message.
void launch_kernel(const Kernel& kernel, const void* argument, int ctas, bool overlaps, fa3_stream stream,
                   const char* what);

}  // namespace fa3::kernels
