#pragma once

#include "hopper/sim/cta.hpp"

namespace fa3::hopper::inline sim {

inline int lane() { return simulator::Cta::current().thread() % warp_threads; }
inline int warp_of_warpgroup() { return simulator::Cta::current().thread() / warp_threads % 4; }
inline int warpgroup() { return simulator::Cta::current().thread() / warpgroup_threads; }
inline int cta() { return simulator::Cta::current().index(); }
inline int cta_count() { return simulator::Cta::current().count(); }
inline std::uint64_t clock() { return simulator::Cta::current().clock(); }
inline bool elect_one() { return simulator::Cta::current().elect_one(); }
inline void cta_sync() { simulator::Cta::current().sync_cta(); }
inline void warp_sync() { simulator::Cta::current().sync_warp(); }

}  // namespace fa3::hopper::inline sim
