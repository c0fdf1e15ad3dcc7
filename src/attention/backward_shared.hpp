// The backward kernel's shared memory: tiles, barriers, and who does what to each barrier.
#pragma once

#include <type_traits>

#include "attention/backward_config.hpp"
#include "attention/handover.hpp"
#include "attention/mask.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// A tile: keys [first_key, first_key + tile_kv) of a key/value head. Consumers read it from shared memory
/// whenever they need some of it, and keep their registers for accumulators. In a cluster the tile of rank 1 is behind
/// that of rank 0, maybe beyond the sequence.
template <int key_groups>
struct KeyTile {
  int first_key;  // -1: no more tiles
  int kv_head, batch;
  int phase;                   // of k_full, with which this comes
  Interval blocks;             // of query rows, those that see some of the keys of the cluster's tiles
  Interval whole[key_groups];  // those of which every row sees all of the group's 64 keys
};

/// A warpgroup's part of a block of dQ, which an adder adds to what is in global memory. At the end dV and dK are
/// staged here.
template <BackwardConfig config>
struct alignas(1024) DqPart {
  FourOfDq four[16 * dq_layout(config).part_columns];  // in the order of DqLayout
};

/// The ledger; in wide rows (backward_wide.hpp) "P" stands for the warpgroup that makes P, and so on. A waiter of a
/// "full" barrier passes the cursor's phase; of an "empty" one its inverse, which a fresh barrier grants. dq_full,
/// dq_empty, turn and added have a phase for every block. In a cluster each CTA loads half of Q and dO for both, and
/// q_full and d_o_full expect both halves; Handover's barriers come besides.
///
///   barrier     arrivals per phase          waiter      meaning
///   k_full      1 + bytes (producer)        all others  the tile's K and its KeyTile record have landed, and peer.k
///   v_full      1 + bytes (producer)        consumers   the tile's V has landed
///   kv_empty    1 per consumer warp and     producer    K, V, peer.k and the record are not read any more; wide rows:
///               assistant                               dK and dV, staged over K and V, have left
///   q_full      1 + bytes (producer)        consumers   this stage's Q block and its rows' statistics have landed
///   q_empty     1 per warp of S, dP of      producer    they may be overwritten, in every CTA of the cluster
///               every CTA of the cluster
///   d_o_full    1 + bytes (producer)        consumers   this stage's dO block has landed
///   d_o_empty   the same                    producer    it may be overwritten
///   ds_full     1 per warp of dS            consumers   all of a block's dS has been written; wide rows: dQ, and P at
///                                                       the end of a tile
///   ds_empty    1 per warp of dQ of every   dS          wide rows: it has been read; clusters: and the peer has read
///               CTA of the cluster                      what it has been sent, so that it may be sent the next
///   ds_peer_    1 + bytes per warp of dS    dQ          clusters: all of the peer's dS of a block has come
///   full
///   dq_full[w]  1 per warp of warpgroup w   adder w     all of its part of a block's dQ has been staged
///   dq_empty[w] 1 (adder w)                 w           it has been read
///   turn        1 (taker), 1 (passer)       dQ, taker   wide rows, deterministic: it is the tile's turn to add
///   added       1 per warp of dQ            passer      .. and it has
///   p_full      1 per warp of P             dS          wide rows: all of a block's P has been written
template <BackwardConfig config>
struct BackwardShared {
  static constexpr int consumer_warps = 4 * config.consumer_warpgroups();
  static constexpr int score_warps = 8;  // of S and dP
  static constexpr int dq_warps = 4;     // of dQ, wide rows
  // Beside the producer: adders, or those that keep the turns; a warp that zeroes.
  static constexpr int assistants = (!config.wide() ? config.consumer_warpgroups() : config.deterministic ? 2 : 0) + 1;
  using Weights = hopper::SharedTile<config.tile_q, config.tile_kv>;
  // Both in the order of place_of_statistics(), in the sizes that BackwardConfig has for P and D.
  struct alignas(16) Statistics {
    float minus_lse[config.tile_q];  // in base 2; -inf, so that P = 0, in rows that see no key
    float minus_d[config.tile_q];    // -rowsum(dO * O)
  };

