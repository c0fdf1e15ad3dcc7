// Shows that the working memory of the CPU backend does not grow with seqlen, but for two floats per row in the
// backward pass: counts what it allocates.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "cpu/backward.hpp"
#include "cpu/forward.hpp"
#include "gradient_case.hpp"

namespace {
std::atomic<std::size_t> allocated = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
  allocated += bytes;
  if (void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return allocate(bytes, std::size_t(alignment)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

int main() {
  using namespace fa3;
  cpu::usable_simds();  // the list is made once and kept
  constexpr std::int64_t short_seqlen = 128, long_seqlen = 2048, heads = 2;
  const auto allocated_by = [](auto function) {
    const std::size_t before = allocated;
    function();
    return allocated - before;
  };
  bool right = true;
  const auto compare = [&](const char* pass, auto bytes_of, std::size_t scratch, std::size_t per_row) {
    const std::size_t small = bytes_of(short_seqlen), large = bytes_of(long_seqlen);
    std::printf("%s: allocated with 2 threads: %zu bytes at seqlen %lld, %zu at %lld; scratch alone %zu\n", pass, small,
                static_cast<long long>(short_seqlen), large, static_cast<long long>(long_seqlen), scratch);
    const std::size_t rows = std::size_t((long_seqlen - short_seqlen) * heads);
    if (large - small == rows * per_row && small >= scratch && large <= scratch + long_seqlen * heads * per_row + 8192)
      return;
    std::printf("FAILED: expected the scratch memory, a little for the threads, and %zu bytes per row\n", per_row);
    right = false;
  };
  compare(
      "forward",
      [&](std::int64_t seqlen) {
        const test::AttentionCase c(
            {.heads = heads, .kv_heads = heads, .seqlen_q = seqlen, .seqlen_k = seqlen, .causal = true});
        return allocated_by([&] { cpu::forward(c.problem, cpu::usable_simds().front(), 2); });
      },
      2 * cpu::scratch_bytes(64, 64), 0);
  compare(
      "backward",
      [&](std::int64_t seqlen) {
        const test::GradientCase c(
            {.heads = heads, .kv_heads = heads, .seqlen_q = seqlen, .seqlen_k = seqlen, .causal = true});
        return allocated_by([&] { cpu::backward(c.backward(), cpu::usable_simds().front(), 2); });
      },
      2 * cpu::gradient_scratch_bytes(64, 64), 2 * sizeof(float));
  return right ? 0 : 1;
}
