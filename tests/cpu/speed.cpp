// Times the CPU backend against the fp64 reference on the same two threads; fails below the ratio that is promised.
#include <chrono>
#include <cstdio>

#include "cpu/backward.hpp"
#include "cpu/forward.hpp"
#include "gradient_case.hpp"

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
  test::GradientCase c({.heads = 8, .kv_heads = 8, .seqlen_q = 1024, .seqlen_k = 1024});
  std::printf("seqlen 1024, d 64, 8 heads, f16, %d threads\n", threads);
  bool kept = true;
  const auto compare = [&](const char* pass, double flops, auto reference, auto library) {
    const double slow = best_of(2, reference);
    std::printf("%s, reference: %.1f ms\n", pass, slow * 1e3);
    for (const cpu::Simd& simd : cpu::usable_simds()) {
      const double time = best_of(5, [&] { library(simd); }), ratio = slow / time;
      std::printf("%-9s  %.1f ms, %.1f GFLOP/s, %.1fx\n", simd.name, time * 1e3, flops / time * 1e-9, ratio);
      kept = kept && ratio >= promised;
    }
  };
  const reference::Result forward = reference::forward(c.problem, threads);
  c.prepare(forward);
  const BackwardProblem backward = c.backward();
  compare(
      "forward", c.problem.flops(), [&] { reference::forward(c.problem, threads); },
      [&](const cpu::Simd& simd) { cpu::forward(c.problem, simd, threads); });
  compare(
      "backward", backward.flops(), [&] { reference::backward(backward, forward, threads); },
      [&](const cpu::Simd& simd) { cpu::backward(backward, simd, threads); });
  if (!kept) std::printf("FAILED: expected at least %.0fx\n", promised);
  return kept ? 0 : 1;
}
