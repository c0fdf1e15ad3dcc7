// The consumers of wide rows (d or d_v above 128), where dK and dV of 64 keys are more than one warpgroup can hold. A
// tile has 64 keys, the CTA three consumer warpgroups:
//
//   P    makes S^T and P^T, and has about half of the columns of dK and dV
//   dS   makes dP^T and dS^T, and has the other columns
//   dQ   multiplies dS K and adds it to global memory, 64 columns at a time; nobody waits for that to happen
//
// P^T and dS^T go to shared memory, [keys x rows], where all find them: as A operands of dV and dK as they are, of dQ
// transposed by the instruction, and dS reads P for its product with dP - D. So the tensor core works for the other
// warpgroups while one exponentiates or multiplies. P does not wait for the dS of a block before it makes the next P:
//
//   P    [dV += P(j) dO][S(j+1) = K Q^T] [P(j+1) = exp2(S(j+1) - LSE) to shared] [dK += dS(j) Q]
//   dS   [dS(j) = P(j) (dP(j) - D) to shared] [dK += dS(j) Q][dP(j+1) = V dO^T][dV += P(j+1) dO]
//   dQ   [dQ(j-1) = dS(j-1) K to global ..                  ][dQ(j) = dS(j) K to global ..
//
// That needs the next Q early, and so a third buffer for it; dO has one, which is free when dV is done.
//
// Clusters: two CTAs have neighbouring tiles and visit the blocks that see any of their 128 keys, each masking for its
// own. Each loads half of every Q and dO for both. Of dQ each computes half of the columns, over the keys of both, for
// which they exchange dS: a warp of dS sends the 16 keys it has written, as soon as they are written. So a CTA reads,
// and adds to dQ, half as much through the L2 cache. The peer's keys and dS leave two buffers for Q: S(j+1) waits until
// dK has read Q(j-1), which both roles therefore release as soon as they can.
//
//   P    [dK(j-1), dV(j)] Q(j-1) free, dO(j) free [S(j+1)][P(j+1)] [dK(j) ..
//   dS   [dS(j) to shared, to the peer][dK(j)][dP(j+1)] Q(j) free [dV(j+1)] dO(j+1) free
//   dQ   [dQ(j)[64 rows x 128] = dS(j) K + the peer's dS(j) K to global ..
#pragma once

#include "attention/backward_consumer.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

enum class WideRole { p, ds };

template <BackwardConfig config, WideRole role>
class WideConsumer {
 public:
  HOPPER_FUNCTION WideConsumer(BackwardShared<config>& shared, const BackwardArguments& args)
      : shared_(shared), args_(args) {}

  HOPPER_FUNCTION void run() {
    for (int tile_phase = 0;; tile_phase ^= 1) {
      shared_.k_full.wait(tile_phase);
      if (hopper::load_shared(shared_.tile.first_key) < 0) return;
      shared_.v_full.wait(tile_phase);
      differentiate();
      release(shared_.kv_empty);
    }
  }

 private:
  static constexpr hopper::Element element = config.element;
  static constexpr bool makes_p = role == WideRole::p;
  // Whether there is a buffer for the next Q while dK of the block before reads its own.
  static constexpr bool early_q = config.q_stages() > config.stages;
  // Whole panels; of an odd number of them P has one more of dK, dS of dV.
  static constexpr int dk_columns = 64 * (makes_p ? (config.d / 64 + 1) / 2 : config.d / 64 / 2);
  static constexpr int dv_columns = 64 * (makes_p ? config.d_v / 64 / 2 : (config.d_v / 64 + 1) / 2);
  static constexpr int first_dk = makes_p ? 0 : config.d - dk_columns;
  static constexpr int first_dv = makes_p ? 0 : config.d_v - dv_columns;
  static constexpr float inverse_p_size = config.inverse_p_size();

  using S = hopper::Accumulator<64>;  // 64 keys x 64 rows, f32; or dP
  using Dk = hopper::Accumulator<dk_columns>;
  using Dv = hopper::Accumulator<dv_columns>;

