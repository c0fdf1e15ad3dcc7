// The instruction sets of this build.
#pragma once

#include <span>

#include "cpu/gradient_block.hpp"
#include "cpu/key_block.hpp"

namespace fa3::cpu {

/// An instruction set: its name and its vector kernels.
struct Simd {
  const char* name;
  // dots[r] = the product of a[r][width] and column r of b[width][tile_k], r < rows <= tile_k; products[rows][tile_k]
  // may hold anything. Rounded as the kernels below round dO V: where a row of O is one of V, D and dP cancel exactly.
  void (*dot_rows)(const float* a, const float* b, int rows, int width, float* products, float* dots);
  void (*attend)(const KeyBlock& block);                      // lets a tile attend to one more block of keys
  void (*differentiate_queries)(const GradientBlock& block);  // adds what one block of keys gives to dQ of a tile
  void (*differentiate_keys)(const GradientBlock& block);  // adds what one block of queries gives to dK, dV of a tile
};

/// The instruction sets of this build that this machine can run, widest first; never empty.
std::span<const Simd> usable_simds();

/// Name of the instruction set that is used on this machine, for example "avx2".
const char* simd_name();

/// "cpu_" and that name; never freed.
const char* kernel_name();

}  // namespace fa3::cpu
