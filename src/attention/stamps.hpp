// Times of a CTA's roles on the real machine, for pictures (fa3 trace --device cuda). Only a row built with
// config.trace records them; in all others this is nothing.
#pragma once

#include <cstdint>

#include "hopper/hopper.hpp"

namespace fa3::attention {

enum class Mark : std::int32_t {
  turn_wanted,
  turn_taken,
  s_issued,
  s_ready,
  softmax_begun,
  softmax_done,
  o_ready,
  load_k,
  load_v
};

struct Stamp {
  std::uint64_t clock;  // cycles of the SM
  Mark mark;
  std::int32_t block;
};

/// Room for one role's stamps; the rest is dropped.
inline constexpr int stamps_per_role = 4096;

inline namespace HOPPER_BACKEND {

/// One per role (0: producer, 1..: consumer warpgroups); `recorder` is true in the one thread that writes.
template <bool enabled>
class Stamps {
 public:
  HOPPER_FUNCTION Stamps(Stamp* stamps, int role, bool recorder) {
    if (stamps != nullptr && hopper::cta() == 0 && recorder) {
      next_ = stamps + role * stamps_per_role;
      end_ = next_ + stamps_per_role;
    }
  }
  HOPPER_FUNCTION void operator()(Mark mark, int block) {
    if (next_ != end_) *next_++ = {hopper::clock(), mark, block};
  }

 private:
  Stamp* next_ = nullptr;
  Stamp* end_ = nullptr;
};

template <>
class Stamps<false> {
 public:
  HOPPER_FUNCTION Stamps(Stamp*, int, bool) {}
  HOPPER_FUNCTION void operator()(Mark, int) {}
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
