// The backward pass: FlashAttention-3, appendix B.1. Marks in brackets are the steps of docs/algorithm.md, "The
// backward pass".
//
// One CTA owns B_c keys of one key/value head and keeps their dK and dV in registers, while it visits, for every query
// head of the group, the blocks of B_r query rows that see them. All scores are transposed: a warpgroup owns 64 keys,
// so P^T and dS^T of its keys are A operands in its registers of dV and dK. dS also goes to shared memory, where all
// warpgroups find all of it for dQ = dS K, of which each computes a part and adds it to f32 numbers in global memory.
// That happens one block late: nobody waits for the dS of the other warpgroup, and the two need not run in step.
// Rows for more than 128 features have other consumers: backward_wide.hpp.
//
// Inside a warpgroup, block j, whose S is in flight:
//
//   GEMMs       [dP(j) = V dO^T     ][dV += P dO                    ][dK += dS Q][dQ(j-1) = dS K][S(j+1) = K Q^T ]
//   registers   [P = exp2(S - LSE)  ][dS = P * (dP - D)][dS to shared]                           [dQ(j-1) to be added ]
//   releases                                                          dO(j)       Q(j)            dS(j-1)
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
  tile.first_key = (args.order.row_items - 1) * config.tile_kv - of_order.first_row;
  tile.kv_head = of_order.head;
  tile.batch = of_order.batch;
  const BlockWalk all = blocks_that_see(tile.first_key, config.tile_kv);
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
HOPPER_FUNCTION void produce(BackwardShared<config>& shared, const BackwardArguments& args) {
  Cursor<config.stages> at;
  int tile_phase = 0;
  bool statistics_ready = false;
  for (int item = hopper::cta();; item += hopper::cta_count(), tile_phase ^= 1) {
    const bool stop = item >= args.order.count();
    auto tile = key_tile<config>(args, stop ? 0 : item);
    if (stop) tile.first_key = -1;
    tile.phase = tile_phase;
    shared.kv_empty.wait(tile_phase ^ 1);
    hopper::store_shared(shared.tile, tile);
    if (stop) {
      shared.k_full.arrive();
      break;
    }
    const Interval blocks = tile.blocks;
    // [B2] Load K and V of the tile, V behind the first Q.
    shared.k_full.arrive_expect_bytes(sizeof(shared.k));
    hopper::load_tile(shared.k, args.k, {0, tile.first_key, tile.kv_head, tile.batch}, shared.k_full);
    const auto load_v = [&] {
      shared.v_full.arrive_expect_bytes(sizeof(shared.v));
      hopper::load_tile(shared.v, args.v, {0, tile.first_key, tile.kv_head, tile.batch}, shared.v_full);
    };
    if (blocks.first == blocks.end) load_v();
    for (int head = tile.kv_head * args.group; head < (tile.kv_head + 1) * args.group; ++head) {
      const float* const statistics =
          args.statistics + (std::int64_t(tile.batch) * args.heads + head) * args.blocks * (2 * config.tile_q);
      // [B3] Load Q with its rows' statistics, and dO, through the rings.
      for (int block = blocks.end - 1; block >= blocks.first; --block, ++at) {
        const int row = block * config.tile_q;
        shared.q_empty[at.stage].wait(at.phase ^ 1);
        shared.q_full[at.stage].arrive_expect_bytes(sizeof(shared.q[0]) + sizeof(shared.statistics[0]));
        hopper::load_tile(shared.q[at.stage], args.q, {0, row, head, tile.batch}, shared.q_full[at.stage]);
        if (head == tile.kv_head * args.group && block == blocks.end - 1) load_v();
        if (!statistics_ready) hopper::wait_for_previous_grid();  // which wrote them, and zeros to dQ
        statistics_ready = true;
        hopper::load_bytes(&shared.statistics[at.stage], statistics + std::int64_t(block) * (2 * config.tile_q),
                           sizeof(shared.statistics[0]), shared.q_full[at.stage]);
        shared.d_o_empty[at.stage].wait(at.phase ^ 1);
        shared.d_o_full[at.stage].arrive_expect_bytes(sizeof(shared.d_o[0]));
        hopper::load_tile(shared.d_o[at.stage], args.d_o, {0, row, head, tile.batch}, shared.d_o_full[at.stage]);
      }
    }
  }
  if (!statistics_ready) hopper::wait_for_previous_grid();
}

