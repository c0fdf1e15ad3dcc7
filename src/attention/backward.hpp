// The backward pass: FlashAttention-3, appendix B.1. Marks in brackets are the steps of docs/algorithm.md, "The
// backward pass".
//
// A tile is B_c keys of one key/value head. A CTA keeps their dK and dV in registers, while it visits, for every query
// head of the group, the blocks of B_r query rows that see them. All scores are transposed: a warpgroup owns 64 keys,
// so P^T and dS^T of its keys are A operands in its registers of dV and dK. dS also goes to shared memory, where all
// warpgroups find all of it for dQ = dS K, of which each computes a part. That happens one block late: nobody waits for
// the dS of the other warpgroup, and the two need not run in step. An adder, a thread of its own for each warpgroup,
// adds the part to f32 numbers in global memory. Rows for more than 128 features have other consumers:
// backward_wide.hpp.
//
// Inside a warpgroup, block j, whose S is in flight:
//
//   GEMMs       [dP(j) = V dO^T     ][dV += P dO                    ][dK += dS Q][dQ(j-1) = dS K][S(j+1) = K Q^T ]
//   registers   [P = exp2(S - LSE)  ][dS = P * (dP - D)][dS to shared]                           [dQ(j-1) to shared  ]
//   releases                                                          dO(j)       Q(j)            dS(j), dQ(j-1) there
//   adder                                                                      [dQ(j-2) to global                    ]
//
// With blocks of 128 rows (d = 64) P and dS at a time would be too many registers: dV is issued after dS.
#pragma once

#include "attention/backward_arguments.hpp"
#include "attention/backward_config.hpp"
#include "attention/backward_consumer.hpp"
#include "attention/backward_shared.hpp"
#include "attention/backward_wide.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// The order counts tiles from the end, but with a causal mask the first keys are seen by the most rows.
template <BackwardConfig config>
HOPPER_FUNCTION auto key_tile(const BackwardArguments& args, int item) {
  const auto blocks_that_see = [&](int first_key, int keys) {
    return BlockWalk::of(args.mask.seen_by(first_key), args.mask.seen_by(first_key + keys - 1), config.tile_q, false);
  };
  const Tile of_order = args.order.item(item);
  KeyTile<config.key_groups()> tile;
  const int first_of_cluster = (args.order.row_items - 1) * config.item_keys() - of_order.first_row;
  tile.first_key = first_of_cluster + rank_of_cta<config>() * config.tile_kv;
  tile.kv_head = of_order.head;
  tile.batch = of_order.batch;
  const BlockWalk all = blocks_that_see(first_of_cluster, config.item_keys());
  tile.blocks = {all.begin, all.end};
  for (int i = 0; i < config.key_groups(); ++i) {
    const BlockWalk own = blocks_that_see(tile.first_key + 64 * i, 64);
    tile.whole[i] = {own.full_begin, own.full_end};
  }
  return tile;
}

// --------------------------------------------------------------------------------------------------------------------
// Producer: one thread.

template <BackwardConfig config>
class BackwardProducer {
 public:
  HOPPER_FUNCTION BackwardProducer(BackwardShared<config>& shared, const BackwardArguments& args)
      : shared_(shared), args_(args) {}

  HOPPER_FUNCTION void run() {
    int item = args_.next_item != nullptr && args_.unasked == 0 ? ask() : first_item();
    while (item < args_.order.count()) item = load(item);
    shared_.kv_empty.wait(tile_phase_ ^ 1);
    hopper::store_shared(shared_.tile.first_key, -1);
    shared_.k_full.arrive();
    wait_for_statistics();
    hopper::let_next_grid_start();  // as the SMs become free
  }

 private:
  /// Returns the item after this one. Asked for at the end, a few blocks before the consumers have done: a CTA that
  /// asked earlier would keep an item waiting which another could have begun.
  HOPPER_FUNCTION int load(int item) {
    const auto tile = key_tile<config>(args_, item);
    const bool at_start = !statistics_ready_;  // nothing has been asked: K and V need not wait for the grid before
    if (at_start) load_kv(item);
    Visit visit = Visit::first(tile.blocks, args_.group);
    const int visits = (tile.blocks.end - tile.blocks.first) * args_.group;
    for (int i = 0; i < visits; ++i) {
      load_q(tile, visit);
      load_d_o(tile, visit);
      if (i == 0 && !at_start) load_kv(item);
      visit.to_next(tile.blocks);
    }
    if (visits == 0 && !at_start) load_kv(item);
    return ask();
  }

