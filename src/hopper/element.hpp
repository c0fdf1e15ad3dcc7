// Element types of the tensor core's 16-bit operands. Plain C++, shared by host code and kernels.
#pragma once

#include <cstdint>

namespace fa3::hopper {

enum class Element : std::uint8_t { f16, bf16 };

}  // namespace fa3::hopper
