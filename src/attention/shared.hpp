// The CTA's shared memory: tiles, barriers, and who does what to each barrier.
#pragma once

#include <type_traits>

#include "attention/config.hpp"
#include "attention/consumer.hpp"
#include "attention/handover.hpp"
#include "attention/tile_order.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// What a turn of V is for those who transpose it.
enum class VTurn : int {
  block,
  last_block,  // of a tile: turns for O follow
  no_block,    // of a tile that has none
  end          // there are no more tiles
};

/// The ledger; without a producer its part is that of a thread of the first consumer warpgroup. A waiter of a "full"
/// barrier passes the cursor's phase; of an "empty" one its inverse, which a fresh barrier grants.
///
///   barrier     arrivals per phase          waiter      meaning
///   q_full      1 + bytes (producer)        consumers   the tile's Q and, of 16 bits, its Tile record have landed
///   q_empty     1 per consumer warp         producer    Q, that record and an O staged over it may be overwritten
///   record_full 1 (producer)                consumers   e4m3: the tile's record has been written
///   k_full      1 + bytes (producer)        consumers   K block of this stage has landed; v_full likewise
///   k_empty     1 per consumer warp of      producer    this stage's K block may be overwritten, in every CTA of the
///               every CTA of the cluster                cluster; v_empty likewise
///   vt_full     1 per transposer warp       consumers   rows that transpose V: this stage's V^T has been written
///   vt_empty    1 per consumer warp         transposers it may be overwritten; in these rows v_full's waiters, and
///                                                       those that arrive on v_empty, are the transposer warps
///   turn[w]     named, two warpgroups       warpgroup w it is w's turn (config.turns says for what)
///   rows[w]     named, warpgroup w          warpgroup w all of w is done with Q, where O is staged over it; has staged
///                                                       its O, where that is in the ring of V^T
///
/// e4m3: k_full has one more arrival, of the producer when it has written the block's scales; TMA has been asked
/// before. A turn of v_full that brings the transposers no block has no bytes. Records have no "empty": that of a tile
/// is overwritten when consumers have released Q of the tile after it, and so are done with its O: the producer has
/// waited for that with a Q before.
/// Output::in_v_ring: after a tile's blocks each warpgroup has a turn of the ring of V^T for its O. "Full" then says
/// that nobody reads the buffer any more, and one thread of the warpgroup makes all arrivals on "empty".
template <ForwardConfig config>
struct Shared {
  static constexpr int consumer_warps = 4 * config.consumer_warpgroups();
  using QTile = hopper::SharedTile<config.tile_q, config.stored_d()>;
  using KTile = hopper::SharedTile<config.tile_kv, config.stored_d()>;
  // V^T of e4m3, pairs of keys; with as many rows as O has columns with their padding.
  using VtTile = hopper::SharedTile<hopper::stored_columns(config.d_v), config.tile_kv / 2>;
  using VTile =
      std::conditional_t<config.v_is_transposed, VtTile, hopper::SharedTile<config.tile_kv, config.stored_d_v()>>;
  using OTile = hopper::SharedTile<config.tile_q, config.d_v>;
  using OOfWarpgroup = hopper::SharedTile<64, config.d_v>;  // Output::in_v_ring
  static constexpr int transposer_warps = 3;
  struct TransposedState {
    hopper::Mbarrier full[config.stages], empty[config.stages];
    VTurn turn[config.stages];  // what comes in this buffer of V
  };
  struct alignas(8) BlockScales {
    float k, v;
  };
  /// What consumers of e4m3 have to know of a tile. It comes before the tile's Q and stays until its O is stored.
  struct Record {
    Item item;
    float q_scale[config.consumer_warpgroups()];  // of the rows of each
  };
  // One for each buffer of Q, one for the tile whose O is stored, one for the tile that comes next.
  static constexpr int records = config.q_buffers + 2;
  struct Records {
    Record of[records];
    hopper::Mbarrier full[records];
  };
  template <int>
  struct Nothing {};  // one type for each member: two empty members of one type may not share an address

