// What the consumers of the 16-bit and of the e4m3 rows of the forward pass have in common.
#pragma once

#include "attention/arguments.hpp"
#include "attention/config.hpp"
#include "attention/online_softmax.hpp"
#include "attention/shared.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// Ping-pong (paper, section 3.1): a warpgroup issues its GEMMs in its turn and hands the turn to the next one, whose
/// GEMMs then run under this one's softmax. The first turn is granted at construction.

template <ForwardConfig config, Turns section>
struct Turn {
  static constexpr bool used = config.turns == section;
  static constexpr int last = config.consumer_warpgroups() - 1;
  const int warpgroup;

  HOPPER_FUNCTION explicit Turn(int warpgroup_) : warpgroup(warpgroup_) {
    if (warpgroup == last) pass();
  }
  HOPPER_FUNCTION void take() const {
    if constexpr (used) {
      Shared<config>::turn(warpgroup).sync();
    }
  }
  HOPPER_FUNCTION void pass() const {
    if constexpr (used) {
      Shared<config>::turn(warpgroup == last ? 0 : warpgroup + 1).arrive();
    }
  }
  /// The last grant finds no taker; collect it, so that no barrier is left half full.
  HOPPER_FUNCTION void finish() const {
    if (warpgroup == 0) take();
  }
};

/// visible_word() of this thread's keys of a block that begins at first_key.
HOPPER_FUNCTION std::uint32_t visible_in_block(const ForwardArguments& args, int row, int first_key) {
  const Interval keys = args.mask.visible(row);
  return visible_word({keys.first - first_key, keys.end - first_key}, 2 * (hopper::lane() % 4));
}

/// sign * S, and -inf where the row does not see the key. Row r of the thread is first_row + 8 r; the block begins at
/// first_key.
template <int columns>
HOPPER_FUNCTION void apply_mask(hopper::Accumulator<columns>& s, const ForwardArguments& args, int first_row,
                                int first_key) {
  if (args.scale.sign != 1.0f) {
    HOPPER_UNROLL
    for (int i = 0; i < columns / 2; ++i) s.value[i] *= args.scale.sign;
  }
  HOPPER_UNROLL
  for (int r = 0; r < 2; ++r) {
    const std::uint32_t word = visible_in_block(args, first_row + 8 * r, first_key);
    HOPPER_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      HOPPER_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& x = s.value[4 * j + 2 * r + e];
        x = (word >> (2 * j + e)) & 1 ? x : -__builtin_inff();
      }
    }
  }
}

/// The same of a sum in f16, with the thread's two neighbouring keys in a register.
template <int columns>
HOPPER_FUNCTION void apply_mask(hopper::HalfAccumulator<columns>& s, const ForwardArguments& args, int first_row,
                                int first_key) {
  constexpr std::uint32_t low = 0xffffu, minus_infinity = 0xfc00u;
  if (args.scale.sign != 1.0f) {
    const std::uint32_t sign = hopper::pack2<hopper::Element::f16>(args.scale.sign, args.scale.sign);
    HOPPER_UNROLL
    for (int i = 0; i < columns / 4; ++i) s.value[i] = hopper::pair_fma(s.value[i], sign, 0);
  }
  HOPPER_UNROLL
  for (int r = 0; r < 2; ++r) {
    const std::uint32_t word = visible_in_block(args, first_row + 8 * r, first_key);
    HOPPER_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      std::uint32_t& x = s.value[2 * j + r];
      if (((word >> 2 * j) & 1) == 0) x = (x & ~low) | minus_infinity;
      if (((word >> 2 * j) & 2) == 0) x = (x & low) | minus_infinity << 16;
    }
  }
}

HOPPER_FUNCTION void store_lse(const float (&lse)[2], const ForwardArguments& args, const Tile& tile,
                               const auto& row_of) {
  if (args.lse == nullptr || hopper::lane() % 4 != 0) return;
  HOPPER_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = row_of(r);
    if (row < args.mask.seqlen_q)
      args.lse[tile.batch * args.lse_stride[0] + tile.head * args.lse_stride[1] + row * args.lse_stride[2]] = lse[r];
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
