// Element types of the tensor core's operands. Plain C++, shared by host code and kernels.
#pragma once

#include <cstdint>

namespace fa3::hopper {

enum class Element : std::uint8_t { f16, bf16, e4m3 };

/// What TMA and shared memory count in are 16 bits: one element, or two of e4m3.
constexpr int per_16_bits(Element element) { return element == Element::e4m3 ? 2 : 1; }

}  // namespace fa3::hopper
