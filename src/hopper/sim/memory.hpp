#pragma once

#include "hopper/sim/machine.hpp"

namespace fa3::hopper::inline sim {

template <class T>
inline void store_shared(T& to, const T& value) {
  simulator::Cluster::current().store_ordinary(&to, &value, sizeof(T));
}

template <class T>
inline T load_shared(const T& from) {
  T value;
  simulator::Cluster::current().load_ordinary(&value, &from, sizeof(T));
  return value;
}

}  // namespace fa3::hopper::inline sim
