// What the consumers of all rows of the backward pass have in common.
#pragma once

#include "attention/backward_arguments.hpp"
#include "attention/backward_config.hpp"
#include "attention/backward_shared.hpp"
#include "attention/consumer.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// Calls `work` for every tile of keys of the CTA, when its K and V are there; not the warpgroup of dQ, which reads no
/// V.
template <BackwardConfig config, class Work>
HOPPER_FUNCTION void for_each_tile(BackwardShared<config>& shared, const Work& work) {
  for (int tile_phase = 0;;) {
    shared.k_full.wait(tile_phase);
    if (hopper::load_shared(shared.tile.first_key) < 0) return;
    shared.v_full.wait(tile_phase);
    work();
    tile_phase = hopper::load_shared(shared.tile.phase) ^ 1;
    release(shared.kv_empty);
  }
}

/// What a thread needs of a block's statistics: those of the two query rows that are its columns 8 j + {0, 1}.
struct Pair {
  float value[2];
};
template <int rows>
HOPPER_FUNCTION Pair pair_of(const float (&of_row)[rows], int j) {
  return hopper::load_shared(*reinterpret_cast<const Pair*>(of_row + 8 * j + 2 * (hopper::lane() % 4)));
}

/// Which rows of a block see the key, of those that are this thread's columns; the block's rows begin at first_row.
HOPPER_FUNCTION std::uint32_t seeing_word(const Mask& mask, int key, int first_row) {
  const Interval rows = mask.seen_by(key);
  return visible_word({rows.first - first_row, rows.end - first_row}, 2 * (hopper::lane() % 4));
}

/// 0 where the row does not see the key, whatever stood there, in every accumulator: in columns [begin, end) of
/// the block, whose rows begin at first_row. Key r of the thread is first_key + 8 r.
template <int begin, int end, class... Accumulators>
HOPPER_FUNCTION void hide(const Mask& mask, int first_key, int first_row, Accumulators&... all) {
  HOPPER_UNROLL
  for (int r = 0; r < 2; ++r) {
    const std::uint32_t word = seeing_word(mask, first_key + 8 * r, first_row + begin);
    HOPPER_UNROLL
    for (int j = 0; j < (end - begin) / 8; ++j) {
      HOPPER_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int i = begin / 2 + 4 * j + 2 * r + e;
        const bool visible = (word >> (2 * j + e)) & 1;
        ((all.value[i] = visible ? all.value[i] : 0.0f), ...);
      }
    }
  }
}

/// Columns [begin, end) in 16 bits.
template <hopper::Element element, int begin, int end, int columns>
HOPPER_FUNCTION void pack(hopper::OperandA<columns>& to, const hopper::Accumulator<columns>& from) {
  HOPPER_UNROLL
  for (int column = begin; column < end; column += 16) {
    std::uint32_t fragment[4];
    pack16<element>(fragment, from, column);
    HOPPER_UNROLL
    for (int i = 0; i < 4; ++i) to.value[column / 4 + i] = fragment[i];
  }
}

/// The buffer before this one in its ring.
template <int length>
HOPPER_FUNCTION Cursor<length> before(Cursor<length> at) {
  if (at.stage == 0) return {length - 1, at.phase ^ 1};
  return {at.stage - 1, at.phase};
}

/// A query head of the group and a block of its rows. All roles visit the heads one after the other, the blocks of each
/// from the last to the first, so that tiles of a head that begin together go through the same rows.
struct Visit {
  int block;
  int heads;  // left, this one included

  HOPPER_FUNCTION static Visit first(Interval blocks, int group) { return {blocks.end - 1, group}; }
  HOPPER_FUNCTION bool is_first(Interval blocks, int group) const { return block == blocks.end - 1 && heads == group; }
  /// False: there is none.
  HOPPER_FUNCTION bool to_next(Interval blocks) {
    if (block-- > blocks.first) return true;
    block = blocks.end - 1;
    return --heads > 0;
  }
  HOPPER_FUNCTION Visit before(Interval blocks) const {
    if (block + 1 < blocks.end) return {block + 1, heads};
    return {blocks.first, heads + 1};
  }
};

/// [B10] Adding a part of dQ to f32 numbers in global memory, to which all tiles add. Deterministic: in the order of
/// their keys, a warp's share at a time.
///
/// Why that ends: a tile waits for tiles with earlier keys of its head, which have lower items, and every item has a
/// CTA of its own (so no sm_margin), which start in the order of their index. So the earliest tile that has not ended
/// waits for nobody. Why it is short: a head's tiles visit the same blocks in the same order, so that a tile which
/// started later arrives later, and few of them run at once (backward_plan.cpp).
template <BackwardConfig config>
class DqSum {
 public:
  static constexpr DqLayout layout = dq_layout(config);

