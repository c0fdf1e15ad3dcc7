#pragma once

namespace fa3::hopper::inline device {

__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

__device__ __forceinline__ float maximum(float a, float b) { return fmaxf(a, b); }

__device__ __forceinline__ float maximum_from_0(float a, float b, float c) {
  return __int_as_float(max(max(__float_as_int(a), __float_as_int(b)), __float_as_int(c)));
}

__device__ __forceinline__ bool warp_any(bool x) { return __any_sync(0xffffffffu, x); }

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ __forceinline__ std::uint32_t from_neighbour(std::uint32_t x) { return __shfl_xor_sync(0xffffffffu, x, 1); }

__device__ __forceinline__ float from_lane_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

__device__ __forceinline__ std::uint32_t warp_max(std::uint32_t x) { return __reduce_max_sync(0xffffffffu, x); }

template <Element element>
__device__ __forceinline__ std::uint32_t pack2(float low, float high) {
  std::uint32_t packed;
  if constexpr (element == Element::f16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

template <Element element>
__device__ __forceinline__ void unpack2(std::uint32_t pair, float& low, float& high) {
  if constexpr (element == Element::f16) {
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}\n"
        : "=f"(low), "=f"(high)
        : "r"(pair));
  } else {
    // Why not in C++: nvcc 13.0 would do it long before it is needed, where backward rows have no registers to spare.
    asm("{\n.reg .b32 l, h;\nshl.b32 l, %2, 16;\nand.b32 h, %2, 0xffff0000;\nmov.b32 %0, l;\nmov.b32 %1, h;\n}\n"
        : "=f"(low), "=f"(high)
        : "r"(pair));
  }
}

__device__ __forceinline__ std::uint32_t pack4_e4m3(float a, float b, float c, float d) {
  std::uint32_t packed;
  asm("{\n.reg .b16 l, h;\ncvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n"
      "mov.b32 %0, {l, h};\n}\n"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

__device__ __forceinline__ std::uint32_t pair_fma(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}

__device__ __forceinline__ std::uint32_t pair_sum(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

__device__ __forceinline__ std::uint32_t pair_maximum(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

__device__ __forceinline__ std::uint32_t pair_clamp(std::uint32_t x, std::uint32_t low, std::uint32_t high) {
  std::uint32_t y;
  asm("max.NaN.f16x2 %0, %1, %2;\nmin.NaN.f16x2 %0, %0, %3;" : "=&r"(y) : "r"(x), "r"(low), "r"(high));
  return y;
}

__device__ __forceinline__ std::uint32_t pair_exp2(std::uint32_t x) {
  std::uint32_t y;
  // Why not ex2.approx.f16x2: ptxas makes two instructions of it, too, and puts the halves together once for every use.
  asm("{\n.reg .b16 l, h, a, b;\n.reg .b32 c, d;\nmov.b32 {l, h}, %1;\n"
      "ex2.approx.f16 a, l;\nex2.approx.f16 b, h;\n"
      "cvt.u32.u16 c, a;\ncvt.u32.u16 d, b;\nprmt.b32 %0, c, d, 0x5410;\n}\n"
      : "=r"(y)
      : "r"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t pack4_e4m3(std::uint32_t a, std::uint32_t b) {
  std::uint32_t packed;
  asm("{\n.reg .b16 l, h;\ncvt.rn.satfinite.e4m3x2.f16x2 l, %1;\ncvt.rn.satfinite.e4m3x2.f16x2 h, %2;\n"
      "mov.b32 %0, {l, h};\n}\n"
      : "=r"(packed)
      : "r"(a), "r"(b));
  return packed;
}

__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  return __byte_perm(low, high, selector);
}

__device__ __forceinline__ unsigned atomic_add(unsigned* address, unsigned value) { return atomicAdd(address, value); }
__device__ __forceinline__ unsigned atomic_max(unsigned* address, unsigned value) { return atomicMax(address, value); }

}  // namespace fa3::hopper::inline device
