#include "cpu/simd.hpp"

#include <string>
#include <vector>

namespace fa3::cpu {

// Defined by cpu/attend.hpp and cpu/differentiate.hpp, one compilation each.
namespace avx512 {
void attend(const KeyBlock& block);
void dot_rows(const float* a, const float* b, int rows, int width, float* products, float* dots);
void differentiate_queries(const GradientBlock& block);
void differentiate_keys(const GradientBlock& block);
}  // namespace avx512
namespace avx2 {
void attend(const KeyBlock& block);
void dot_rows(const float* a, const float* b, int rows, int width, float* products, float* dots);
void differentiate_queries(const GradientBlock& block);
void differentiate_keys(const GradientBlock& block);
}  // namespace avx2
namespace sse2 {
void attend(const KeyBlock& block);
void dot_rows(const float* a, const float* b, int rows, int width, float* products, float* dots);
void differentiate_queries(const GradientBlock& block);
void differentiate_keys(const GradientBlock& block);
}  // namespace sse2
namespace neon64 {
void attend(const KeyBlock& block);
void dot_rows(const float* a, const float* b, int rows, int width, float* products, float* dots);
void differentiate_queries(const GradientBlock& block);
void differentiate_keys(const GradientBlock& block);
}  // namespace neon64

namespace {

std::vector<Simd> find_usable_simds() {
  std::vector<Simd> usable;
#if defined(FA3_SIMD_avx512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) {
    usable.push_back(
        {"avx512", avx512::dot_rows, avx512::attend, avx512::differentiate_queries, avx512::differentiate_keys});
  }
#endif
#if defined(FA3_SIMD_avx2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    usable.push_back({"avx2", avx2::dot_rows, avx2::attend, avx2::differentiate_queries, avx2::differentiate_keys});
#endif
#if defined(FA3_SIMD_sse2)
  usable.push_back({"sse2", sse2::dot_rows, sse2::attend, sse2::differentiate_queries, sse2::differentiate_keys});
#endif
#if defined(FA3_SIMD_neon64)
  usable.push_back(
      {"neon64", neon64::dot_rows, neon64::attend, neon64::differentiate_queries, neon64::differentiate_keys});
#endif
  return usable;
}

}  // namespace

std::span<const Simd> usable_simds() {
  static const std::vector<Simd> usable = find_usable_simds();
  return usable;
}

const char* simd_name() { return usable_simds().front().name; }

const char* kernel_name() {
  static const std::string& name = *new std::string(std::string("cpu_") + simd_name());
  return name.c_str();
}

}  // namespace fa3::cpu
