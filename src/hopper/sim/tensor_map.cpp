#include "hopper/sim/tensor_map.hpp"

#include <cstring>
#include <string>

#include "error.hpp"

namespace fa3::simulator {

hopper::TensorMap encode(const hopper::TensorMapSpec& spec) {
  const auto refuse = [&](const std::string& why) {
    throw Error(FA3_INVALID_ARGUMENT, std::string("tensor map of ") + spec.name + ": " + why);
  };
  if (reinterpret_cast<std::uintptr_t>(spec.data) % 16 != 0) refuse("the base address is not 16-byte aligned");
  for (int i = 0; i < 4; ++i)
    if (spec.extent[i] == 0 || spec.extent[i] > (std::uint64_t(1) << 32))
      refuse("extent " + std::to_string(i) + " is " + std::to_string(spec.extent[i]) + "; it must be from 1 to 2^32");
  for (int i = 0; i < 3; ++i)
    if (spec.stride_bytes[i] % 16 != 0 || spec.stride_bytes[i] >= (std::uint64_t(1) << 40))
      refuse("stride " + std::to_string(i) + " is " + std::to_string(spec.stride_bytes[i]) +
             " bytes; it must be a multiple of 16 below 2^40");
  if (spec.swizzle_bytes != 32 && spec.swizzle_bytes != 64 && spec.swizzle_bytes != 128)
    refuse("the swizzle is " + std::to_string(spec.swizzle_bytes) + " bytes; it must be 32, 64 or 128");
  if (spec.box_features == 0 || spec.box_features * 2 > std::uint32_t(spec.swizzle_bytes))
    refuse("a box row has " + std::to_string(spec.box_features * 2) + " bytes, more than the swizzle's " +
           std::to_string(spec.swizzle_bytes));
  if (spec.box_features * 2 % 16 != 0) refuse("a box row must be a multiple of 16 bytes");
  if (spec.box_rows == 0 || spec.box_rows > 256)
    refuse("a box has " + std::to_string(spec.box_rows) + " rows; allowed are 1 to 256");
  hopper::TensorMap map{};
  static_assert(sizeof(spec) <= sizeof(map.opaque));
  std::memcpy(map.opaque, &spec, sizeof(spec));
  return map;
}

hopper::TensorMapSpec decode(const hopper::TensorMap& map) {
  hopper::TensorMapSpec spec;
  std::memcpy(&spec, map.opaque, sizeof(spec));
  return spec;
}

}  // namespace fa3::simulator