  /// The warp's first key in the tile. Not kept: accumulators need the register.
  HOPPER_FUNCTION static int warp_key() { return 16 * warp_of_thread(); }

  HOPPER_FUNCTION void differentiate() {
    Dk dk{};
    Dv dv{};
    const Interval blocks = hopper::load_shared(shared_.tile.blocks);
    if (blocks.first < blocks.end) {
      Visit visit = Visit::first(blocks, args_.group);
      S s;
      if constexpr (makes_p) {
        issue_s(s);
        hopper::wgmma_wait<0>(s);
        make_p(s, visit.block);
      } else {
        hopper::wgmma_wait<0>(dv);  // its zeros are in registers before the product that adds to them
        await_dp(s, dv);
      }
      // Why counted: ptxas serialises the loop of dS if it ends where to_next() says so (C7520).
      const int count = (blocks.end - blocks.first) * args_.group;
      HOPPER_NO_UNROLL
      for (int left = count; left > 1; --left) {
        const int block = visit.block;
        visit.to_next(hopper::load_shared(shared_.tile.blocks));
        step<false>(left == count, block, visit.block, s, dk, dv);
      }
      step<true>(count == 1, visit.block, 0, s, dk, dv);
      hopper::wgmma_wait<0>(dk, dv);
      release_of_dk(before(q_), before(ds_));
      // dK goes over K, which dQ reads; dV over V, which dS has read before it said that dS is there.
      shared_.ds_empty[before(ds_).stage].wait(before(ds_).phase);
    }
    scale_all(dv, inverse_p_size);
    scale_all(dk, args_.scale);
    store(shared_.v, first_dv, dv, args_.dv);
    store(shared_.k, first_dk, dk, args_.dk);
    if (hopper::lane() == 0) hopper::store_wait_read<0>();
  }

  /// One block, whose P has been made, or whose dP is there, and the same of the next one.
  template <bool last>
  HOPPER_FUNCTION void step(bool first, int block, int next, S& s, Dk& dk, Dv& dv) {
    q_.stage = hopper::uniform(q_.stage);
    ds_.stage = hopper::uniform(ds_.stage);
    const Cursor<config.q_stages()> q = q_;
    const Cursor<config.stages> ds = ds_;
    if constexpr (makes_p) {
      issue_dv(dv);
      ++q_;
      ++ds_;
      if constexpr (early_q) {
        if constexpr (!last) issue_s(s);
        hopper::wgmma_wait<last ? 0 : 1>();  // dK of the block before, dV
        release_d_o();
        release_of_dk(before(q), before(ds), !first);
      } else {
        hopper::wgmma_wait<1>();  // dK of the block before
        release_of_dk(before(q), before(ds), !first);
        hopper::wgmma_wait<0>();
        release_d_o();
        if constexpr (!last) issue_s(s);
      }
      if constexpr (!last) {
        hopper::wgmma_wait<0>(s);
        make_p(s, next);
      }
      issue_dk(dk, q, ds);
    } else {
      make_ds(s, block);
      issue_dk(dk, q, ds);
      ++q_;
      ++ds_;
      if constexpr (!last) {
        if constexpr (early_q) {
          await_dp(s, dv);
          release_of_dk(q, ds);
        } else {
          issue_dp(s);
          hopper::wgmma_wait<1>();  // dK
          release_of_dk(q, ds);
          await_dv(s, dv);
        }
      }
    }
  }