  HOPPER_FUNCTION static int first_item() {
    if constexpr (config.cluster > 1) return hopper::cluster();
    return hopper::cta();
  }
  HOPPER_FUNCTION Cursor<2> slot() {
    const int item = handed_over_++;
    return {item % 2, item / 2 % 2};
  }
  /// The next item that no cluster has taken.
  HOPPER_FUNCTION int ask() {
    if (args_.next_item == nullptr) return args_.order.count();
    wait_for_statistics();  // and the counts: of items, and of what a tile's assistants count and await
    if constexpr (config.cluster > 1) {
      if (hopper::cluster_rank() != 0) return shared_.handover.receive(slot());
    }
    const int item = int(hopper::atomic_add(args_.next_item, 1u));
    if constexpr (config.cluster > 1) shared_.handover.send(item, slot());
    return item;
  }
  /// They, the counter and the zeros in dQ are the work of the grid before this one.
  HOPPER_FUNCTION void wait_for_statistics() {
    if (!statistics_ready_) hopper::wait_for_previous_grid();
    statistics_ready_ = true;
  }

  /// [B2] Load K and V of the tile, once those of the tile before are not read any more.
  HOPPER_FUNCTION void load_kv(int item) {
    auto tile = key_tile<config>(args_, hopper::recompute(item));  // not kept: few registers
    shared_.kv_empty.wait(tile_phase_ ^ 1);
    tile.phase = tile_phase_;
    tile_phase_ ^= 1;
    hopper::store_shared(shared_.tile, tile);
    if constexpr (config.cluster > 1) {
      const int rank = hopper::cluster_rank(), key = tile.first_key + (1 - 2 * rank) * config.tile_kv;
      shared_.k_full.arrive_expect_bytes(sizeof(shared_.k) + sizeof(shared_.peer.k));
      hopper::load_tile(shared_.peer.k, args_.k, {rank * dq_layout(config).part_columns, key, tile.kv_head, tile.batch},
                        shared_.k_full);
    } else {
      shared_.k_full.arrive_expect_bytes(sizeof(shared_.k));
    }
    hopper::load_tile(shared_.k, args_.k, {0, tile.first_key, tile.kv_head, tile.batch}, shared_.k_full);
    shared_.v_full.arrive_expect_bytes(sizeof(shared_.v));
    hopper::load_tile(shared_.v, args_.v, {0, tile.first_key, tile.kv_head, tile.batch}, shared_.v_full);
  }

  HOPPER_FUNCTION int head_of(const auto& tile, Visit visit) const {
    return (tile.kv_head + 1) * args_.group - visit.heads;
  }
  /// Rows of Q or dO, in a cluster half of them, for both CTAs.
  HOPPER_FUNCTION static void load_rows(auto& tile, const hopper::TensorMap& map, const hopper::Coordinates& at,
                                        hopper::Mbarrier& full) {
    if constexpr (config.cluster > 1) {
      hopper::load_tile_multicast<config.cluster>(tile, map, at, full);
    } else {
      hopper::load_tile(tile, map, at, full);
    }
  }
  /// [B3] Load Q with its rows' statistics, and dO, through the rings.
  HOPPER_FUNCTION void load_q(const auto& tile, Visit visit) {
    const int stage = q_.stage, head = head_of(tile, visit);
    shared_.q_empty[stage].wait(q_.phase ^ 1);
    shared_.q_full[stage].arrive_expect_bytes(sizeof(shared_.q[0]) + sizeof(shared_.statistics[0]));
    load_rows(shared_.q[stage], args_.q, {0, visit.block * config.tile_q, head, tile.batch}, shared_.q_full[stage]);
    wait_for_statistics();
    const std::int64_t block = (std::int64_t(tile.batch) * args_.heads + head) * args_.blocks + visit.block;
    hopper::load_bytes(&shared_.statistics[stage], args_.statistics + block * (2 * config.tile_q),
                       sizeof(shared_.statistics[0]), shared_.q_full[stage]);
    ++q_;
  }
  HOPPER_FUNCTION void load_d_o(const auto& tile, Visit visit) {
    const int stage = d_o_.stage;
    shared_.d_o_empty[stage].wait(d_o_.phase ^ 1);
    shared_.d_o_full[stage].arrive_expect_bytes(sizeof(shared_.d_o[0]));
    load_rows(shared_.d_o[stage], args_.d_o, {0, visit.block * config.tile_q, head_of(tile, visit), tile.batch},
              shared_.d_o_full[stage]);
    ++d_o_;
  }

