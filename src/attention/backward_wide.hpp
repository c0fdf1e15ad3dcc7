// The consumers of wide rows (d or d_v above 128), where dK and dV of 64 keys are more than one warpgroup can hold. A
// tile has 64 keys, the CTA three consumer warpgroups:
//
//   P    makes S^T and P^T, and has dV
//   dS   makes dP^T and dS^T, and has dK
//   dQ   multiplies dS K and adds it to global memory, some columns at a time; nobody waits for that to happen
//
// P^T and dS^T are A operands of dV and dK in the registers in which they are made. P^T also goes to shared memory, for
// dS = P * (dP - D), and dS^T, for dQ, where the instruction transposes it. So the tensor core works for the other
// warpgroups while one exponentiates or multiplies. P does not wait for dS, but for the buffers, and at a tile's end:
//
//   P    [dV += P(j) dO] dO(j) free [S(j+1) = K Q^T][P(j+1) = exp2(S(j+1) - LSE), also to shared]
//   dS   [dS(j) = P(j) * (dP(j) - D), also to shared][dK += dS(j) Q] Q(j) free [dP(j+1) = V dO^T] dO(j+1) free
//   dQ   [dQ(j-1) = dS(j-1) K to global ..                 ][dQ(j) = dS(j) K to global ..
//
// Clusters: two CTAs have neighbouring tiles and visit the blocks that see any of their 128 keys, each masking for its
// own. Each loads half of every Q and dO for both. Of dQ each computes half of the columns, over the keys of both, for
// which they exchange dS: a warp of dS sends the 16 keys it has written, as soon as they are written. So a CTA reads,
// and adds to dQ, half as much through the L2 cache. The peer's keys and dS leave one buffer for dO.
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
    for (int tile_phase = 0;;) {
      shared_.k_full.wait(tile_phase);
      if (hopper::load_shared(shared_.tile.first_key) < 0) return;
      shared_.v_full.wait(tile_phase);
      differentiate();
      tile_phase = hopper::load_shared(shared_.tile.phase) ^ 1;  // not kept: accumulators need the register
      release(shared_.kv_empty);
    }
  }

 private:
  static constexpr hopper::Element element = config.element;
  static constexpr bool makes_p = role == WideRole::p;
  static constexpr float inverse_p_size = config.inverse_p_size();

  using S = hopper::Accumulator<64>;  // 64 keys x 64 rows, f32; or dP
  using P = hopper::OperandA<64>;     // 64 keys x 64 rows, 16 bits; or dS
  // dV or dK. Why 256 columns in two parts: a kernel of 512 threads has 128 registers at compile time, fewer than an
  // instruction with so many accumulators takes.
  static constexpr int columns = makes_p ? config.d_v : config.d;
  static constexpr int parts = columns > 192 ? 2 : 1, part_columns = columns / parts;
  struct Gradient {
    hopper::Accumulator<part_columns> part[parts];
  };

  /// Of a thread's two keys: which rows of the block see them.
  struct Visible {
    std::uint32_t word[2];
  };

  /// The warp's first key in the tile. Not kept: accumulators need the register.
  HOPPER_FUNCTION static int warp_key() { return 16 * warp_of_thread(); }

  HOPPER_FUNCTION void differentiate() {
    Gradient gradient{};
    const Interval blocks = hopper::load_shared(shared_.tile.blocks);
    if (blocks.first < blocks.end) {
      int block = Visit::first(blocks, args_.group).block;
      S s;
      P p;
      prepare(s);
      Visible visible = score(block, s, p, gradient);
      if constexpr (makes_p) make_p(visible, s, p);
      // Why counted, and not by Visit: ptxas serialises the loop of dS if it ends where to_next() says so (C7520).
      HOPPER_NO_UNROLL
      for (int left = (blocks.end - blocks.first) * args_.group; left > 1; --left) {
        const Interval all = hopper::load_shared(shared_.tile.blocks);
        block = block > all.first ? block - 1 : all.end - 1;
        step<false>(block, visible, s, p, gradient);
      }
      step<true>(0, visible, s, p, gradient);
      // dV goes over V, which dS has read before it said that dS is there; dK over K, which dQ reads.
      const Cursor<config.stages> last = before(at_);
      (makes_p ? shared_.ds_full : shared_.ds_empty)[last.stage].wait(last.phase);
    }
    if constexpr (makes_p) {
      store(shared_.v, gradient, inverse_p_size, args_.dv);
    } else {
      store(shared_.k, gradient, args_.scale, args_.dk);
    }
  }

  /// One block, whose P has been made, or whose dP is there, and the same of the `next` one. Why a role awaits one
  /// product before it issues the next: there are no registers for both, and the tensor core has those of the others.
  template <bool last>
  HOPPER_FUNCTION void step(int next, Visible& visible, S& s, P& p, Gradient& gradient) {
    at_.stage = hopper::uniform(at_.stage);
    const Cursor<config.stages> at = at_;
    if constexpr (makes_p) {
      // [B6] dV += P^T dO.
      shared_.d_o_full[d_o_.stage].wait(d_o_.phase);
      multiply(gradient, p, shared_.d_o[d_o_.stage]);
    } else {
      make_ds(visible, s, p);
      // [B8] dK += dS^T Q.
      multiply(gradient, p, shared_.q[at_.stage]);
    }
    ++at_;
    if constexpr (!last) prepare(s);
    await(s, gradient);
    if constexpr (makes_p) {
      release_d_o();
    } else {
      release_to_cluster<config.cluster>(shared_.q_empty[at.stage]);
    }
    if constexpr (!last) {
      visible = score(next, s, p, gradient);
      if constexpr (makes_p) make_p(visible, s, p);
    }
  }

  // Both roles ask of barriers, and dS reads from shared memory, what they can under their own products: behind them
  // they would wait until those of the others leave shared memory to them.

  /// Q has come; dS: -D of the block, to which dP is added.
  HOPPER_FUNCTION void prepare(S& s) const {
    shared_.q_full[at_.stage].wait(at_.phase);
    if constexpr (!makes_p) {
      HOPPER_UNROLL
      for (int column = 0; column < 64; column += 16) {
        const OfRows<16> minus_d = of_rows<16>(shared_.statistics[at_.stage].minus_d, column);
        HOPPER_UNROLL
        for (int i = 0; i < 8; ++i) s.value[column / 2 + i] = minus_d.of(i / 4, i % 2);
      }
    }
  }
  /// [B4] S = K Q^T; or dP - D = V dO^T - D, and reads the P that will be multiplied by it. Returns what is visible.
  HOPPER_FUNCTION Visible score(int block, S& s, P& p, Gradient& gradient) {
    Visible visible;
    if constexpr (makes_p) {
      hopper::issue_abt<element, hopper::Descriptors::uniform>(s, shared_.k, 0, shared_.q[at_.stage]);
      hopper::wgmma_commit();
      visible = visible_rows(block);
    } else {
      await(s, gradient);  // -D is in registers before the product that adds to it
      shared_.d_o_full[d_o_.stage].wait(d_o_.phase);
      hopper::issue_abt<element, hopper::Descriptors::uniform, true>(s, shared_.v, 0, shared_.d_o[d_o_.stage]);
      hopper::wgmma_commit();
      visible = visible_rows(block);
      shared_.ds_empty[at_.stage].wait(at_.phase ^ 1);
      shared_.p.full[at_.stage].wait(at_.phase);
      HOPPER_UNROLL
      for (int column = 0; column < 64; column += 16) {
        std::uint32_t fragment[4];
        hopper::load_matrix(fragment, shared_.p.tile[at_.stage], warp_key(), column);
        HOPPER_UNROLL
        for (int i = 0; i < 4; ++i) p.value[column / 4 + i] = fragment[i];
      }
    }
    hopper::wgmma_wait<0>(s);
    if constexpr (!makes_p) release_d_o();
    return visible;
  }
  /// Why always: a mask that hides nothing costs less than the registers of a second way.
  HOPPER_FUNCTION Visible visible_rows(int block) const {
    Visible visible{{~std::uint32_t(0), ~std::uint32_t(0)}};
    const Interval whole = hopper::load_shared(shared_.tile.whole[0]);
    if (block < whole.first || block >= whole.end) {
      HOPPER_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int key = hopper::load_shared(shared_.tile.first_key) + warp_key() + hopper::lane() / 4 + 8 * r;
        visible.word[r] = seeing_word(args_.mask, key, block * config.tile_q);
      }
    }
    return visible;
  }
  HOPPER_FUNCTION void multiply(Gradient& gradient, const P& p, auto& by) {
    HOPPER_UNROLL
    for (int i = 0; i < parts; ++i)
      hopper::issue_ab<element, hopper::Descriptors::uniform>(gradient.part[i], p,
                                                              hopper::panels_of<part_columns>(by, part_columns * i));
    hopper::wgmma_commit();
  }
  HOPPER_FUNCTION static void await(S& s, Gradient& gradient) {
    if constexpr (parts == 2) {
      hopper::wgmma_wait<0>(s, gradient.part[0], gradient.part[1]);
    } else {
      hopper::wgmma_wait<0>(s, gradient.part[0]);
    }
  }
  HOPPER_FUNCTION void release_d_o() {
    release_to_cluster<config.cluster>(shared_.d_o_empty[d_o_.stage]);
    ++d_o_;
  }

  /// [B5] P = exp2(S - LSE), or [B7] dS = P * (dP - D), 0 where masked, in registers and shared memory.
  HOPPER_FUNCTION void make_p(Visible visible, S& s, P& p) const {
    // Nobody reads the buffer any more: dS has read the P of two blocks before to make the dS of which there was dK
    // before the Q of this block could be loaded.
    make(visible, s, p, shared_.p.tile[at_.stage]);
    release(shared_.p.full[at_.stage]);
    release_to_cluster<config.cluster>(shared_.q_empty[at_.stage]);
  }
  HOPPER_FUNCTION void make_ds(Visible visible, S& dp, P& ds) const {
    make(visible, dp, ds, shared_.ds[at_.stage]);
    hopper::fence_async_shared();
    release(shared_.ds_full[at_.stage]);
    if constexpr (config.cluster > 1) send_ds();
  }
  /// The warp's keys of dS to the peer, whose buffer is free: so ds_empty has said. As many of the peer's are to come,
  /// maybe before they are expected here.
  HOPPER_FUNCTION void send_ds() const {
    if (hopper::lane() != 0) return;
    constexpr int bytes = sizeof(shared_.ds[0]) / 4;
    hopper::Mbarrier& full = shared_.ds_peer_full[at_.stage];
    const int first_key = warp_key();
    full.arrive_expect_bytes(bytes);
    hopper::send_bytes(shared_.peer.ds[at_.stage].element[0][first_key], shared_.ds[at_.stage].element[0][first_key],
                       bytes, full, 1 - hopper::cluster_rank());
  }
  HOPPER_FUNCTION void make(Visible visible, S& s, P& operand, auto& made) const {
    HOPPER_UNROLL
    for (int column = 0; column < 64; column += 16) {
      OfRows<16> minus_lse;
      if constexpr (makes_p) minus_lse = of_rows<16>(shared_.statistics[at_.stage].minus_lse, column);
      HOPPER_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int j = column / 8 + half;
        HOPPER_UNROLL
        for (int r = 0; r < 2; ++r) {
          float p[2] = {};
          if constexpr (!makes_p) hopper::unpack2<element>(operand.value[2 * j + r], p[0], p[1]);
          HOPPER_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& x = s.value[4 * j + 2 * r + e];
            if constexpr (makes_p) {
              x = hopper::exp2(hopper::fma(x, args_.scale_log2, minus_lse.of(half, e)));
            } else {
              x *= p[e] * inverse_p_size;
            }
            x = (visible.word[r] >> (2 * j + e)) & 1 ? x : 0.0f;
          }
        }
      }
      std::uint32_t fragment[4];
      pack16<element>(fragment, s, column);
      HOPPER_UNROLL
      for (int i = 0; i < 4; ++i) operand.value[column / 4 + i] = fragment[i];
      hopper::store_matrix(made, warp_key(), column, fragment);
    }
  }

  /// [B12] The warp's 16 keys of the gradient, times `factor`, in 16 bits, staged over `over`.
  HOPPER_FUNCTION void store(auto& over, Gradient& gradient, float factor, const hopper::TensorMap& map) const {
    HOPPER_UNROLL
    for (int i = 0; i < parts; ++i) {
      scale_all(gradient.part[i], factor);
      stage_rows<element>(hopper::panels_of<part_columns>(over, part_columns * i), warp_key(), gradient.part[i]);
    }
    if (hopper::lane() == 0) {
      const auto tile = hopper::load_shared(shared_.tile);
      hopper::store_rows(map, {0, tile.first_key + warp_key(), tile.kv_head, tile.batch}, over, warp_key());
      hopper::store_commit();
      hopper::store_wait_read<0>();
    }
  }

  BackwardShared<config>& shared_;
  const BackwardArguments& args_;
  Cursor<config.stages> at_;  // Q, P, dS
  Cursor<config.d_o_stages()> d_o_;
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
      if (tile.blocks.first < tile.blocks.end) {
        await_zeros<config>(args_, tile);
        add_all(tile, {args_, tile, rank_of_cta<config>()});
      }
      release(shared_.kv_empty);
    }
  }

 private:
  static constexpr DqLayout layout = dq_layout(config);
  // As few and as wide as 64 registers allow: a product of 64 columns reads so much from shared memory that whatever
  // else is asked of that has to wait.
  static constexpr int chunk_columns = layout.part_columns == 128 ? 128 : 64;
  static constexpr int chunks = layout.part_columns / chunk_columns, buffers = chunks > 1 ? 2 : 1;
  using Chunk = hopper::Accumulator<chunk_columns>;  // of 64 rows

  HOPPER_FUNCTION void add_all(const auto& tile, const DqSum<config>& sum) {
    Visit visit = Visit::first(tile.blocks, args_.group);
    HOPPER_NO_UNROLL
    do {
      shared_.ds_full[at_.stage].wait(at_.phase);
      if constexpr (config.cluster > 1) shared_.ds_peer_full[at_.stage].wait(at_.phase);
      // [B9] dQ = dS K, a chunk while the one before is added.
      Chunk chunk[buffers];
      issue(chunk[0], 0);
      float* const place = sum.place(visit) + 16 * layout.part_columns * warp_of_thread() + 4 * hopper::lane();
      HOPPER_UNROLL
      for (int i = 0; i < chunks; ++i) {
        if (i + 1 < chunks) {
          issue(chunk[(i + 1) % buffers], chunk_columns * (i + 1));
          hopper::wgmma_wait<1>(chunk[i % buffers]);
        } else {
          hopper::wgmma_wait<0>(chunk[i % buffers]);
          release_to_cluster<config.cluster>(shared_.ds_empty[at_.stage]);  // the peer's dS is free, too
        }
        if (config.deterministic && i == 0) shared_.turn.wait(turn_phase_);
        add(place + 16 * chunk_columns * i, chunk[i % buffers]);
      }
      if constexpr (config.deterministic) {
        release(shared_.added);
        turn_phase_ ^= 1;
      }
      ++at_;
    } while (visit.to_next(tile.blocks));
  }

  /// The chunk of the CTA's columns that begins with this one.
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
    for (int j = 0; j < chunk_columns / 8; ++j) {
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
  for_each_visit(
      shared, args, rank_of_cta<config>(), [](const auto&) {},
      [&](const DqSum<config>& sum, Visit visit) {
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
  for_each_visit(
      shared, args, rank_of_cta<config>(), [](const auto&) {},
      [&](const DqSum<config>& sum, Visit visit) {
        shared.added.wait(phase);
        shared.turn.arrive();  // the next one may be given: this one has been seen
        sum.pass_turn(visit);
        phase ^= 1;
      });
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
