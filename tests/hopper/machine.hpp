// Tests of src/hopper are kernels written against the layer, with their host side, in the *_test.hpp of this folder;
// they are compiled once for the simulator (run_sim.cpp) and once for the GPU (run_gpu.cu). Both sides offer, in
// fa3::hopper_test:
//
//   Buffer<T>          an array the kernel can reach: Buffer(std::vector<T>) or Buffer(count, fill), data(), read()
//   encode(spec)       hopper::TensorMap
//   MachineTest        fixture; launch<Kernel>(arguments, ctas, cluster_ctas) runs a kernel to its end
//   modes(), ModeName  the instances of a test: completion policies and seeds; one on the GPU
//
// A kernel is a type with `threads`, `Arguments` (trivially copyable), `Shared` and `static void run(Shared&, const
// Arguments&)`.
#pragma once

#include <gtest/gtest.h>

#include "hopper/hopper.hpp"

#if defined(__CUDACC__)
#include "machine_gpu.cuh"
#else
#include "machine_sim.hpp"
#endif

namespace fa3::hopper_test {

using hopper::Element;

/// What one thread copies at a time.
struct alignas(16) Chunk {
  std::uint32_t word[4];
};

/// Index of this thread in its CTA; for whole warps.
HOPPER_FUNCTION int rank() { return 128 * hopper::warpgroup() + 32 * hopper::warp_of_warpgroup() + hopper::lane(); }

/// By `threads` threads of consecutive rank from 0: `bytes` of global memory to a shared object, or back.
HOPPER_FUNCTION void copy_in(void* shared, const Chunk* from, int bytes, int threads) {
  for (int i = rank(); i < bytes / 16; i += threads) hopper::store_shared(static_cast<Chunk*>(shared)[i], from[i]);
}
HOPPER_FUNCTION void copy_out(Chunk* to, const void* shared, int bytes, int threads) {
  for (int i = rank(); i < bytes / 16; i += threads) to[i] = hopper::load_shared(static_cast<const Chunk*>(shared)[i]);
}

}  // namespace fa3::hopper_test
