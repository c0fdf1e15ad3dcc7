// The consumers of wide rows (d or d_v above 128), where dK and dV of 64 keys are more than one warpgroup can hold. The
// CTA has 64 keys and three consumer warpgroups:
//
//   P    makes S^T and P^T, and has about half of the columns of dK and dV
//   dS   makes dP^T and dS^T, and has the other columns
//   dQ   multiplies dS K and adds it to global memory, 64 columns at a time; nobody waits for that to happen
//
// P^T and dS^T go to shared memory, [keys x rows], where all find them: as A operands of dV and dK as they are, of dQ
// transposed by the instruction, and dS reads P for its product with dP - D. So the tensor core works for the other
// warpgroups while one exponentiates or multiplies. Block j:
//
//   P    [dV += P(j) dO][S(j+1) = K Q^T]    [dK += dS(j) Q] [P(j+1) = exp2(S(j+1) - LSE) to shared]
//   dS   [dV += P(j) dO]                    [dP(j+1) = V dO^T][dK += dS(j) Q]
//        [dS(j) = P(j) (dP(j) - D) to shared]
//   dQ   [dQ(j-1) = dS(j-1) K to global ..  ][dQ(j) = dS(j) K to global ..
//
// f16: dS multiplies the P of 16 bits, so P is kept 2^10 times as large, which leaves weights down to 2^-24 normal
// numbers. dV is divided by it at the end.
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
    for_each_tile(shared_, [this] { differentiate(); });
  }

 private:
  static constexpr hopper::Element element = config.element;
  static constexpr bool makes_p = role == WideRole::p;
  // Whole panels; of an odd number of them P has one more of dK, dS of dV.
  static constexpr int dk_columns = 64 * (makes_p ? (config.d / 64 + 1) / 2 : config.d / 64 / 2);
  static constexpr int dv_columns = 64 * (makes_p ? config.d_v / 64 / 2 : (config.d_v / 64 + 1) / 2);
  static constexpr int first_dk = makes_p ? 0 : config.d - dk_columns;
  static constexpr int first_dv = makes_p ? 0 : config.d_v - dv_columns;
  static constexpr float log2_p_size = element == hopper::Element::f16 ? 10.0f : 0.0f;
  static constexpr float inverse_p_size = element == hopper::Element::f16 ? 0x1p-10f : 1.0f;

  using S = hopper::Accumulator<64>;  // 64 keys x 64 rows, f32; or dP
  using Dk = hopper::Accumulator<dk_columns>;
  using Dv = hopper::Accumulator<dv_columns>;
  using At = Cursor<config.stages>;

  /// The warp's first key in the tile. Not kept: accumulators need the register.
  HOPPER_FUNCTION static int warp_key() { return 16 * hopper::warp_of_warpgroup(); }

  HOPPER_FUNCTION void differentiate() {
    Dk dk{};
    Dv dv{};
    const Interval blocks = hopper::load_shared(shared_.tile.blocks);
    if (blocks.first < blocks.end) {
      Visit visit = Visit::first(blocks, args_.group);
      at_.stage = hopper::uniform(at_.stage);
      S s;
      issue(s, at_);
      hopper::wgmma_wait<0>(s);
      if constexpr (makes_p) make(s, at_, visit.block);
      HOPPER_NO_UNROLL
      for (;;) {
        const int block = visit.block;
        if (!visit.to_next(hopper::load_shared(shared_.tile.blocks))) break;
        step<false>(block, visit.block, s, dk, dv);
      }
      step<true>(hopper::load_shared(shared_.tile.blocks).first, 0, s, dk, dv);
      // dK goes over K, which dQ reads; dV over V, which dS has read before it said that dS is there.
      shared_.ds_empty[before(at_).stage].wait(before(at_).phase);
    }
    scale_all(dv, inverse_p_size);
    scale_all(dk, args_.scale);
    const auto tile = hopper::load_shared(shared_.tile);
    const int first_key = warp_key();
    store_gradient<element>(shared_.v, first_key, first_dv, dv, args_.dv, tile);
    store_gradient<element>(shared_.k, first_key, first_dk, dk, args_.dk, tile);
    if (hopper::lane() == 0) hopper::store_wait_read<0>();
  }

  /// One block, and what comes first of the next one: all P does up to p_full, dP.
  template <bool last>
  HOPPER_FUNCTION void step(int block, int next, S& s, Dk& dk, Dv& dv) {
    at_.stage = hopper::uniform(at_.stage);
    const At at = at_;
    ++at_;
    // [B6] dV += P^T dO.
    shared_.p.full[at.stage].wait(at.phase);
    shared_.d_o_full[at.stage].wait(at.phase);
    hopper::issue_ab<element, true>(dv, shared_.p.tile[at.stage], 0, shared_.d_o[at.stage], first_dv);
    hopper::wgmma_commit();
    if constexpr (!makes_p) {
      shared_.q_full[at.stage].wait(at.phase);  // with which D has come
      make(s, at, block);
    }
    if constexpr (!last) issue(s, at_);
    // [B8] dK += dS^T Q.
    shared_.ds_full[at.stage].wait(at.phase);
    hopper::issue_ab<element, true>(dk, shared_.ds[at.stage], 0, shared_.q[at.stage], first_dk);
    hopper::wgmma_commit();
    hopper::wgmma_wait<last ? 1 : 2>();
    release(shared_.d_o_empty[at.stage]);
    if constexpr (makes_p && !last) {
      hopper::wgmma_wait<1>(s);
      make(s, at_, next);
    }
    if constexpr (last) {
      hopper::wgmma_wait<0>(dk, dv);
    } else {
      hopper::wgmma_wait<0>(s);
    }
    release(shared_.q_empty[at.stage]);
    release(shared_.ds_empty[at.stage]);
  }

  /// [B4] S = K Q^T, or dP = V dO^T.
  HOPPER_FUNCTION void issue(S& s, At at) {
    if constexpr (makes_p) {
      shared_.q_full[at.stage].wait(at.phase);
      hopper::issue_abt<element>(s, shared_.k, 0, shared_.q[at.stage]);
    } else {
      shared_.d_o_full[at.stage].wait(at.phase);
      hopper::issue_abt<element>(s, shared_.v, 0, shared_.d_o[at.stage]);
    }
    hopper::wgmma_commit();
  }

  /// [B5] P = exp2(S - LSE), or dS = P * (dP - D), 0 where masked. [B7] To shared memory.
  HOPPER_FUNCTION void make(S& s, At at, int block) const {
    if constexpr (makes_p) {
      // Nobody reads the buffer any more: dS of the block before, which P has awaited, was made after both had retired
      // the dV of the block before that.
      make(s, at, block, shared_.statistics[at.stage].minus_lse, shared_.p.tile, shared_.p.full);
    } else {
      shared_.ds_empty[at.stage].wait(at.phase ^ 1);
      make(s, at, block, shared_.statistics[at.stage].d, shared_.ds, shared_.ds_full);
    }
  }
  HOPPER_FUNCTION void make(S& s, At at, int block, const auto& statistics, auto& made, auto& full) const {
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
      if constexpr (!makes_p) hopper::load_matrix(fragment, shared_.p.tile[at.stage], first_key, column);
      HOPPER_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int j = column / 8 + half;
        const Pair of_row = pair_of(statistics, j);
        HOPPER_UNROLL
        for (int r = 0; r < 2; ++r) {
          float p[2] = {};
          if constexpr (!makes_p) hopper::unpack2<element>(fragment[2 * half + r], p[0], p[1]);
          HOPPER_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& x = s.value[4 * j + 2 * r + e];
            if constexpr (makes_p) {
              x = hopper::exp2(hopper::fma(x, args_.scale_log2, of_row.value[e] + log2_p_size));
            } else {
              x = p[e] * hopper::fma(x, inverse_p_size, -inverse_p_size * of_row.value[e]);
            }
            x = (visible[r] >> (2 * j + e)) & 1 ? x : 0.0f;
          }
        }
      }
      pack16<element>(fragment, s, column);
      hopper::store_matrix(made[at.stage], first_key, column, fragment);
    }
    hopper::fence_async_shared();
    release(full[at.stage]);
  }

  BackwardShared<config>& shared_;
  const BackwardArguments& args_;
  At at_;  // Q, dO, P and dS of the next block
};

