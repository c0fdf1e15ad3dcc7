#pragma once

namespace fa3::hopper::inline device {

__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map.opaque) : "memory");
}

__device__ __forceinline__ void tma_load(std::uint32_t address, const TensorMap& map, Coordinates at,
                                         Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(address),
      "l"(map.opaque), "r"(at.feature), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast(std::uint32_t address, const TensorMap& map, Coordinates at,
                                                   Mbarrier& barrier, std::uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(address),
      "l"(map.opaque), "r"(at.feature), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(shared_address(&barrier)),
      "h"(ctas)
      : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, Coordinates at, std::uint32_t address) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map.opaque),
      "r"(at.feature), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(address)
      : "memory");
}

__device__ __forceinline__ void tma_reduce_add(const TensorMap& map, Coordinates at, std::uint32_t address) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(
          map.opaque),
      "r"(at.feature), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(address)
      : "memory");
}

__device__ __forceinline__ void load_bytes(void* to, const void* from, int bytes, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}

__device__ __forceinline__ void add_floats(float* to, const float* from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}

__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

template <int pending>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

template <int pending>
__device__ __forceinline__ void store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace fa3::hopper::inline device