  BackwardShared<config>& shared_;
  const BackwardArguments& args_;
  Cursor<config.stages> q_;
  Cursor<config.d_o_stages()> d_o_;
  int handed_over_ = 0;  // items; why not a Cursor: that is a register more
  int tile_phase_ = 0;
  bool statistics_ready_ = false;
};

// --------------------------------------------------------------------------------------------------------------------
// Adders: one thread for each consumer warpgroup, which adds what that leaves of dQ. So consumers wait neither for the
// addition nor, in a deterministic run, for its turn.

template <BackwardConfig config>
HOPPER_FUNCTION void add_dq(BackwardShared<config>& shared, const BackwardArguments& args, int part) {
  int phase = 0;
  const auto begin = [&](const auto& tile) {
    await_zeros<config>(args, tile);
    hopper::fence_async_global();  // from the zeros to what is added
  };
  for_each_visit(shared, args, part, begin, [&](const DqSum<config>& sum, Visit visit) {
    shared.dq_full[part].wait(phase);
    phase ^= 1;
    hopper::fence_async_shared();
    sum.take_turn(visit);
    if constexpr (config.deterministic) hopper::fence_async_global();  // from what others have added
    hopper::add_floats(sum.place(visit), shared.dq[part].four[0].value, sizeof(shared.dq[part]));
    hopper::store_commit();
    hopper::store_wait_read<0>();
    shared.dq_empty[part].arrive();
    if constexpr (config.deterministic) hopper::store_wait<0>();
    sum.pass_turn(visit);
  });
}

// --------------------------------------------------------------------------------------------------------------------
// Consumers: each warpgroup owns 64 keys of the tile.

template <BackwardConfig config>
class BackwardConsumer {
 public:
  HOPPER_FUNCTION BackwardConsumer(BackwardShared<config>& shared, const BackwardArguments& args, int warpgroup)
      : shared_(shared), args_(args), warpgroup_(warpgroup) {}

  HOPPER_FUNCTION void run() {
    for (int tile_phase = 0;;) {
      shared_.k_full.wait(tile_phase);
      if (hopper::load_shared(shared_.tile.first_key) < 0) break;
      tile_phase = differentiate();
    }
    await_stores();
  }

 private:
  static constexpr hopper::Element element = config.element;
  static constexpr DqLayout layout = dq_layout(config);
  using S = hopper::Accumulator<config.tile_q>;  // 64 keys x B_r, f32; and dP
  using P = hopper::OperandA<config.tile_q>;     // 64 keys x B_r, 16 bits; and dS
  using Dk = hopper::Accumulator<config.d>;      // 64 keys x d, f32
  using Dv = hopper::Accumulator<config.d_v>;
  using Dq = hopper::Accumulator<layout.part_columns>;  // 64 rows x this warpgroup's columns
  using At = Cursor<config.stages>;

  // Neither the warp nor, where it can be helped, the warpgroup is kept: accumulators need the registers.
  HOPPER_FUNCTION int warpgroup() const { return hopper::recompute(warpgroup_); }
  /// The warp's first key in the tile.
  HOPPER_FUNCTION int warp_key() const { return 64 * warpgroup() + 16 * warp_of_thread(); }

