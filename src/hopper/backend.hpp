// Which body of the layer this translation unit is compiled against. The headers of this folder declare the machine's
// mechanisms, one each, and document them; device/ implements them in PTX. A second body under another name needs nothing but
// its own folder: kernel source (src/attention) opens the same inline namespace and contains no CUDA keyword.
#pragma once

#if defined(__CUDACC__)
#define HOPPER_BACKEND device
#define HOPPER_FUNCTION __device__ __forceinline__
#define HOPPER_UNROLL _Pragma("unroll")
#define HOPPER_NO_UNROLL _Pragma("unroll 1")
#else
#error "fa3/hopper: this compiler has no body of the layer; compile with nvcc"
#endif
