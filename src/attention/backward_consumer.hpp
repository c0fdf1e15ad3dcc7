// What the consumers of all rows of the backward pass have in common.
#pragma once

#include "attention/backward_arguments.hpp"
#include "attention/backward_config.hpp"
#include "attention/backward_shared.hpp"
#include "attention/consumer.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// This CTA's place in its cluster.
template <BackwardConfig config>
HOPPER_FUNCTION int rank_of_cta() {
  if constexpr (config.cluster > 1) return hopper::cluster_rank();
  return 0;
}

/// What a thread needs of a block's statistics: those of the query rows that are its columns, of `columns` columns.
template <int columns>
struct OfRows {
  float value[columns / 16][4];

  /// Column 8 j + 2 (t % 4) + e, from the first of these.
  HOPPER_FUNCTION float of(int j, int e) const { return value[j / 2][j % 2 * 2 + e]; }
};
template <int columns, int rows>
HOPPER_FUNCTION OfRows<columns> of_rows(const float (&statistics)[rows], int first_column) {
  struct alignas(16) Four {
    float value[4];
  };
  OfRows<columns> all;
  HOPPER_UNROLL
  for (int i = 0; i < columns / 16; ++i) {
    const Four four = hopper::load_shared(
        *reinterpret_cast<const Four*>(statistics + first_column + 16 * i + 4 * (hopper::lane() % 4)));
    HOPPER_UNROLL
    for (int j = 0; j < 4; ++j) all.value[i][j] = four.value[j];
  }
  return all;
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

/// This thread's warp in its warpgroup, for addresses: unlike warp_of_warpgroup() not known to be uniform, but no
/// shuffle.
HOPPER_FUNCTION int warp_of_thread() { return hopper::thread_of_warpgroup() / hopper::warp_threads; }

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
  /// False: there is none.
  HOPPER_FUNCTION bool to_next(Interval blocks) {
    if (block-- > blocks.first) return true;
    block = blocks.end - 1;
    return --heads > 0;
  }
};

/// Counted through all batch entries.
HOPPER_FUNCTION int kv_sequence(const BackwardArguments& args, const auto& tile) {
  return tile.batch * args.order.heads + tile.kv_head;
}

/// [B10] Adding to dQ, f32 numbers in global memory to which all tiles add. Deterministic: in the order of their keys.
/// In a cluster every CTA adds its part of the dQ of both tiles, which count as one.
///
/// Why that ends: a tile waits for tiles with earlier keys of its head, which have lower items, and CTAs ask for all
/// their items, in rising order. So the earliest item that has not ended is what its CTA is at, and waits for nobody.
/// Why it is short: a head's tiles visit the same blocks in the same order, so that a tile which started later arrives
/// later, and few of them run at once (backward_plan.cpp).
template <BackwardConfig config>
class DqSum {
 public:
  static constexpr DqLayout layout = dq_layout(config);

  HOPPER_FUNCTION DqSum(const BackwardArguments& args, const auto& tile, int part)
      : args_(args),
        end_of_heads_((kv_sequence(args, tile) + 1) * args.group * args.blocks),
        turn_(tile.first_key / config.item_keys()),
        part_(part) {}

  HOPPER_FUNCTION float* place(Visit visit) const {
    return args_.dq + std::int64_t(block_of(visit)) * layout.block_floats() + part_ * layout.part_floats();
  }
  /// Waits until all tiles of earlier keys have added to this; they all see the rows that the tile sees. One thread.
  HOPPER_FUNCTION void take_turn(Visit visit) const {
    if constexpr (config.deterministic) hopper::wait_for_count(count(visit), unsigned(turn_));
  }
  /// After what has been added has arrived. One thread.
  HOPPER_FUNCTION void pass_turn(Visit visit) const {
    if constexpr (config.deterministic) hopper::raise_count(count(visit));
  }

 private:
  /// Counted through all sequences.
  HOPPER_FUNCTION int block_of(Visit visit) const { return end_of_heads_ - visit.heads * args_.blocks + visit.block; }
  HOPPER_FUNCTION unsigned& count(Visit visit) const {
    return args_.turns[std::int64_t(block_of(visit)) * layout.parts + part_];
  }

  const BackwardArguments& args_;
  const int end_of_heads_, turn_, part_;
};

/// An assistant: begin(tile) for every tile that has any visits, and work(sum, visit) for each.
template <BackwardConfig config>
HOPPER_FUNCTION void for_each_visit(BackwardShared<config>& shared, const BackwardArguments& args, int part,
                                    const auto& begin, const auto& work) {
  for (int tile_phase = 0;; tile_phase ^= 1) {
    shared.k_full.wait(tile_phase);
    const auto tile = hopper::load_shared(shared.tile);
    if (tile.first_key < 0) return;
    shared.kv_empty.arrive();
    if (tile.blocks.first == tile.blocks.end) continue;
    begin(tile);
    const DqSum<config> sum(args, tile, part);
    Visit visit = Visit::first(tile.blocks, args.group);
    do {
      work(sum, visit);
    } while (visit.to_next(tile.blocks));
  }
}

/// Who adds, before it adds anything of a tile: the dQ must have been zeroed. As turns (DqSum), that ends: all tiles of
/// the sequence that did it have lower items, and they do it when they begin.
template <BackwardConfig config>
HOPPER_FUNCTION void await_zeros(const BackwardArguments& args, const auto& tile) {
  const int sequence = kv_sequence(args, tile);
  if (sequence >= args.ahead && sequence < args.zeroed_end)
    hopper::wait_for_count(args.zeroed[sequence], unsigned(args.order.row_items * config.cluster));
}

/// Zeroes ahead (BackwardArguments); a warp that has nothing else to do, and waits for nothing but the tile. A tile's
/// share are pieces of 512 bytes.
template <BackwardConfig config>
HOPPER_FUNCTION void zero_ahead(BackwardShared<config>& shared, const BackwardArguments& args) {
  const std::int64_t floats = std::int64_t(args.group) * args.blocks * dq_layout(config).block_floats();
  for (int tile_phase = 0;; tile_phase ^= 1) {
    shared.k_full.wait(tile_phase);
    const auto tile = hopper::load_shared(shared.tile);
    if (tile.first_key < 0) return;
    release(shared.kv_empty);
    const int sequence = kv_sequence(args, tile) + args.ahead;
    if (sequence >= args.zeroed_end) continue;
    FourOfDq* const dq = reinterpret_cast<FourOfDq*>(args.dq + sequence * floats) + hopper::lane();
    const std::int64_t pieces = floats / 128, step = args.order.row_items * config.cluster;
    HOPPER_NO_UNROLL
    for (std::int64_t i = tile.first_key / config.tile_kv; i < pieces; i += step) dq[32 * i] = FourOfDq{};
    hopper::warp_sync();
    if (hopper::lane() == 0) hopper::raise_count(args.zeroed[sequence]);
  }
}

template <int columns>
HOPPER_FUNCTION void scale_all(hopper::Accumulator<columns>& gradient, float factor) {
  HOPPER_UNROLL
  for (int i = 0; i < columns / 2; ++i) gradient.value[i] *= factor;
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