  // Whether dV += P^T dO is issued as soon as P is there, under the dP of its block.
  static constexpr bool dv_early = config.multiplies_p16();
  static constexpr float inverse_p_size = config.inverse_p_size();
  // Whether a tile's last store is awaited under the first product of the next. With blocks of 128 rows nvcc 13.0 then
  // orders the loop otherwise, and 4 to 7% slower.
  static constexpr bool await_late = dv_early;

  /// Returns the phase in which the next tile comes.
  HOPPER_FUNCTION int differentiate() {
    Dk dk{};
    Dv dv{};
    {
      const auto tile = hopper::load_shared(shared_.tile);
      const Interval whole = hopper::load_shared(shared_.tile.whole[warpgroup()]);
      blocks_ = {hopper::in_uniform_register(tile.blocks.first), hopper::in_uniform_register(tile.blocks.end)};
      whole_ = {hopper::in_uniform_register(whole.first), hopper::in_uniform_register(whole.end)};
    }
    if (blocks_.first < blocks_.end) {
      Visit visit = Visit::first(blocks_, args_.group);
      S s, dp;
      P p;
      issue_s(s);
      if constexpr (await_late) await_stores();
      shared_.v_full.wait(hopper::load_shared(shared_.tile.phase));
      shared_.d_o_full[at_.stage].wait(at_.phase);
      issue_dp(dp);
      weigh(visit, s, dp, p, dv, rows_of_s());
      if (is_last(visit)) {
        step<true, true>(visit, s, dp, p, dk, dv);
      } else {
        step<true, false>(visit, s, dp, p, dk, dv);
        HOPPER_NO_UNROLL
        while (!is_last(visit)) step<false, false>(visit, s, dp, p, dk, dv);
        step<false, true>(visit, s, dp, p, dk, dv);
      }
      last_dq();
    } else {
      if constexpr (await_late) await_stores();
      shared_.v_full.wait(hopper::load_shared(shared_.tile.phase));
    }
    const auto tile = hopper::load_shared(shared_.tile);
    release(shared_.kv_empty);
    // dV and dK are staged where dQ was, once the last of that has been read.
    if (blocks_.first < blocks_.end) shared_.dq_empty[warpgroup()].wait(before(at_).stage % 2);
    auto& staged_dv = *reinterpret_cast<Staged<config.d_v>*>(quarter_of_warp());
    constexpr bool both = sizeof(Staged<config.d_v>) + sizeof(Staged<config.d>) <= quarter_bytes;
    scale_all(dv, inverse_p_size);
    store(dv, staged_dv, args_.dv, tile);
    if constexpr (!both) await_stores();
    scale_all(dk, args_.scale);
    store(dk, *reinterpret_cast<Staged<config.d>*>(&staged_dv + both), args_.dk, tile);
    if constexpr (!await_late) await_stores();
    return tile.phase ^ 1;
  }

  HOPPER_FUNCTION bool is_last(Visit visit) const { return visit.heads == 1 && visit.block == blocks_.first; }

  /// [B4] S = K Q^T.
  HOPPER_FUNCTION void issue_s(S& s) {
    shared_.q_full[at_.stage].wait(at_.phase);
    hopper::issue_abt<element, hopper::Descriptors::uniform>(s, shared_.k, 64 * warpgroup(), shared_.q[at_.stage]);
    hopper::wgmma_commit();
  }
  /// dP = V dO^T.
  HOPPER_FUNCTION void issue_dp(S& dp) {
    hopper::issue_abt<element, hopper::Descriptors::uniform>(dp, shared_.v, 64 * warpgroup(), shared_.d_o[at_.stage]);
    hopper::wgmma_commit();
  }

  // Statistics are read ahead where registers allow it: beside the operands of products that takes long.
  struct ReadLater {};
  using Ahead = std::conditional_t<dv_early, OfRows<config.tile_q>, ReadLater>;
  HOPPER_FUNCTION Ahead read_ahead(const float (&statistics)[config.tile_q]) const {
    if constexpr (dv_early) return of_rows<config.tile_q>(statistics, 0);
    return {};
  }
  template <int columns>
  HOPPER_FUNCTION static OfRows<columns> part(const OfRows<columns>& ahead, const auto&, int) {
    return ahead;
  }
  template <int columns>
  HOPPER_FUNCTION static OfRows<columns> part(ReadLater, const float (&statistics)[config.tile_q], int column) {
    return of_rows<columns>(statistics, column);
  }
  HOPPER_FUNCTION Ahead rows_of_s() const { return read_ahead(shared_.statistics[at_.stage].minus_lse); }