  /// [B4] S = K Q^T; dP is issued by await_dp().
  HOPPER_FUNCTION void issue_s(S& s) {
    shared_.q_full[q_.stage].wait(q_.phase);
    hopper::issue_abt<element, hopper::Descriptors::uniform>(s, shared_.k, 0, shared_.q[q_.stage]);
    hopper::wgmma_commit();
  }
  /// dP = V dO^T, with dV behind it; waits for them and for what was issued before.
  HOPPER_FUNCTION void await_dp(S& dp, Dv& dv) {
    issue_dp(dp);
    await_dv(dp, dv);
  }
  HOPPER_FUNCTION void issue_dp(S& dp) {
    shared_.d_o_full[d_o_.stage].wait(d_o_.phase);
    hopper::issue_abt<element, hopper::Descriptors::uniform>(dp, shared_.v, 0, shared_.d_o[d_o_.stage]);
    hopper::wgmma_commit();
  }
  HOPPER_FUNCTION void await_dv(S& dp, Dv& dv) {
    issue_dv(dv);
    hopper::wgmma_wait<0>(dp);
    release_d_o();
  }
  /// [B6] dV += P^T dO.
  HOPPER_FUNCTION void issue_dv(Dv& dv) {
    shared_.p.full[ds_.stage].wait(ds_.phase);
    shared_.d_o_full[d_o_.stage].wait(d_o_.phase);
    hopper::issue_ab<element, true>(dv, shared_.p.tile[ds_.stage], 0, shared_.d_o[d_o_.stage], first_dv);
    hopper::wgmma_commit();
  }
  /// [B8] dK += dS^T Q.
  HOPPER_FUNCTION void issue_dk(Dk& dk, Cursor<config.q_stages()> q, Cursor<config.stages> ds) {
    shared_.ds_full[ds.stage].wait(ds.phase);
    hopper::issue_ab<element, true>(dk, shared_.ds[ds.stage], 0, shared_.q[q.stage], first_dk);
    hopper::wgmma_commit();
  }
  HOPPER_FUNCTION void release_d_o() {
    release_to_cluster<config.cluster>(shared_.d_o_empty[d_o_.stage]);
    ++d_o_;
  }
  HOPPER_FUNCTION void release_of_dk(Cursor<config.q_stages()> q, Cursor<config.stages> ds, bool has_been = true) {
    hopper::warp_sync();
    if constexpr (config.cluster > 1) {
      if (has_been && hopper::lane() < config.cluster) shared_.q_empty[q.stage].arrive_remote(hopper::lane());
      if (has_been && hopper::lane() == 0) shared_.ds_empty[ds.stage].arrive();
    } else if (has_been && hopper::lane() == 0) {
      shared_.q_empty[q.stage].arrive();
      shared_.ds_empty[ds.stage].arrive();
    }
  }

