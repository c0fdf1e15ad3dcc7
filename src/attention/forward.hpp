// The forward pass: FlashAttention-3, Algorithm 1 (warp specialisation) and Algorithm 2 (overlap inside a warpgroup).
// Numbers in brackets are the steps of docs/algorithm.md.
//
// One CTA works on tiles of B_r query rows of one head, B_c keys at a time. Below, row f16_d128 with five key blocks (4
// down to 0) as `fa3 trace --text` draws it from the simulator; a character is 64 cycles. S4 = Q K(4)^T and PV4 = P(4)
// V(4) are warpgroup 1's, those with a prime warpgroup 2's. A warpgroup issues S(j+1) and PV(j) in its turn; its row
// maxima of S(j+1) then run under its own PV(j) (Algorithm 2), the exponentials under the other's GEMMs (ping-pong).
// The producer, warpgroup 0, loads Q, K4, K3, V4, K2, V3, ..: K one block ahead of V.
//
//   tensor core  [S4    ][S4'   ]    [S3    ][PV4   ][S3'   ][PV4'  ][S2    ][PV3   ][S2'   ][PV3'  ][S1    ][PV2 ]
//   warpgroup 1          [softmax  ]                 [softmax]                       [softmax]
//   warpgroup 2                  [softmax   ]                        [softmax]                       [softmax]
//
// Inside a warpgroup, one step j -> j+1:
//
//   GEMMs       [S(j+1) = Q K(j+1)^T][O += P(j) V(j)]
//   registers                         [max of S(j+1)  ][m, rarely; exp, P(j+1) to 16 bits]
//   releases                          K(j+1)           V(j)
#pragma once

#include "attention/arguments.hpp"
#include "attention/config.hpp"
#include "attention/online_softmax.hpp"
#include "attention/shared.hpp"
#include "attention/stamps.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

template <ForwardConfig config>
HOPPER_FUNCTION BlockWalk walk_blocks(const ForwardArguments& args, const Tile& tile) {
  return BlockWalk(args.mask, tile.first_row, config.tile_q, config.tile_kv, args.scale.sign != 1.0f);
}

// --------------------------------------------------------------------------------------------------------------------
// Producer: one thread. K runs one block ahead of V, because a consumer needs K(j+1) before it needs V(j).

template <ForwardConfig config>
HOPPER_FUNCTION void produce(Shared<config>& shared, const ForwardArguments& args) {
  using S = Shared<config>;
  Cursor<config.q_buffers> q;
  Cursor<config.stages> k, v;
  Stamps<config.trace> stamp(args.stamps, 0, true);

  const auto load_k = [&](const Tile& tile, int block) {
    shared.k_empty[k.stage].wait(k.phase ^ 1);
    shared.k_full[k.stage].arrive_expect_bytes(S::KTile::bytes);
    hopper::load_tile(shared.k[k.stage], args.k, {0, block * config.tile_kv, tile.head / args.group, tile.batch},
                      shared.k_full[k.stage]);
    stamp(Mark::load_k, block);
    ++k;
  };
  const auto load_v = [&](const Tile& tile, int block) {
    shared.v_empty[v.stage].wait(v.phase ^ 1);
    shared.v_full[v.stage].arrive_expect_bytes(S::VTile::bytes);
    hopper::load_tile(shared.v[v.stage], args.v, {0, block * config.tile_kv, tile.head / args.group, tile.batch},
                      shared.v_full[v.stage]);
    stamp(Mark::load_v, block);
    ++v;
  };

  int index = hopper::cta();
  for (;; ++q) {
    // [1] Take the next tile; its record travels with Q.
    const bool stop = index >= args.order.count();
    const Tile tile = stop ? Tile{-1, 0, 0} : args.order.tile(index);
    shared.q_empty[q.stage].wait(q.phase ^ 1);
    hopper::store_shared(shared.tile[q.stage], tile);
    if (stop) {
      shared.q_full[q.stage].arrive();
      return;
    }
    // [2] Load Q.
    shared.q_full[q.stage].arrive_expect_bytes(S::QTile::bytes);
    hopper::load_tile(shared.q[q.stage], args.q, {0, tile.first_row, tile.head, tile.batch}, shared.q_full[q.stage]);
    // The answer is needed a tile later: asking now hides the latency.
    index = hopper::cta_count() + static_cast<int>(hopper::atomic_add(args.next_tile, 1u));

    // [3] Load the K and V blocks through the ring.
    const BlockWalk walk = walk_blocks<config>(args, tile);
    for (int i = 0; i < walk.count(); ++i) {
      load_k(tile, walk.block(i));
      if (i > 0) load_v(tile, walk.block(i - 1));
    }
    if (walk.count() > 0) load_v(tile, walk.block(walk.count() - 1));
  }
}

// --------------------------------------------------------------------------------------------------------------------
// Ping-pong (paper, section 3.1): a warpgroup issues its GEMMs in its turn and hands the turn to the next one, whose
// GEMMs then run under this one's softmax. The first turn is granted at construction.

