#pragma once

namespace fa3::hopper::inline device {

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ int cluster_size() {
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

__device__ __forceinline__ int cluster() {
  int index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

__device__ __forceinline__ int cluster_count() {
  int count;
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

__device__ __forceinline__ void send_word(std::uint32_t& to, std::uint32_t value, Mbarrier& barrier, int rank) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   remote_address(shared_address(&to), rank)),
               "r"(value), "r"(remote_address(shared_address(&barrier), rank))
               : "memory");
}

__device__ __forceinline__ void send_bytes(void* to, const void* from, int bytes, Mbarrier& barrier, int rank) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   remote_address(shared_address(to), rank)),
               "r"(shared_address(from)), "r"(bytes), "r"(remote_address(shared_address(&barrier), rank))
               : "memory");
}

}  // namespace fa3::hopper::inline device