  /// [B5] P = exp2(S - LSE), or [B7] dS = P * (dP - D), 0 where masked, to shared memory.
  HOPPER_FUNCTION void make_p(S& s, int block) const {
    // Nobody reads the buffer any more: dS has read the P of two blocks before to make the dS that P has awaited, and
    // the dO of the block before would not be there if dV of that block were not done.
    static_assert(config.d_o_stages() == 1);
    make(s, block, shared_.statistics[q_.stage].minus_lse, shared_.p.tile[ds_.stage], shared_.p.full[ds_.stage]);
  }
  HOPPER_FUNCTION void make_ds(S& dp, int block) const {
    shared_.q_full[q_.stage].wait(q_.phase);  // with which D has come
    shared_.ds_empty[ds_.stage].wait(ds_.phase ^ 1);
    make(dp, block, shared_.statistics[q_.stage].minus_d, shared_.ds[ds_.stage], shared_.ds_full[ds_.stage]);
    if constexpr (config.cluster > 1) send_ds();
  }
  /// The warp's keys of dS to the peer, whose buffer is free: so ds_empty has said. As many of the peer's are to come,
  /// maybe before they are expected here.
  HOPPER_FUNCTION void send_ds() const {
    if (hopper::lane() != 0) return;
    constexpr int bytes = sizeof(shared_.ds[0]) / 4;
    hopper::Mbarrier& full = shared_.ds_peer_full[ds_.stage];
    const int first_key = warp_key();
    full.arrive_expect_bytes(bytes);
    hopper::send_bytes(shared_.peer.ds[ds_.stage].element[0][first_key], shared_.ds[ds_.stage].element[0][first_key],
                       bytes, full, 1 - hopper::cluster_rank());
  }
  HOPPER_FUNCTION void make(S& s, int block, const auto& statistics, auto& made, hopper::Mbarrier& full) const {
    const int first_key = warp_key();
    // Why always: a mask that hides nothing costs less than the registers of a second way.
    std::uint32_t visible[2] = {~std::uint32_t(0), ~std::uint32_t(0)};
    const Interval whole = hopper::load_shared(shared_.tile.whole[0]);
    if (block < whole.first || block >= whole.end) {
      HOPPER_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int key = hopper::load_shared(shared_.tile.first_key) + first_key + hopper::lane() / 4 + 8 * r;
        visible[r] = seeing_word(args_.mask, key, block * config.tile_q);
      }
    }
    HOPPER_UNROLL
    for (int column = 0; column < 64; column += 16) {
      std::uint32_t fragment[4] = {};
      if constexpr (!makes_p) hopper::load_matrix(fragment, shared_.p.tile[ds_.stage], first_key, column);
      const OfRows<16> of_row = of_rows<16>(statistics, column);
      HOPPER_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int j = column / 8 + half;
        HOPPER_UNROLL
        for (int r = 0; r < 2; ++r) {
          float p[2] = {};
          if constexpr (!makes_p) hopper::unpack2<element>(fragment[2 * half + r], p[0], p[1]);
          HOPPER_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& x = s.value[4 * j + 2 * r + e];
            if constexpr (makes_p) {
              x = hopper::exp2(hopper::fma(x, args_.scale_log2, of_row.of(half, e)));
            } else {
              x = p[e] * hopper::fma(x, inverse_p_size, of_row.of(half, e));
            }
            x = (visible[r] >> (2 * j + e)) & 1 ? x : 0.0f;
          }
        }
      }
      pack16<element>(fragment, s, column);
      hopper::store_matrix(made, first_key, column, fragment);
    }
    hopper::fence_async_shared();
    release(full);
  }

  /// [B12] The warp's 16 keys of columns [first_column, ..) of a gradient in 16 bits, staged over the same of `over`.
  template <int rows, int all, int columns>
  HOPPER_FUNCTION void store(hopper::SharedTile<rows, all>& over, int first_column,
                             const hopper::Accumulator<columns>& gradient, const hopper::TensorMap& map) const {
    auto& staged = hopper::panels_of<columns>(over, first_column);
    stage_rows<element>(staged, warp_key(), gradient);
    if (hopper::lane() == 0) {
      const auto tile = hopper::load_shared(shared_.tile);
      hopper::store_rows(map, {first_column, tile.first_key + warp_key(), tile.kv_head, tile.batch}, staged,
                         warp_key());
      hopper::store_commit();
    }
  }

  BackwardShared<config>& shared_;
  const BackwardArguments& args_;
  Cursor<config.q_stages()> q_;
  Cursor<config.d_o_stages()> d_o_;
  Cursor<config.stages> ds_;  // and P
};

/// The warpgroup that has dQ.
template <BackwardConfig config>
class WideDq {
 public:
  HOPPER_FUNCTION WideDq(BackwardShared<config>& shared, const BackwardArguments& args)
      : shared_(shared), args_(args) {}

  HOPPER_FUNCTION void run() {
    for (int tile_phase = 0;; tile_phase ^= 1) {
      shared_.k_full.wait(tile_phase);
      const auto tile = hopper::load_shared(shared_.tile);
      if (tile.first_key < 0) return;
      if (tile.blocks.first < tile.blocks.end) add_all(tile, {args_, tile, rank_of_cta<config>()});
      release(shared_.kv_empty);
    }
  }

 private:
  static constexpr DqLayout layout = dq_layout(config);
  static constexpr int chunks = layout.part_columns / 64;
  using Chunk = hopper::Accumulator<64>;  // 64 rows x 64 columns