template <ForwardConfig config>
struct Turn {
  static constexpr bool used = config.turns == Turns::gemm;
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

// --------------------------------------------------------------------------------------------------------------------
// Consumers: each warpgroup owns 64 rows of the tile.

/// sign * S, and -inf where the row does not see the key. Row r of the thread is first_row + 8 r; the block begins at
/// first_key.
template <int columns>
HOPPER_FUNCTION void apply_mask(hopper::Accumulator<columns>& s, const ForwardArguments& args, int first_row,
                                int first_key) {
  HOPPER_UNROLL
  for (int r = 0; r < 2; ++r) {
    const Interval keys = args.mask.visible(first_row + 8 * r);
    const std::uint32_t word = visible_word({keys.first - first_key, keys.end - first_key}, 2 * (hopper::lane() % 4));
    HOPPER_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      HOPPER_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& x = s.value[4 * j + 2 * r + e];
        x = (word >> (2 * j + e)) & 1 ? x * args.scale.sign : -__builtin_inff();
      }
    }
  }
}

template <ForwardConfig config>
class Consumer {
 public:
  HOPPER_FUNCTION Consumer(Shared<config>& shared, const ForwardArguments& args, int warpgroup)
      : shared_(shared),
        args_(args),
        turn_(warpgroup),
        warpgroup_(warpgroup),
        stamp_(args.stamps, 1 + warpgroup, hopper::warp_of_warpgroup() == 0 && hopper::lane() == 0) {}

  HOPPER_FUNCTION void run() {
    for (;; ++q_) {
      shared_.q_full[q_.stage].wait(q_.phase);
      const Tile tile = hopper::load_shared(shared_.tile[q_.stage]);
      if (tile.first_row < 0) break;
      attend(tile);
    }
    turn_.finish();
    if (hopper::lane() == 0) hopper::store_wait_read<0>();
  }

 private:
  static constexpr hopper::Element element = config.element;
  using S = hopper::Accumulator<config.tile_kv>;  // 64 x B_c, f32
  using P = hopper::OperandA<config.tile_kv>;     // 64 x B_c, 16 bits
  using O = hopper::Accumulator<config.d_v>;      // 64 x d_v, f32

  /// Row r = 0 of this thread, in the tile.
  HOPPER_FUNCTION int my_row() const { return 64 * warpgroup_ + 16 * hopper::warp_of_warpgroup() + hopper::lane() / 4; }

  /// This warp is done with what `empty` guards.
  HOPPER_FUNCTION static void release(hopper::Mbarrier& empty) {
    hopper::warp_sync();
    if (hopper::lane() == 0) empty.arrive();
  }

  HOPPER_FUNCTION void issue_s(S& s) {
    shared_.k_full[k_.stage].wait(k_.phase);
    hopper::issue_abt<element>(s, shared_.q[q_.stage], 64 * warpgroup_, shared_.k[k_.stage]);
    hopper::wgmma_commit();
  }
  HOPPER_FUNCTION void issue_pv(O& o, const P& p) {
    shared_.v_full[v_.stage].wait(v_.phase);
    hopper::issue_ab<element>(o, p, shared_.v[v_.stage]);
    hopper::wgmma_commit();
  }
  HOPPER_FUNCTION void release_k() {
    release(shared_.k_empty[k_.stage]);
    ++k_;
  }
  HOPPER_FUNCTION void release_v() {
    release(shared_.v_empty[v_.stage]);
    ++v_;
  }

  /// Algorithm 2, the loop body: S, softmax and P of the next block around O += P V of this one.
  template <bool masked>
  HOPPER_FUNCTION void step(int first_row, int block, S& s, P& p, O& o, OnlineSoftmax& softmax) {
    stamp_(Mark::turn_wanted, block);
    turn_.take();
    stamp_(Mark::turn_taken, block);
    issue_s(s);  // [6] S(j+1) = Q K(j+1)^T
    stamp_(Mark::s_issued, block);
    issue_pv(o, p);  // [7] O += P(j) V(j)
    stamp_(Mark::pv_issued, block);
    turn_.pass();
    hopper::wgmma_wait<1>(s);
    stamp_(Mark::s_ready, block);
    release_k();
    if constexpr (masked) {
      apply_mask(s, args_, first_row, block * config.tile_kv);
    }
    hopper::wgmma_wait<0>(o);
    stamp_(Mark::o_ready, block);
    release_v();
    stamp_(Mark::softmax_begun, block);
    // [8] P(j+1) against the old m; [9] rarely against a new one. By the whole warp, because raise() exchanges maxima.
    while (hopper::warp_any(softmax.template exponentiate<element>(p, s))) rescale_rows(o, softmax.raise(s));
    softmax.accept();
    stamp_(Mark::softmax_done, block);
  }

