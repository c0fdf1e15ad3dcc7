#pragma once

namespace fa3::hopper::inline device {

__device__ __forceinline__ void Mbarrier::init(int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void Mbarrier::arrive() {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
}

__device__ __forceinline__ void Mbarrier::arrive_expect_bytes(int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
               "r"(bytes)
               : "memory");
}

// The plain form: with .release.cluster a MEMBAR stands before every arrival.
__device__ __forceinline__ void Mbarrier::arrive_remote(int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote_address(shared_address(this), rank))
               : "memory");
}

__device__ __forceinline__ void Mbarrier::wait(int parity) {
  std::uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(shared_address(this)), "r"(parity)
        : "memory");
  } while (done == 0);
}

}  // namespace fa3::hopper::inline device