  HOPPER_FUNCTION void add_all(const auto& tile, const DqSum<config>& sum) {
    Visit visit = Visit::first(tile.blocks, args_.group);
    HOPPER_NO_UNROLL
    do {
      shared_.ds_full[at_.stage].wait(at_.phase);
      if constexpr (config.cluster > 1) shared_.ds_peer_full[at_.stage].wait(at_.phase);
      // [B9] dQ = dS K, a chunk while the one before is added.
      Chunk chunk[2];
      issue(chunk[0], 0);
      // Why here: with two chunks ptxas would await the second before it adds the first, if the turn stood between.
      if constexpr (config.deterministic && chunks == 2) shared_.turn.wait(turn_phase_);
      float* const place = sum.place(visit) + 16 * layout.part_columns * warp_of_thread() + 4 * hopper::lane();
      HOPPER_UNROLL
      for (int i = 0; i < chunks; ++i) {
        if (i + 1 < chunks) {
          issue(chunk[(i + 1) % 2], 64 * (i + 1));
          hopper::wgmma_wait<1>(chunk[i % 2]);
        } else {
          hopper::wgmma_wait<0>(chunk[i % 2]);
          release_to_cluster<config.cluster>(shared_.ds_empty[at_.stage]);  // the peer's dS is free, too
        }
        if (config.deterministic && chunks != 2 && i == 0) shared_.turn.wait(turn_phase_);
        add(place + 16 * 64 * i, chunk[i % 2]);
      }
      if constexpr (config.deterministic) {
        release(shared_.added);
        turn_phase_ ^= 1;
      }
      ++at_;
    } while (visit.to_next(tile.blocks));
  }

  /// Columns [column, column + 64) of the CTA's.
  HOPPER_FUNCTION void issue(Chunk& chunk, int column) {
    if constexpr (config.cluster > 1) {
      hopper::issue_atb<config.element>(chunk, shared_.ds[at_.stage], shared_.k,
                                        layout.part_columns * hopper::cluster_rank() + column,
                                        shared_.peer.ds[at_.stage], shared_.peer.k, column);
    } else {
      hopper::issue_atb<config.element>(chunk, shared_.ds[at_.stage], shared_.k, column);
    }
    hopper::wgmma_commit();
  }
  HOPPER_FUNCTION static void add(float* place, const Chunk& chunk) {
    HOPPER_UNROLL
    for (int j = 0; j < 64 / 8; ++j) {
      const float four[4] = {chunk.value[4 * j], chunk.value[4 * j + 1], chunk.value[4 * j + 2],
                             chunk.value[4 * j + 3]};
      hopper::add_to_global(place + 128 * j, four);
    }
  }

  BackwardShared<config>& shared_;
  const BackwardArguments& args_;
  Cursor<config.stages> at_;
  int turn_phase_ = 0;
};

// Deterministic: two threads keep the turns of the warpgroup of dQ, so that it waits for neither the count's way from
// L2 nor for what it has added to get there.

template <BackwardConfig config>
HOPPER_FUNCTION void take_turns(BackwardShared<config>& shared, const BackwardArguments& args) {
  int phase = 0;
  for_each_visit(shared, args, rank_of_cta<config>(), [&](const DqSum<config>& sum, Visit visit) {
    sum.take_turn(visit);
    shared.turn.wait(phase ^ 1);  // the one before has been given
    shared.turn.arrive();
    phase ^= 1;
  });
}

template <BackwardConfig config>
HOPPER_FUNCTION void pass_turns(BackwardShared<config>& shared, const BackwardArguments& args) {
  int phase = 0;
  shared.turn.arrive();
  for_each_visit(shared, args, rank_of_cta<config>(), [&](const DqSum<config>& sum, Visit visit) {
    shared.added.wait(phase);
    shared.turn.arrive();  // the next one may be given: this one has been seen
    sum.pass_turn(visit);
    phase ^= 1;
  });
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
