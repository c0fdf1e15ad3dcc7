#pragma once

namespace fa3::hopper::inline device {

template <class T>
__device__ __forceinline__ void store_shared(T& to, const T& value) {
  to = value;
}

template <class T>
__device__ __forceinline__ T load_shared(const T& from) {
  return from;
}

}  // namespace fa3::hopper::inline device