  QTile q[config.q_buffers];
  KTile k[config.stages];
  VTile v[config.stages];
  [[no_unique_address]] std::conditional_t<config.output == Output::own_buffer, OTile, Nothing<0>> own_o;
  [[no_unique_address]] std::conditional_t<config.transposes_v(), VtTile[config.stages], Nothing<2>> vt;
  [[no_unique_address]] std::conditional_t<config.transposes_v(), TransposedState, Nothing<3>> vt_state;
  [[no_unique_address]] std::conditional_t<config.fp8(), BlockScales[config.stages], Nothing<4>>
      scales;  // each with its K
  [[no_unique_address]] std::conditional_t<config.fp8(), Records, Nothing<5>> record;
  hopper::Mbarrier q_full[config.q_buffers], q_empty[config.q_buffers];
  hopper::Mbarrier k_full[config.stages], k_empty[config.stages];
  hopper::Mbarrier v_full[config.stages], v_empty[config.stages];
  [[no_unique_address]] std::conditional_t<config.fp8(), Nothing<6>, Tile[config.q_buffers]> tile;  // each with its Q
  [[no_unique_address]] std::conditional_t<(config.cluster > 1), Handover, Nothing<1>> handover;

  /// visit(name, index, object) for every buffer and barrier.
  template <class Visit>
  void for_each_named(Visit&& visit) {
    const auto all = [&](const char* name, auto& array) {
      for (auto& object : array) visit(name, int(&object - array), object);
    };
    all("q", q);
    all("k", k);
    all("v", v);
    if constexpr (config.output == Output::own_buffer) visit("o", 0, own_o);
    if constexpr (config.transposes_v()) {
      all("vt", vt);
      all("vt_full", vt_state.full);
      all("vt_empty", vt_state.empty);
      all("v_turn", vt_state.turn);
    }
    if constexpr (config.fp8()) {
      all("scales", scales);
      all("record", record.of);
      all("record_full", record.full);
    }
    all("q_full", q_full);
    all("q_empty", q_empty);
    all("k_full", k_full);
    all("k_empty", k_empty);
    all("v_full", v_full);
    all("v_empty", v_empty);
    if constexpr (!config.fp8()) all("tile", tile);
    if constexpr (config.cluster > 1) {
      all("item_full", handover.full);
      all("item_empty", handover.empty);
      all("item", handover.item);
    }
  }

  /// By one thread, before the roles split.
  HOPPER_FUNCTION void init_barriers() {
    for (int i = 0; i < config.q_buffers; ++i) {
      q_full[i].init(1);
      q_empty[i].init(consumer_warps);
    }
    for (int i = 0; i < config.stages; ++i) {
      k_full[i].init(config.fp8() ? 2 : 1);
      v_full[i].init(1);
      k_empty[i].init(config.cluster * consumer_warps);
      v_empty[i].init(config.cluster * (config.transposes_v() ? transposer_warps : consumer_warps));
      if constexpr (config.transposes_v()) {
        vt_state.full[i].init(transposer_warps);
        vt_state.empty[i].init(consumer_warps);
      }
    }
    if constexpr (config.fp8()) {
      for (hopper::Mbarrier& full : record.full) full.init(1);
    }
    if constexpr (config.cluster > 1) handover.init_barriers();
    hopper::fence_barrier_init();
  }

  /// Where O of the tile in Q buffer `buffer` is staged.
  HOPPER_FUNCTION OTile& o(int buffer) {
    if constexpr (config.output == Output::over_q) {
      return *reinterpret_cast<OTile*>(q + buffer);
    } else {
      return own_o;
    }
  }

  /// What P V of e4m3 takes, and the barriers between it and the consumers.
  struct VOperand {
    VtTile& tile;
    hopper::Mbarrier &full, &empty;
  };
  HOPPER_FUNCTION VOperand v_operand(int stage) {
    if constexpr (config.transposes_v()) {
      return {vt[stage], vt_state.full[stage], vt_state.empty[stage]};
    } else {
      return {v[stage], v_full[stage], v_empty[stage]};
    }
  }

  HOPPER_FUNCTION OOfWarpgroup& o_in_v_ring(int stage) {
    static_assert(sizeof(OOfWarpgroup) == sizeof(VtTile));
    return reinterpret_cast<OOfWarpgroup&>(v_operand(stage).tile);
  }

  HOPPER_FUNCTION static hopper::NamedBarrier turn(int warpgroup) {
    return {1 + warpgroup, 2 * hopper::warpgroup_threads};
  }
  HOPPER_FUNCTION static hopper::NamedBarrier rows(int warpgroup) {
    return {1 + max_consumer_warpgroups + warpgroup, hopper::warpgroup_threads};
  }
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