  hopper::SharedTile<config.tile_kv, config.d> k;    // wide rows: dK is staged over it
  hopper::SharedTile<config.tile_kv, config.d_v> v;  // and dV over this
  hopper::SharedTile<config.tile_q, config.d> q[config.stages];
  hopper::SharedTile<config.tile_q, config.d_v> d_o[config.d_o_stages()];
  // Wide rows have the transpose, which is as large.
  Weights ds[config.stages];
  struct NoP {};
  struct P {
    Weights tile[config.stages];
    hopper::Mbarrier full[config.stages];
  };
  [[no_unique_address]] std::conditional_t<config.wide(), P, NoP> p;  // wide rows, transposed
  struct NoPeer {};
  /// Clusters: what this CTA's columns of dQ need of the peer.
  struct Peer {
    hopper::SharedTile<config.tile_kv, dq_layout(config).part_columns> k;  // the peer's keys, this CTA's columns
    Weights ds[config.stages];                                             // the peer's
  };
  [[no_unique_address]] std::conditional_t<(config.cluster > 1), Peer, NoPeer> peer;
  struct NoDq {};
  [[no_unique_address]] std::conditional_t<config.wide(), NoDq, DqPart<config>[config.consumer_warpgroups()]> dq;
  Statistics statistics[config.stages];
  KeyTile<config.key_groups()> tile;
  hopper::Mbarrier k_full, v_full, kv_empty;
  hopper::Mbarrier q_full[config.stages], q_empty[config.stages];
  hopper::Mbarrier d_o_full[config.d_o_stages()], d_o_empty[config.d_o_stages()];
  hopper::Mbarrier ds_full[config.stages], ds_empty[config.stages];
  hopper::Mbarrier dq_full[config.consumer_warpgroups()], dq_empty[config.consumer_warpgroups()];
  hopper::Mbarrier turn, added;
  hopper::Mbarrier ds_peer_full[config.stages];
  Handover handover;

  /// visit(name, index, object) for every buffer and barrier.
  template <class Visit>
  void for_each_named(Visit&& visit) {
    const auto all = [&](const char* name, auto& array) {
      for (auto& object : array) visit(name, int(&object - array), object);
    };
    visit("k", 0, k);
    visit("v", 0, v);
    all("q", q);
    all("d_o", d_o);
    all("ds", ds);
    if constexpr (config.wide()) {
      all("p", p.tile);
      all("p_full", p.full);
    }
    if constexpr (config.cluster > 1) {
      visit("k_peer", 0, peer.k);
      all("ds_peer", peer.ds);
      all("ds_peer_full", ds_peer_full);
      all("item_full", handover.full);
      all("item_empty", handover.empty);
      all("item", handover.item);
    }
    if constexpr (!config.wide()) {
      all("dq", dq);
      all("dq_full", dq_full);
      all("dq_empty", dq_empty);
    } else {
      all("ds_empty", ds_empty);
    }
    if constexpr (config.wide() && config.deterministic) {
      visit("turn", 0, turn);
      visit("added", 0, added);
    }
    all("statistics", statistics);
    visit("tile", 0, tile);
    visit("k_full", 0, k_full);
    visit("v_full", 0, v_full);
    visit("kv_empty", 0, kv_empty);
    all("q_full", q_full);
    all("q_empty", q_empty);
    all("d_o_full", d_o_full);
    all("d_o_empty", d_o_empty);
    all("ds_full", ds_full);
  }

  /// By one thread, before the roles split.
  HOPPER_FUNCTION void init_barriers() {
    k_full.init(1);
    v_full.init(1);
    kv_empty.init(consumer_warps + assistants);
    for (int i = 0; i < config.stages; ++i) {
      q_full[i].init(1);
      q_empty[i].init(config.cluster * score_warps);
    }
    for (int i = 0; i < config.d_o_stages(); ++i) {
      d_o_full[i].init(1);
      d_o_empty[i].init(config.cluster * score_warps);
    }
    for (int i = 0; i < config.stages; ++i) {
      ds_full[i].init(config.wide() ? score_warps / 2 : score_warps);
      if constexpr (config.wide()) {
        ds_empty[i].init(config.cluster * dq_warps);
        p.full[i].init(score_warps / 2);
      }
      if constexpr (config.cluster > 1) ds_peer_full[i].init(score_warps / 2);
    }
    if constexpr (config.cluster > 1) handover.init_barriers();
    if constexpr (!config.wide()) {
      for (int i = 0; i < config.consumer_warpgroups(); ++i) {
        dq_full[i].init(4);
        dq_empty[i].init(1);
      }
    } else if constexpr (config.deterministic) {
      turn.init(2);
      added.init(dq_warps);
    }
    hopper::fence_barrier_init();
  }
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
