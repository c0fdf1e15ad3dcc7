// Arithmetic of the special-function unit, reductions and exchange among the four threads that share a row, or among
// the lanes of a warp, conversion to 16 and 8 bits.
#pragma once

#include <cstdint>

#include "hopper/backend.hpp"
#include "hopper/element.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// 2^x, relative error 2^-22, exp2(-inf) = 0; a result below the normal numbers may be 0. PTX: ex2.approx.ftz.f32.
HOPPER_FUNCTION float exp2(float x);
/// log2(x), absolute error 2^-22 where 0.5 < x < 2, else relative error 2^-22; a subnormal x may count as 0. PTX:
/// lg2.approx.ftz.f32.
HOPPER_FUNCTION float log2(float x);
/// 1 / x, relative error 2^-23; of 0 infinity, of a subnormal x perhaps too. PTX: rcp.approx.ftz.f32.
HOPPER_FUNCTION float reciprocal(float x);
/// a * b + c, rounded once. PTX: fma.rn.f32.
HOPPER_FUNCTION float fma(float a, float b, float c);
/// Maximum that ignores a NaN operand. PTX: max.f32.
HOPPER_FUNCTION float maximum(float a, float b);
/// The largest of three numbers of which `a` is not negative. A NaN without sign is larger than any number, one with a
/// sign smaller. One instruction (VIMNMX3), because numbers that are not negative compare as integers do. PTX: max.s32,
/// twice.
HOPPER_FUNCTION float maximum_from_0(float a, float b, float c);
/// Whether x holds in any lane of the warp; by the whole warp. PTX: vote.sync.any.
HOPPER_FUNCTION bool warp_any(bool x);
/// Over the four threads of a quad (lanes 4i..4i+3), which hold one accumulator row; all four get the result.
HOPPER_FUNCTION float quad_max(float x);
HOPPER_FUNCTION float quad_sum(float x);
/// What lane ^ 1 passes; by the whole quad. PTX: shfl.sync.bfly.
HOPPER_FUNCTION std::uint32_t from_neighbour(std::uint32_t x);
/// What lane ^ mask passes, mask 1..31; by the whole warp. PTX: shfl.sync.bfly.
HOPPER_FUNCTION float from_lane_xor(float x, int mask);
/// Over the warp, all of which gets the result. PTX: redux.sync.max.u32.
HOPPER_FUNCTION std::uint32_t warp_max(std::uint32_t x);
/// Two elements rounded to nearest even; `low` in bits 0-15. PTX: cvt.rn.{f16x2,bf16x2}.f32.
template <Element element>
HOPPER_FUNCTION std::uint32_t pack2(float low, float high);
/// The inverse: both elements of a pair, exactly.
template <Element element>
HOPPER_FUNCTION void unpack2(std::uint32_t pair, float& low, float& high);
/// Four e4m3 rounded to nearest even, above 448 (also infinity) 448; `a` in bits 0-7. PTX:
/// cvt.rn.satfinite.e4m3x2.f32.
HOPPER_FUNCTION std::uint32_t pack4_e4m3(float a, float b, float c, float d);
/// Pairs of f16, as pack2<Element::f16> gives them: a * b + c and a + b, rounded to nearest even; the maximum, which
/// ignores a NaN operand; x within [low, high], or NaN; 2^x, relative error 2^-9.9, of -inf 0. A NaN is 0x7fff. PTX:
/// fma.rn.f16x2, add.rn.f16x2, max.f16x2, {max,min}.NaN.f16x2, ex2.approx.f16.
HOPPER_FUNCTION std::uint32_t pair_fma(std::uint32_t a, std::uint32_t b, std::uint32_t c);
HOPPER_FUNCTION std::uint32_t pair_sum(std::uint32_t a, std::uint32_t b);
HOPPER_FUNCTION std::uint32_t pair_maximum(std::uint32_t a, std::uint32_t b);
HOPPER_FUNCTION std::uint32_t pair_clamp(std::uint32_t x, std::uint32_t low, std::uint32_t high);
HOPPER_FUNCTION std::uint32_t pair_exp2(std::uint32_t x);
/// As pack4_e4m3 above, of two pairs; a's in the low bits. PTX: cvt.rn.satfinite.e4m3x2.f16x2.
HOPPER_FUNCTION std::uint32_t pack4_e4m3(std::uint32_t a, std::uint32_t b);
/// Byte i of the result is the one of `high:low` that digit i (hexadecimal, from the right) of `selector` names. PTX:
/// prmt.b32.
HOPPER_FUNCTION std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector);
/// Old value; device-wide atomic.
HOPPER_FUNCTION unsigned atomic_add(unsigned* address, unsigned value);
HOPPER_FUNCTION unsigned atomic_max(unsigned* address, unsigned value);

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(math.hpp)
