#include "cpu/threads.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "error.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace fa3::cpu {
namespace {

int usable_cores() {
#if defined(__linux__)
  cpu_set_t mask;  // fails on machines with more than CPU_SETSIZE cores
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(CPU_COUNT(&mask), 1);
#endif
  return std::max(int(std::thread::hardware_concurrency()), 1);
}

}  // namespace

int thread_limit() {
  const int cores = usable_cores();
  const char* variable = std::getenv("FA3_NUM_THREADS");
  if (variable == nullptr) return cores;
  const std::string_view text = variable;
  int wanted = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), wanted);
  if (error != std::errc() || end != text.data() + text.size() || wanted < 1) {
    throw Error(FA3_INVALID_ARGUMENT, "FA3_NUM_THREADS: is \"" + std::string(text) + "\", expected a positive integer");
  }
  return std::min(wanted, cores);
}

int useful_threads(double flops) {
  constexpr double flops_per_thread = 4e6;  // below that starting a thread costs more than it saves
  return std::min(thread_limit(), int(std::clamp(flops / flops_per_thread, 1.0, 1e6)));
}

void parallel_for(std::int64_t tasks, int threads, const std::function<void(std::int64_t, int)>& task) {
  std::atomic<std::int64_t> next = 0;
  const auto work = [&](int thread) {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) task(i, thread);
  };
  std::vector<std::jthread> others;
  others.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  } catch (const std::exception&) {
    // No more threads, or no memory for them: those that run take all the tasks.
  }
  work(0);
}

}  // namespace fa3::cpu