// --------------------------------------------------------------------------------------------------------------------
// Consumers: each warpgroup owns 64 keys of the tile.

template <BackwardConfig config>
class BackwardConsumer {
 public:
  HOPPER_FUNCTION BackwardConsumer(BackwardShared<config>& shared, const BackwardArguments& args, int warpgroup)
      : shared_(shared), args_(args), warpgroup_(warpgroup), dq_sum_(args, warpgroup) {}

  HOPPER_FUNCTION void run() {
    for_each_tile(shared_, [this] { differentiate(); });
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

  /// The warp's first key in the tile. Not kept: accumulators need the register.
  HOPPER_FUNCTION int warp_key() const { return 64 * hopper::recompute(warpgroup_) + 16 * hopper::warp_of_warpgroup(); }

  // Whether dV += P^T dO is issued as soon as P is there, under the dP of its block. dS then multiplies the P of 16
  // bits, which in f16 is 2^10 times as large for it, so that weights down to 2^-24 are normal numbers.
  static constexpr bool dv_early = config.tile_q == 64;
  static constexpr float log2_p_size = dv_early && element == hopper::Element::f16 ? 10.0f : 0.0f;
  static constexpr float inverse_p_size = dv_early && element == hopper::Element::f16 ? 0x1p-10f : 1.0f;

  HOPPER_FUNCTION void differentiate() {
    Dk dk{};
    Dv dv{};
    const Interval blocks = hopper::load_shared(shared_.tile.blocks);
    if (blocks.first < blocks.end) {
      Visit visit = Visit::first(blocks, args_.group);
      S s, dp;
      P p;
      issue_s(s);
      begin(visit, s, dp, p, dv);
      if (is_last(visit)) {
        step<true, true>(visit, s, dp, p, dk, dv);
      } else {
        step<true, false>(visit, s, dp, p, dk, dv);
        HOPPER_NO_UNROLL
        while (!is_last(visit)) step<false, false>(visit, s, dp, p, dk, dv);
        step<false, true>(visit, s, dp, p, dk, dv);
      }
      last_dq();
      scale_all(dv, inverse_p_size);
      store_dv(dv);
      // dK goes over K, which the other warpgroups' dQ read.
      shared_.ds_empty[before(at_).stage].wait(before(at_).phase);
    } else {
      store_dv(dv);
    }
    store_dk(dk);
  }

  HOPPER_FUNCTION bool is_last(Visit visit) const {
    return visit.heads == 1 && visit.block == hopper::load_shared(shared_.tile.blocks).first;
  }

  /// [B4] S = K Q^T.
  HOPPER_FUNCTION void issue_s(S& s) {
    shared_.q_full[at_.stage].wait(at_.phase);
    hopper::issue_abt<element>(s, shared_.k, 64 * hopper::recompute(warpgroup_), shared_.q[at_.stage]);
    hopper::wgmma_commit();
  }

  /// What comes first in a block, whose S is in flight: dP = V dO^T and, meanwhile, P.
  HOPPER_FUNCTION void begin(Visit visit, S& s, S& dp, P& p, Dv& dv) {
    const int stage = at_.stage;
    shared_.d_o_full[stage].wait(at_.phase);
    hopper::issue_abt<element>(dp, shared_.v, 64 * hopper::recompute(warpgroup_), shared_.d_o[stage]);
    hopper::wgmma_commit();
    hopper::wgmma_wait<1>(s);
    // [B5] P = exp2(S - LSE)
    HOPPER_UNROLL
    for (int j = 0; j < config.tile_q / 8; ++j) {
      const Pair minus_lse = pair_of(shared_.statistics[stage].minus_lse, j);
      HOPPER_UNROLL
      for (int i = 4 * j; i < 4 * j + 4; ++i)
        s.value[i] = hopper::exp2(hopper::fma(s.value[i], args_.scale_log2, minus_lse.value[i % 2] + log2_p_size));
    }
    if constexpr (dv_early) {
      if (is_edge(visit)) hide_from<0, config.tile_q>(visit, s);
      pack<element, 0, config.tile_q>(p, s);
      issue_dv(dv, p);
      hopper::wgmma_wait<1>(dp);
    } else {
      hopper::wgmma_wait<0>(dp);
    }
  }

  /// [B6] dV += P^T dO.
  HOPPER_FUNCTION void issue_dv(Dv& dv, const P& p) {
    hopper::issue_ab<element>(dv, p, shared_.d_o[at_.stage]);
    hopper::wgmma_commit();
  }

  HOPPER_FUNCTION bool is_edge(Visit visit) const {
    const Interval whole = hopper::load_shared(shared_.tile.whole[warpgroup_]);
    return visit.block < whole.first || visit.block >= whole.end;
  }
  template <int begin, int end, class... Accumulators>
  HOPPER_FUNCTION void hide_from(Visit visit, Accumulators&... all) const {
    hide<begin, end>(args_.mask, hopper::load_shared(shared_.tile.first_key) + warp_key() + hopper::lane() / 4,
                     visit.block * config.tile_q, all...);
  }

  /// [B7] dS = P * (dP - D), 0 where masked, of columns [begin, end), in 16 bits.
  template <int begin, int end>
  HOPPER_FUNCTION void derive(Visit visit, S& s, S& dp, P& p, P& ds) const {
    HOPPER_UNROLL
    for (int j = begin / 8; j < end / 8; ++j) {
      const Pair d = pair_of(shared_.statistics[at_.stage].d, j);
      HOPPER_UNROLL
      for (int r = 0; r < 2; ++r) {
        float* const of_p = s.value + 4 * j + 2 * r;
        if constexpr (dv_early) hopper::unpack2<element>(p.value[2 * j + r], of_p[0], of_p[1]);
        HOPPER_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& x = dp.value[4 * j + 2 * r + e];
          x = of_p[e] * hopper::fma(x, inverse_p_size, -inverse_p_size * d.value[e]);
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

  /// One block, whose P and dP are there, and begin() of the next one, to which `visit` goes on. Why so, and not from S
  /// on: ptxas serialises a loop that reads S while products are in flight and S was issued in the round before.
  template <bool first, bool last>
  HOPPER_FUNCTION void step(Visit& visit, S& s, S& dp, P& p, Dk& dk, Dv& dv) {
    constexpr int dqs = first ? 0 : 1, next = last ? 0 : 1;  // products
    P ds;
    if constexpr (dv_early) {
      derive<0, config.tile_q>(visit, s, dp, p, ds);
    } else {
      // Why in parts: nvcc 13.0 mixes what stands between two branches, and would run out of registers.
      derive<0, 64>(visit, s, dp, p, ds);
      derive<64, 96>(visit, s, dp, p, ds);
      derive<96, 128>(visit, s, dp, p, ds);
      issue_dv(dv, p);
    }
    share_ds(ds);
    // [B8] dK += dS^T Q.
    hopper::issue_ab<element>(dk, ds, shared_.q[at_.stage]);
    hopper::wgmma_commit();
    // [B9] dQ of the block before, then S of the next one, under which dQ goes on its way.
    Dq dq;
    if constexpr (!first) issue_dq(dq, before(at_));
    hopper::wgmma_wait<1 + dqs>();
    release(shared_.d_o_empty[at_.stage]);
    hopper::wgmma_wait<dqs>();
    release(shared_.q_empty[at_.stage]);
    ++at_;
    if constexpr (!last) issue_s(s);
    if constexpr (!first) {
      const auto tile = hopper::load_shared(shared_.tile);
      const Visit of_dq = visit.before(tile.blocks);
      if (!of_dq.is_first(tile.blocks, args_.group)) dq_sum_.pass_turn(tile, of_dq.before(tile.blocks));
      hopper::wgmma_wait<next>(dq);
      finish_dq(dq, tile, of_dq, before(before(at_)));
    }
    if constexpr (last) {
      hopper::wgmma_wait<0>(dk, dv);
    } else {
      visit.to_next(hopper::load_shared(shared_.tile.blocks));
      begin(visit, s, dp, p, dv);
    }
  }

  HOPPER_FUNCTION void share_ds(const P& ds) {
    shared_.ds_empty[at_.stage].wait(at_.phase ^ 1);
    const int first_key = warp_key();
    HOPPER_UNROLL
    for (int row = 0; row < config.tile_q; row += 16) {
      const std::uint32_t fragment[4] = {ds.value[row / 4], ds.value[row / 4 + 1], ds.value[row / 4 + 2],
                                         ds.value[row / 4 + 3]};
      hopper::store_matrix_transposed(shared_.ds[at_.stage], row, first_key, fragment);
    }
    hopper::fence_async_shared();
    release(shared_.ds_full[at_.stage]);
  }

  /// This warpgroup's part of dQ = dS K.
  HOPPER_FUNCTION void issue_dq(Dq& dq, At at) {
    shared_.ds_full[at.stage].wait(at.phase);
    hopper::issue_ab<element>(dq, shared_.ds[at.stage], layout.split_rows ? 64 * warpgroup_ : 0, shared_.k,
                              layout.split_rows ? 0 : layout.part_columns * warpgroup_);
    hopper::wgmma_commit();
  }
  HOPPER_FUNCTION void finish_dq(const Dq& dq, const auto& tile, Visit visit, At at) {
    release(shared_.ds_empty[at.stage]);
    dq_sum_.take_turn(tile, visit);
    dq_sum_.add_staged(tile, visit, dq, shared_.dq[4 * hopper::recompute(warpgroup_) + hopper::warp_of_warpgroup()]);
  }

  /// [B11] The last block's.
  HOPPER_FUNCTION void last_dq() {
    const auto tile = hopper::load_shared(shared_.tile);
    const Visit visit = {tile.blocks.first, 1};
    Dq dq;
    issue_dq(dq, before(at_));
    if (!visit.is_first(tile.blocks, args_.group)) dq_sum_.pass_turn(tile, visit.before(tile.blocks));
    hopper::wgmma_wait<0>(dq);
    finish_dq(dq, tile, visit, before(at_));
    dq_sum_.pass_turn(tile, visit);
  }

  /// dV and softmax_scale * dK. A warpgroup's rows of V are read by its own dP only.
  HOPPER_FUNCTION void store_dv(const Dv& dv) { store(shared_.v, dv, args_.dv); }
  HOPPER_FUNCTION void store_dk(Dk& dk) {
    scale_all(dk, args_.scale);
    store(shared_.k, dk, args_.dk);
    if (hopper::lane() == 0) hopper::store_wait_read<0>();
  }
  HOPPER_FUNCTION void store(auto& staged, const auto& gradient, const hopper::TensorMap& map) {
    store_gradient<element>(staged, warp_key(), 0, gradient, map, hopper::load_shared(shared_.tile));
  }

  BackwardShared<config>& shared_;
  const BackwardArguments& args_;
  const int warpgroup_;
  At at_;  // Q, dO, dS of this block
  DqSum<config> dq_sum_;
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
  hopper::cta_sync();
  if (warpgroup == 0) {
    hopper::release_registers<config.producer_registers()>();
    if (leader) produce(shared, args);
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
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