  HOPPER_FUNCTION void attend(const Tile& tile) {
    const BlockWalk walk = walk_blocks<config>(args_, tile);
    const int first_row = tile.first_row + my_row();
    OnlineSoftmax softmax(args_.scale);
    O o{};
    if (walk.count() > 0) {
      S s;
      P p;
      // [4] [5] First block: S(0) = Q K(0)^T and its softmax; there is no O to rescale yet.
      const int block = walk.block(0);
      stamp_(Mark::turn_wanted, block);
      turn_.take();
      stamp_(Mark::turn_taken, block);
      issue_s(s);
      turn_.pass();
      hopper::wgmma_wait<0>(s);
      stamp_(Mark::s_ready, block);
      release_k();
      apply_mask(s, args_, first_row, block * config.tile_kv);
      stamp_(Mark::softmax_begun, block);
      softmax.raise(s);
      softmax.template exponentiate<element>(p, s);
      softmax.accept();
      stamp_(Mark::softmax_done, block);

      int i = 1;
      HOPPER_NO_UNROLL
      for (; i < walk.edges(); ++i) step<true>(first_row, walk.block(i), s, p, o, softmax);
      HOPPER_NO_UNROLL
      for (; i < walk.count(); ++i) step<false>(first_row, walk.block(i), s, p, o, softmax);

      // [11] Last block: O += P V.
      if constexpr (!config.o_over_q) {
        release(shared_.q_empty[q_.stage]);
      }
      stamp_(Mark::s_issued, 0);
      issue_pv(o, p);
      hopper::wgmma_wait<0>(o);
      stamp_(Mark::o_ready, 0);
      release_v();
    } else if constexpr (!config.o_over_q) {
      release(shared_.q_empty[q_.stage]);
    }
    store(o, softmax, tile);
  }

  /// [12] O / l and LSE to global memory. Each warp stages and stores its own 16 rows; only O over Q has to wait for
  /// the warpgroup.
  HOPPER_FUNCTION void store(O& o, const OnlineSoftmax& softmax, const Tile& tile) {
    auto& staged = shared_.o(q_.stage);
    if constexpr (config.o_over_q) {
      Shared<config>::rows(warpgroup_).sync();
    } else {
      if (hopper::lane() == 0) hopper::store_wait_read<0>();  // the previous tile's O has left
      hopper::warp_sync();
    }

    Rescale normalise;
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      OnlineSoftmax::Row row = softmax.finish(r);
      const int sequence_row = tile.first_row + my_row() + 8 * r;
      const Interval keys = args_.mask.visible(sequence_row);
      if (keys.first >= keys.end) {  // no key: O = 0 even if a NaN stood in a block the tile visited
        row = {0.0f, -__builtin_inff()};
        HOPPER_UNROLL
        for (int j = 0; j < config.d_v / 8; ++j) o.value[4 * j + 2 * r] = o.value[4 * j + 2 * r + 1] = 0.0f;
      }
      normalise.factor[r] = row.normalise;
      if (args_.lse != nullptr && hopper::lane() % 4 == 0 && sequence_row < args_.mask.seqlen_q) {
        args_.lse[tile.batch * args_.lse_stride[0] + tile.head * args_.lse_stride[1] +
                  sequence_row * args_.lse_stride[2]] = row.lse;
      }
    }
    rescale_rows(o, normalise);

    const int warp_row = 64 * warpgroup_ + 16 * hopper::warp_of_warpgroup();
    HOPPER_UNROLL
    for (int column = 0; column < config.d_v; column += 16) {
      std::uint32_t fragment[4];
      HOPPER_UNROLL
      for (int i = 0; i < 4; ++i)
        fragment[i] = hopper::pack2<element>(o.value[column / 2 + 2 * i], o.value[column / 2 + 2 * i + 1]);
      hopper::store_matrix(staged, warp_row, column, fragment);
    }
    hopper::fence_async_shared();
    hopper::warp_sync();
    if (hopper::lane() == 0) {
      hopper::store_rows(args_.o, {0, tile.first_row + warp_row, tile.head, tile.batch}, staged, warp_row);
      hopper::store_commit();
      if constexpr (config.o_over_q) {
        hopper::store_wait_read<0>();
        shared_.q_empty[q_.stage].arrive();
      }
    }
    hopper::warp_sync();
    stamp_(Mark::stored, 0);
  }

  Shared<config>& shared_;
  const ForwardArguments& args_;
  const Turn<config> turn_;
  const int warpgroup_;
  Cursor<config.q_buffers> q_;
  Cursor<config.stages> k_, v_;
  [[no_unique_address]] Stamps<config.trace> stamp_;
};

// --------------------------------------------------------------------------------------------------------------------
// The kernel body: the role split.

template <ForwardConfig config>
HOPPER_FUNCTION void forward(Shared<config>& shared, const ForwardArguments& args) {
  const int warpgroup = hopper::warpgroup();
  const bool leader = warpgroup == 0 && hopper::warp_of_warpgroup() == 0 && hopper::elect_one();
  if (leader) {
    hopper::prefetch(args.q);
    if (args.mask.seqlen_k > 0) {
      hopper::prefetch(args.k);
      hopper::prefetch(args.v);
    }
    hopper::prefetch(args.o);
    shared.init_barriers();
  }
  hopper::cta_sync();
  if (warpgroup == 0) {
    hopper::release_registers<config.producer_registers()>();
    if (leader) produce(shared, args);
  } else {
    hopper::claim_registers<config.consumer_registers()>();
    Consumer<config>(shared, args, warpgroup - 1).run();
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
