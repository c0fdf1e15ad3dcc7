#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

template <Element element, int columns>
struct WgmmaSS {
  template <int accumulate, Major b_major = Major::depth, Major a_major = Major::depth>
  static void issue(float (&d)[columns / 2], std::uint64_t a, std::uint64_t b) {
    simulator::Cluster::current().wgmma(element, columns, accumulate != 0, d, false, a, nullptr, b,
                                        b_major == Major::across, a_major == Major::across);
  }
  template <int accumulate>
  requires(element == Element::e4m3) static void issue(std::uint32_t (&d)[columns / 4], std::uint64_t a,
                                                       std::uint64_t b) {
    simulator::Cluster::current().wgmma(element, columns, accumulate != 0, d, true, a, nullptr, b, false, false);
  }
};

template <Element element, int columns>
struct WgmmaRS {
  static void issue(float (&d)[columns / 2], const std::uint32_t* a, std::uint64_t b) {
    simulator::Cluster::current().wgmma(element, columns, true, d, false, 0, a, b, true, false);
  }
};
template <int columns>
struct WgmmaRS<Element::e4m3, columns> {
  template <int accumulate>
  static void issue(float (&d)[columns / 2], const std::uint32_t* a, std::uint64_t b) {
    simulator::Cluster::current().wgmma(Element::e4m3, columns, accumulate != 0, d, false, 0, a, b, false, false);
  }
  template <int accumulate>
  static void issue(std::uint32_t (&d)[columns / 4], const std::uint32_t* a, std::uint64_t b) {
    simulator::Cluster::current().wgmma(Element::e4m3, columns, accumulate != 0, d, true, 0, a, b, false, false);
  }
};

inline void wgmma_fence() { simulator::Cluster::current().wgmma_fence(); }
inline void wgmma_commit() { simulator::Cluster::current().wgmma_commit(); }

template <int pending, class... Accumulators>
inline void wgmma_wait(Accumulators&... readable) {
  simulator::Cluster::current().wgmma_wait(pending);
  (simulator::Cluster::current().wgmma_readable(readable.value, Accumulators::columns, pending), ...);
}

}  // namespace fa3::hopper::inline sim