/// The warpgroup that has dQ.
template <BackwardConfig config>
class WideDq {
 public:
  HOPPER_FUNCTION WideDq(BackwardShared<config>& shared, const BackwardArguments& args)
      : shared_(shared), args_(args), sum_(args, 0) {}

  HOPPER_FUNCTION void run() {
    for (int tile_phase = 0;; tile_phase ^= 1) {
      shared_.k_full.wait(tile_phase);
      const auto tile = hopper::load_shared(shared_.tile);
      if (tile.first_key < 0) return;
      if (tile.blocks.first < tile.blocks.end) add_all(tile);
      release(shared_.kv_empty);
    }
  }

 private:
  static constexpr int chunks = config.d / 64;
  using Chunk = hopper::Accumulator<64>;  // 64 rows x 64 columns

  HOPPER_FUNCTION void add_all(const auto& tile) {
    Visit visit = Visit::first(tile.blocks, args_.group);
    HOPPER_NO_UNROLL
    do {
      shared_.ds_full[at_.stage].wait(at_.phase);
      // [B9] dQ = dS K, a chunk while the one before is added.
      Chunk chunk[2];
      issue(chunk[0], 0);
      if (!visit.is_first(tile.blocks, args_.group)) sum_.pass_turn(tile, visit.before(tile.blocks));
      HOPPER_UNROLL
      for (int i = 0; i < chunks; ++i) {
        if (i + 1 < chunks) {
          issue(chunk[(i + 1) % 2], 64 * (i + 1));
          hopper::wgmma_wait<1>(chunk[i % 2]);
        } else {
          hopper::wgmma_wait<0>(chunk[i % 2]);
          release(shared_.ds_empty[at_.stage]);
        }
        if (i == 0) sum_.take_turn(tile, visit);
        sum_.add(tile, visit, chunk[i % 2], 64 * i);
      }
      ++at_;
    } while (visit.to_next(tile.blocks));
    sum_.pass_turn(tile, {tile.blocks.first, 1});
  }

  HOPPER_FUNCTION void issue(Chunk& chunk, int column) {
    hopper::issue_atb<config.element>(chunk, shared_.ds[at_.stage], shared_.k, column);
    hopper::wgmma_commit();
  }

  BackwardShared<config>& shared_;
  const BackwardArguments& args_;
  Cursor<config.stages> at_;
  DqSum<config> sum_;
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
