// Which body of the layer this translation unit is compiled against. The headers of this folder declare the machine's
// mechanisms, one each, document them, and hold what is the same everywhere; the body's folder implements the rest:
// device/ in PTX, for nvcc; sim/ on a simulated cluster, for every other compiler. Kernel source (src/attention) opens
// the same inline namespace and contains no CUDA keyword, so one binary may hold both.
#pragma once

#if defined(__CUDACC__)
#define HOPPER_BACKEND device
#define HOPPER_FUNCTION __device__ __forceinline__
#define HOPPER_UNROLL _Pragma("unroll")
#define HOPPER_NO_UNROLL _Pragma("unroll 1")
#else
#define HOPPER_BACKEND sim
#define HOPPER_FUNCTION inline
#define HOPPER_UNROLL
#define HOPPER_NO_UNROLL
#endif

// clang-format off
#define HOPPER_STRING(text) #text
#define HOPPER_PATH(folder, file) HOPPER_STRING(hopper/folder/file)
#define HOPPER_EXPAND(folder, file) HOPPER_PATH(folder, file)
// #include HOPPER_BODY(tma.hpp): the body's part of a header.
#define HOPPER_BODY(file) HOPPER_EXPAND(HOPPER_BACKEND, file)
// clang-format on
