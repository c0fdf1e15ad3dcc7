// Fork-join over the cores of this process.
#pragma once

#include <cstdint>
#include <functional>

namespace fa3::cpu {

/// Cores this process may use (its affinity mask), or fewer if the environment variable FA3_NUM_THREADS says so.
/// Throws Error(FA3_INVALID_ARGUMENT) if that is set to anything but a positive integer.
int thread_limit();

/// As many of them as work of so many operations can use.
int useful_threads(double flops);

/// Calls task(index, thread) for every index in [0, tasks), thread in [0, threads), one call per thread at a time;
/// returns when all are done. Lower indices start first. `task` must not throw. Thread 0 is the caller; where the
/// system refuses further threads the others do their work.
void parallel_for(std::int64_t tasks, int threads, const std::function<void(std::int64_t, int)>& task);

}  // namespace fa3::cpu