  /// Once S is there, with dP in flight behind it: P. Returns when dP is there.
  HOPPER_FUNCTION void weigh(Visit visit, S& s, S& dp, P& p, Dv& dv, const Ahead& ahead) {
    hopper::wgmma_wait<1>(s);
    // [B5] P = exp2(S - LSE)
    constexpr int columns = dv_early ? config.tile_q : 32;
    HOPPER_UNROLL
    for (int column = 0; column < config.tile_q; column += columns) {
      const OfRows<columns> minus_lse = part<columns>(ahead, shared_.statistics[at_.stage].minus_lse, column);
      HOPPER_UNROLL
      for (int i = 0; i < columns / 2; ++i) {
        float& x = s.value[column / 2 + i];
        x = hopper::exp2(hopper::fma(x, args_.scale_log2, minus_lse.of(i / 4, i % 2)));
      }
    }
    if constexpr (dv_early) {
      if (is_edge(visit)) hide_from<0, config.tile_q>(visit, s);
      pack<element, 0, config.tile_q>(p, s);
      d_ = read_ahead(shared_.statistics[at_.stage].minus_d);
      issue_dv(dv, p);
      hopper::wgmma_wait<1>(dp);
    } else {
      hopper::wgmma_wait<0>(dp);
    }
  }

  /// [B6] dV += P^T dO.
  HOPPER_FUNCTION void issue_dv(Dv& dv, const P& p) {
    hopper::issue_ab<element, hopper::Descriptors::uniform>(dv, p, shared_.d_o[at_.stage]);
    hopper::wgmma_commit();
  }

  HOPPER_FUNCTION bool is_edge(Visit visit) const { return visit.block < whole_.first || visit.block >= whole_.end; }
  template <int begin, int end, class... Accumulators>
  HOPPER_FUNCTION void hide_from(Visit visit, Accumulators&... all) const {
    hide<begin, end>(args_.mask, hopper::load_shared(shared_.tile.first_key) + warp_key() + hopper::lane() / 4,
                     visit.block * config.tile_q, all...);
  }

