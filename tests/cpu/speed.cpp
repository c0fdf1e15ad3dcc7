// Times the CPU backend against the fp64 reference on the same two threads; fails below the ratio that is promised.
#include <chrono>
#include <cstdio>

#include "attention_case.hpp"
#include "cpu/forward.hpp"

namespace {

double seconds_of(auto function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double best_of(int repeats, auto function) {
  double best = seconds_of(function);
  for (int i = 1; i < repeats; ++i) best = std::min(best, seconds_of(function));
  return best;
}

}  // namespace

int main() {
  using namespace fa3;
  constexpr int threads = 2;
  constexpr double promised = 5;
  test::AttentionCase c({.heads = 8, .kv_heads = 8, .seqlen_q = 1024, .seqlen_k = 1024});
  const double reference = best_of(2, [&] { reference::forward(c.problem, threads); });
  std::printf("seqlen 1024, d 64, 8 heads, f16, %d threads\nreference: %.1f ms\n", threads, reference * 1e3);
  bool kept = true;
  for (const cpu::Simd& simd : cpu::usable_simds()) {
    const double time = best_of(5, [&] { cpu::forward(c.problem, simd, threads); });
    const double ratio = reference / time;
    std::printf("%-9s  %.1f ms, %.1f GFLOP/s, %.1fx\n", simd.name, time * 1e3, c.problem.flops() / time * 1e-9, ratio);
    kept = kept && ratio >= promised;
  }
  if (!kept) std::printf("FAILED: expected at least %.0fx\n", promised);
  return kept ? 0 : 1;
}
