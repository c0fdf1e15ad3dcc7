// Thread block clusters: CTAs that run at the same time and reach each other's shared memory, whose plan they share. A
// launch without clusters is one of clusters of one CTA. PTX ISA, "Cluster of Cooperative Thread Arrays", "mapa",
// "barrier.cluster", "st.async", "cp.async.bulk".
#pragma once

#include <cstdint>

#include "hopper/address.hpp"
#include "hopper/backend.hpp"
#include "hopper/mbarrier.hpp"

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// Index of this CTA in its cluster, and the number of the cluster's CTAs.
HOPPER_FUNCTION int cluster_rank();
HOPPER_FUNCTION int cluster_size();
/// Index of this cluster in the (one-dimensional) grid, and the number of clusters.
HOPPER_FUNCTION int cluster();
HOPPER_FUNCTION int cluster_count();
/// Barrier over all threads of the cluster, by whole warps; orders memory. Once before the first access to a peer,
/// whose barriers must be initialised (and fenced with fence_barrier_init), and once after the last: a CTA that has
/// ended has no shared memory.
HOPPER_FUNCTION void cluster_sync();
/// Starts writing `value` to where `to` is in the plan of the cluster's CTA `rank`; its four bytes count on the barrier
/// at the place of `barrier` there, which must expect them. Who has waited for that barrier reads the value.
HOPPER_FUNCTION void send_word(std::uint32_t& to, std::uint32_t value, Mbarrier& barrier, int rank);
/// Starts copying `bytes` of this CTA's shared memory to where `to` is in the plan of CTA `rank`; one thread, after
/// fence_async_shared() by those who wrote them. They count on the barrier as a sent word does; who has waited for it
/// knows also that they have been read here. `to`, `from` and `bytes` are multiples of 16.
HOPPER_FUNCTION void send_bytes(void* to, const void* from, int bytes, Mbarrier& barrier, int rank);

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(cluster.hpp)