  HOPPER_FUNCTION DqSum(const BackwardArguments& args, int part) : args_(args), part_(part) {}

  /// Waits until all tiles of earlier keys have added to this; they all see the rows that the tile sees.
  HOPPER_FUNCTION void take_turn(const auto& tile, Visit visit) const {
    if constexpr (config.deterministic) {
      const unsigned& count = *turn(tile, visit);
      if (hopper::elect_one()) hopper::wait_for_count(count, unsigned(tile.first_key / config.tile_kv));
      hopper::warp_sync();
    }
  }
  /// The part's columns from `column` on.
  template <int columns>
  HOPPER_FUNCTION void add(const auto& tile, Visit visit, const hopper::Accumulator<columns>& dq, int column) const {
    float* const place = share_of_warp(tile, visit) + 16 * column + 4 * hopper::lane();
    HOPPER_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      const float four[4] = {dq.value[4 * j], dq.value[4 * j + 1], dq.value[4 * j + 2], dq.value[4 * j + 3]};
      hopper::add_to_global(place + 128 * j, four);
    }
  }
  /// The whole part by way of the warp's `staged`: the warp goes on at once.
  HOPPER_FUNCTION void add_staged(const auto& tile, Visit visit, const hopper::Accumulator<layout.part_columns>& dq,
                                  DqShare<config>& staged) const {
    float* const to = share_of_warp(tile, visit);
    if (hopper::lane() == 0) hopper::store_wait_read<0>();
    hopper::warp_sync();
    HOPPER_UNROLL
    for (int j = 0; j < layout.part_columns / 8; ++j)
      hopper::store_shared(staged.four[32 * j + hopper::lane()],
                           {dq.value[4 * j], dq.value[4 * j + 1], dq.value[4 * j + 2], dq.value[4 * j + 3]});
    hopper::fence_async_shared();
    hopper::warp_sync();
    if (hopper::lane() == 0) {
      hopper::add_floats(to, staged.four[0].value, sizeof(staged));
      hopper::store_commit();
    }
  }
  /// After add(). It waits for the numbers to arrive, so rather call it when they have had time.
  HOPPER_FUNCTION void pass_turn(const auto& tile, Visit visit) const {
    if constexpr (config.deterministic) {
      unsigned& count = *turn(tile, visit);
      hopper::warp_sync();
      if (hopper::lane() == 0) {
        if constexpr (!config.wide()) hopper::store_wait<0>();
        hopper::raise_count(count);
      }
    }
  }

 private:
  // Both by the whole warp: warp_of_warpgroup().
  HOPPER_FUNCTION float* share_of_warp(const auto& tile, Visit visit) const {
    return args_.dq + std::int64_t(block_of(tile, visit)) * layout.block_floats() +
           (4 * part_ + hopper::warp_of_warpgroup()) * (16 * layout.part_columns);
  }
  /// Counted through all sequences.
  HOPPER_FUNCTION int block_of(const auto& tile, Visit visit) const {
    return (tile.batch * args_.heads + (tile.kv_head + 1) * args_.group - visit.heads) * args_.blocks + visit.block;
  }
  /// How many tiles have added to what this warp adds to.
  HOPPER_FUNCTION unsigned* turn(const auto& tile, Visit visit) const {
    return args_.turns + (std::int64_t(block_of(tile, visit)) * layout.parts + part_) * 4 + hopper::warp_of_warpgroup();
  }

  const BackwardArguments& args_;
  const int part_;
};

/// [B12] The warp's 16 keys of columns [first_column, ..) of a gradient in 16 bits to global memory, staged over the
/// same keys and columns of `over`.
template <hopper::Element element, int rows, int all, int columns>
HOPPER_FUNCTION void store_gradient(hopper::SharedTile<rows, all>& over, int warp_key, int first_column,
                                    const hopper::Accumulator<columns>& gradient, const hopper::TensorMap& map,
                                    const auto& tile) {
  auto& staged = hopper::panels_of<columns>(over, first_column);
  stage_rows<element>(staged, warp_key, gradient);
  if (hopper::lane() == 0) {
    hopper::store_rows(map, {first_column, tile.first_key + warp_key, tile.kv_head, tile.batch}, staged, warp_key);
    hopper::store_commit();
  }
}

template <int columns>
HOPPER_FUNCTION void scale_all(hopper::Accumulator<columns>& gradient, float factor) {
  HOPPER_UNROLL
  for (int i = 0; i < columns / 2; ++i) gradient.value[i] *= factor;
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