  /// [B7] dS = P * (dP - D), 0 where masked, of columns [begin, end), in 16 bits.
  template <int begin, int end>
  HOPPER_FUNCTION void derive(Visit visit, S& s, S& dp, P& p, P& ds) const {
    const OfRows<end - begin> minus_d = part<end - begin>(d_, shared_.statistics[at_.stage].minus_d, begin);
    HOPPER_UNROLL
    for (int j = begin / 8; j < end / 8; ++j) {
      HOPPER_UNROLL
      for (int r = 0; r < 2; ++r) {
        float of_p[2];
        if constexpr (dv_early) {
          hopper::unpack2<element>(p.value[2 * j + r], of_p[0], of_p[1]);
        } else {
          of_p[0] = s.value[4 * j + 2 * r], of_p[1] = s.value[4 * j + 2 * r + 1];
        }
        HOPPER_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& x = dp.value[4 * j + 2 * r + e];
          x = of_p[e] * hopper::fma(x, inverse_p_size, minus_d.of(j - begin / 8, e));
        }
      }
    }
    if (is_edge(visit)) {
      if constexpr (dv_early) {
        hide_from<begin, end>(visit, dp);
      } else {
        hide_from<begin, end>(visit, s, dp);
      }
    }
    if constexpr (!dv_early) pack<element, begin, end>(p, s);
    pack<element, begin, end>(ds, dp);
  }

  /// One block, whose P and dP are there, and P and dP of the next one, to which `visit` goes on. Why so, and not from
  /// S on: ptxas serialises a loop that reads S while products are in flight and S was issued in the round before.
  template <bool first, bool last>
  HOPPER_FUNCTION void step(Visit& visit, S& s, S& dp, P& p, Dk& dk, Dv& dv) {
    constexpr int dqs = first ? 0 : 1, next = last ? 0 : 1;  // products
    P ds;
    if constexpr (dv_early) {
      derive<0, config.tile_q>(visit, s, dp, p, ds);
    } else {
      // Why in parts: nvcc 13.0 mixes what stands between two branches, and would run out of registers.
      derive<0, 64>(visit, s, dp, p, ds);
      derive<64, 128>(visit, s, dp, p, ds);
      issue_dv(dv, p);
    }
    if constexpr (!first) await_ds(before(at_));
    stage_ds(ds);
    // [B8] dK += dS^T Q.
    hopper::issue_ab<element, hopper::Descriptors::uniform>(dk, ds, shared_.q[at_.stage]);
    hopper::wgmma_commit();
    // [B9] dQ of the block before, then S of the next one, under which dQ goes on its way.
    Dq dq;
    if constexpr (!first) issue_dq(dq, before(at_));
    hopper::wgmma_wait<1 + dqs>();
    release(shared_.d_o_empty[at_.stage]);
    hopper::wgmma_wait<dqs>();
    release(shared_.q_empty[at_.stage]);
    const At at = at_;
    ++at_;
    Ahead ahead{};
    if constexpr (!last) {
      issue_s(s);
      if constexpr (dv_early) {
        // Before what is stored, behind which it would wait.
        ahead = rows_of_s();
        shared_.d_o_full[at_.stage].wait(at_.phase);
      }
    }
    if constexpr (!first) {
      hopper::wgmma_wait<next>(dq);
      stage_dq(dq, before(at));
    }
    hopper::warp_sync();
    if (hopper::lane() == 0) {
      shared_.ds_full[at.stage].arrive();
      if constexpr (!first) shared_.dq_full[warpgroup()].arrive();
    }
    if constexpr (last) {
      hopper::wgmma_wait<0>(dk, dv);
    } else {
      if constexpr (!dv_early) shared_.d_o_full[at_.stage].wait(at_.phase);
      issue_dp(dp);
      visit.to_next(blocks_);
      weigh(visit, s, dp, p, dv, ahead);
    }
  }

  /// For dQ later. Nobody reads the buffer any more: before the dS of the block between was there, all had their dQ of
  /// the block that it held.
  HOPPER_FUNCTION void stage_ds(const P& ds) {
    const int first_key = warp_key();
    HOPPER_UNROLL
    for (int row = 0; row < config.tile_q; row += 16) {
      const std::uint32_t fragment[4] = {ds.value[row / 4], ds.value[row / 4 + 1], ds.value[row / 4 + 2],
                                         ds.value[row / 4 + 3]};
      hopper::store_matrix_transposed(shared_.ds[at_.stage], row, first_key, fragment);
    }
  }
  /// The readers have the fence, not the writers: it waits for all that the thread has stored.
  HOPPER_FUNCTION void await_ds(At at) {
    shared_.ds_full[at.stage].wait(at.phase);
    hopper::fence_async_shared();
  }

  /// This warpgroup's part of dQ = dS K.
  HOPPER_FUNCTION void issue_dq(Dq& dq, At at) {
    hopper::issue_ab<element>(dq, shared_.ds[at.stage], layout.split_rows ? 64 * warpgroup() : 0, shared_.k,
                              layout.split_rows ? 0 : layout.part_columns * warpgroup());
    hopper::wgmma_commit();
  }
  /// Of the warpgroup's part of dQ.
  HOPPER_FUNCTION FourOfDq* quarter_of_warp() {
    return shared_.dq[warpgroup()].four + 4 * layout.part_columns * warp_of_thread();
  }
  HOPPER_FUNCTION void stage_dq(const Dq& dq, At at) {
    // stages is even: a stage's blocks all have the same phase of dq_empty.
    shared_.dq_empty[warpgroup()].wait(at.stage % 2 ^ 1);
    FourOfDq* const mine = quarter_of_warp() + hopper::lane();
    HOPPER_UNROLL
    for (int j = 0; j < layout.part_columns / 8; ++j)
      hopper::store_shared(mine[32 * j],
                           {dq.value[4 * j], dq.value[4 * j + 1], dq.value[4 * j + 2], dq.value[4 * j + 3]});
  }

  /// [B11] The last block's.
  HOPPER_FUNCTION void last_dq() {
    Dq dq;
    await_ds(before(at_));
    issue_dq(dq, before(at_));
    hopper::wgmma_wait<0>(dq);
    stage_dq(dq, before(at_));
    release(shared_.dq_full[warpgroup()]);
  }

  template <int columns>
  using Staged = hopper::SharedTile<16, columns>;
  static constexpr std::size_t quarter_bytes = sizeof(DqPart<config>) / 4;
  static_assert(sizeof(Staged<config.d>) <= quarter_bytes && sizeof(Staged<config.d_v>) <= quarter_bytes);

  /// [B12] The warp's 16 keys of a gradient, in 16 bits.
  template <int columns>
  HOPPER_FUNCTION void store(const hopper::Accumulator<columns>& gradient, Staged<columns>& staged,
                             const hopper::TensorMap& map, const auto& tile) const {
    stage_rows<element>(staged, 0, gradient);
    if (hopper::lane() == 0) {
      hopper::store_rows(map, {0, tile.first_key + warp_key(), tile.kv_head, tile.batch}, staged, 0);
      hopper::store_commit();
    }
  }
  /// Until what the warp has staged is read.
  HOPPER_FUNCTION static void await_stores() {
    if (hopper::lane() == 0) hopper::store_wait_read<0>();
    hopper::warp_sync();
  }

  BackwardShared<config>& shared_;
  const BackwardArguments& args_;
  const int warpgroup_;
  Interval blocks_, whole_;  // of the tile: all, and those that need no mask
  At at_;                    // Q, dO, dS of this block
  Ahead d_;
};

