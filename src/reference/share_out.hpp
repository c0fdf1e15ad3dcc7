// A loop on several threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace fa3::reference {

/// Calls task(i) for i in [0, count). Thread t takes every threads-th index, so that causal rows, which grow longer and
/// longer, are shared out evenly.
template <class Task>
void share_out(std::int64_t count, int threads, Task task) {
  const auto share = [&](std::int64_t first, std::int64_t step) {
    for (std::int64_t i = first; i < count; i += step) task(i);
  };
  std::vector<std::jthread> others;
  try {
    for (int t = 1; t < threads; ++t) others.emplace_back(share, t, threads);
  } catch (const std::system_error&) {
    // No more threads: this one takes their shares.
  }
  share(0, std::max(threads, 1));
  for (int t = 1 + int(others.size()); t < threads; ++t) share(t, threads);
}

}  // namespace fa3::reference
