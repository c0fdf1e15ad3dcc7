// Shows that the working memory of the CPU backend does not grow with seqlen: counts what forward() allocates.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "attention_case.hpp"
#include "cpu/forward.hpp"

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
  const auto bytes_of = [](std::int64_t seqlen) {
    const test::AttentionCase c({.heads = 2, .kv_heads = 2, .seqlen_q = seqlen, .seqlen_k = seqlen, .causal = true});
    const std::size_t before = allocated;
    cpu::forward(c.problem, cpu::usable_simds().front(), 2);
    return allocated - before;
  };
  cpu::usable_simds();  // the list is made once and kept
  const std::size_t small = bytes_of(128), large = bytes_of(2048), scratch = 2 * cpu::scratch_bytes(64, 64);
  std::printf("allocated with 2 threads: %zu bytes at seqlen 128, %zu at seqlen 2048; scratch alone %zu\n", small,
              large, scratch);
  if (small != large || large < scratch || large > scratch + 4096) {
    std::puts("FAILED: expected the scratch memory, a little for the threads, and nothing that depends on seqlen");
    return 1;
  }
}