// --------------------------------------------------------------------------------------------------------------------
// The kernel body: the role split.

template <BackwardConfig config>
HOPPER_FUNCTION void backward(BackwardShared<config>& shared, const BackwardArguments& args) {
  const int warpgroup = hopper::warpgroup();
  const bool leader = warpgroup == 0 && hopper::warp_of_warpgroup() == 0 && hopper::elect_one();
  if (leader) {
    if (args.blocks > 0) {
      hopper::prefetch(args.q);
      hopper::prefetch(args.d_o);
    }
    hopper::prefetch(args.k);
    hopper::prefetch(args.v);
    shared.init_barriers();
  }
  if constexpr (config.cluster > 1) {
    hopper::cluster_sync();
  } else {
    hopper::cta_sync();
  }
  if (warpgroup == 0) {
    hopper::release_registers<config.producer_registers()>();
    if (leader) BackwardProducer<config>(shared, args).run();
    const int assistant = hopper::warp_of_warpgroup() - 1;
    constexpr int threads = BackwardShared<config>::assistants - 1, zeroing_warp = 2;
    static_assert(threads <= zeroing_warp);
    if (assistant == zeroing_warp) {
      zero_ahead(shared, args);
    } else if (assistant >= 0 && assistant < threads && hopper::elect_one()) {
      if constexpr (config.wide()) {
        assistant == 0 ? take_turns(shared, args) : pass_turns(shared, args);
      } else {
        add_dq(shared, args, assistant);
      }
    }
  } else if constexpr (!config.wide()) {
    hopper::claim_registers<config.consumer_registers(0)>();
    BackwardConsumer<config>(shared, args, warpgroup - 1).run();
  } else if (warpgroup < 2) {
    hopper::claim_registers<config.consumer_registers(0)>();
    WideConsumer<config, WideRole::p>(shared, args).run();
  } else if (warpgroup < 3) {
    hopper::claim_registers<config.consumer_registers(1)>();
    WideConsumer<config, WideRole::ds>(shared, args).run();
  } else {
    hopper::release_registers<config.consumer_registers(2)>();
    WideDq<config>(shared, args).run();
  }
  if constexpr (config.cluster > 1) {
    hopper::warp_sync();
    hopper::cluster_sync();  // the peer may still write to this CTA and arrive on its barriers
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
