// The forward pass: FlashAttention-3, Algorithm 1 (warp specialisation) and Algorithm 2 (overlap inside a warpgroup).
// Numbers in brackets are the steps of docs/algorithm.md.
//
// One CTA works on tiles of B_r query rows of one head, B_c keys at a time. Below, row f16_d128 with five key blocks (4
// down to 0) as `fa3 trace --text` draws it from the simulator; a character is 64 cycles. S4 = Q K(4)^T and PV4 = P(4)
// V(4) are warpgroup 1's, those with a prime warpgroup 2's. A warpgroup issues S(j+1) and PV(j) together, in its turn
// (Algorithm 2); its softmax of S(j+1) then runs under the other's GEMMs (ping-pong). The producer, warpgroup 0, loads
// Q, K4, K3, V4, K2, V3, ..: K one block ahead of V.
//
//   tensor core  [S4    ][S4'   ]  [S3    ][PV4   ][S3'   ][PV4'  ][S2    ][PV3   ][S2'   ][PV3'  ][S1    ][PV2   ]
//   warpgroup 1          [softmax ]                [softmax]                       [softmax]
//   warpgroup 2                  [softmax ]                        [softmax]                       [softmax]
//
// Inside a warpgroup, one step j -> j+1. It takes no row maxima: m is that of earlier blocks (online_softmax.hpp).
//
//   GEMMs       [S(j+1) = Q K(j+1)^T][O += P(j) V(j)]
//   registers                         [mask, at edges][P(j+1) = exp2(S(j+1) - m) in 16 bits, sums; rarely a new m]
//   releases                          K(j+1)          V(j)
#pragma once

#include "attention/arguments.hpp"
#include "attention/config.hpp"
#include "attention/forward_fp8.hpp"
#include "attention/forward_parts.hpp"
#include "attention/item_queue.hpp"
#include "attention/online_softmax.hpp"
#include "attention/prefetch.hpp"
#include "attention/shared.hpp"
#include "attention/stamps.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

// --------------------------------------------------------------------------------------------------------------------
// Producer: one thread. Where S of the next block goes beside P V, K runs one block ahead of V, because a consumer
// needs K(j+1) before it needs V(j).

template <ForwardConfig config>
HOPPER_FUNCTION void produce(Shared<config>& shared, const ForwardArguments& args) {
  using QTile = typename Shared<config>::QTile;
  Cursor<config.q_buffers> q;
  Cursor<config.stages> k, v;
  Stamps<config.trace> stamp(args.stamps, 0, true);

  const auto load = [&](auto& tile, const hopper::TensorMap& map, const hopper::Coordinates& at,
                        hopper::Mbarrier& full) {
    if constexpr (config.cluster > 1) {
      hopper::load_tile_multicast<config.cluster>(tile, map, at, full);
    } else {
      hopper::load_tile(tile, map, at, full);
    }
  };
  const auto load_block = [&](auto& ring, const hopper::TensorMap& map, auto& empty, auto& full, auto& at,
                              const Tile& tile, int block) {
    empty[at.stage].wait(at.phase ^ 1);
    full[at.stage].arrive_expect_bytes(sizeof(ring[0]));
    load(ring[at.stage], map, {0, block * config.tile_kv, tile.head / args.group, tile.batch}, full[at.stage]);
    ++at;
  };
  const auto load_k = [&](const Tile& tile, int block) {
    load_block(shared.k, args.k, shared.k_empty, shared.k_full, k, tile, block);
    stamp(Mark::load_k, block);
  };
  const auto load_v = [&](const Tile& tile, int block) {
    load_block(shared.v, args.v, shared.v_empty, shared.v_full, v, tile, block);
    stamp(Mark::load_v, block);
  };

  for (ItemQueue<config> queue(shared, args);; ++q) {
    // [1] Take the next item; the record of this CTA's tile travels with Q.
    const bool stop = queue.item() >= args.order.count();
    Tile tile = stop ? Tile{-1, 0, 0} : args.order.item(queue.item());
    if constexpr (config.cluster > 1) {
      if (!stop) tile.first_row += hopper::cluster_rank() * config.tile_q;
    }
    shared.q_empty[q.stage].wait(q.phase ^ 1);
    hopper::store_shared(shared.tile[q.stage], tile);
    if (stop) {
      shared.q_full[q.stage].arrive();
      return;
    }
    // [2] Load Q.
    shared.q_full[q.stage].arrive_expect_bytes(QTile::bytes);
    hopper::load_tile(shared.q[q.stage], args.q, {0, tile.first_row, tile.head, tile.batch}, shared.q_full[q.stage]);
    queue.ask();

    // [3] Load the K and V blocks through the ring.
    const BlockWalk walk = walk_item<config>(args, tile);
    for (int block = walk.end - 1; block >= walk.begin; --block) {
      load_k(tile, block);
      if constexpr (config.pipeline == Pipeline::none) {
        load_v(tile, block);
      } else if (block + 1 < walk.end) {
        load_v(tile, block + 1);
      }
    }
    if constexpr (config.pipeline != Pipeline::none) {
      if (!walk.empty()) load_v(tile, walk.begin);
    }
    queue.receive();
  }
}

// --------------------------------------------------------------------------------------------------------------------
// Consumers: each warpgroup owns 64 rows of the tile.

/// O / l, and the LSE of this thread's rows; row_of(r) is row r of the sequence.
template <int columns, class Softmax>
HOPPER_FUNCTION void normalise(hopper::Accumulator<columns>& o, float (&lse)[2], const Softmax& softmax,
                               const ForwardArguments& args, const auto& row_of) {
  Rescale normalise;
  HOPPER_UNROLL
  for (int r = 0; r < 2; ++r) {
    typename Softmax::Row row = softmax.finish(r);
    if (softmax.nothing_seen(r)) {
      const Interval keys = args.mask.visible(row_of(r));
      if (keys.first >= keys.end) {  // no key: O = 0 even if a NaN stood in a block the tile visited
        row = {0.0f, -__builtin_inff()};
        HOPPER_UNROLL
        for (int j = 0; j < columns / 8; ++j) o.value[4 * j + 2 * r] = o.value[4 * j + 2 * r + 1] = 0.0f;
      }
    }
    normalise.factor[r] = row.normalise;
    lse[r] = row.lse;
  }
  rescale_rows(o, normalise);
}

template <ForwardConfig config>
class Consumer {
 public:
  HOPPER_FUNCTION Consumer(Shared<config>& shared, const ForwardArguments& args, int warpgroup)
      : shared_(shared),
        args_(args),
        turn_(warpgroup),
        softmax_turn_(warpgroup),
        warpgroup_(warpgroup),
        warp_row_(64 * warpgroup + 16 * hopper::warp_of_warpgroup()),
        prefetch_(shared, args, warpgroup),
        stamp_(args.stamps, 1 + warpgroup, hopper::warp_of_warpgroup() == 0 && hopper::lane() == 0) {}

  HOPPER_FUNCTION void run() {
    for (;; ++q_) {
      prefetch_.begin_tile();
      shared_.q_full[q_.stage].wait(q_.phase);
      const Tile tile = hopper::load_shared(shared_.tile[q_.stage]);
      if (tile.first_row < 0) break;
      attend(tile);
      prefetch_.end_tile();
    }
    turn_.finish();
    softmax_turn_.finish();
    if (hopper::lane() == 0) hopper::store_wait_read<0>();
  }

 private:
  static constexpr hopper::Element element = config.element;
  using S = hopper::Accumulator<config.tile_kv>;  // 64 x B_c, f32
  using P = hopper::OperandA<config.tile_kv>;     // 64 x B_c, 16 bits
  using O = hopper::Accumulator<config.d_v>;      // 64 x d_v, f32

  /// Row r = 0 of this thread, in the tile.
  HOPPER_FUNCTION int my_row() const { return warp_row_ + hopper::lane() / 4; }

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
    release_to_cluster<config.cluster>(shared_.k_empty[k_.stage]);
    ++k_;
    prefetch_.k_released();
  }
  HOPPER_FUNCTION void release_v() {
    release_to_cluster<config.cluster>(shared_.v_empty[v_.stage]);
    ++v_;
  }

  /// Where O is staged over Q, the store releases both.
  HOPPER_FUNCTION void release_q() {
    if constexpr (config.output != Output::over_q) {
      release(shared_.q_empty[q_.stage]);
    }
  }

  /// A block that other rows of the item need and this warpgroup's do not.
  HOPPER_FUNCTION void skip() {
    turn_.take();
    turn_.pass();
    softmax_turn_.take();
    softmax_turn_.pass();
    shared_.k_full[k_.stage].wait(k_.phase);
    release_k();
    shared_.v_full[v_.stage].wait(v_.phase);
    release_v();
  }

  /// P(j+1) against the m of earlier blocks, and rarely again with a new one: by the whole warp, because raise()
  /// exchanges maxima.
  template <class Sums>
  HOPPER_FUNCTION void exponentiate(int block, const S& s, P& p, Sums& o, OnlineSoftmax& softmax) {
    softmax_turn_.take();
    stamp_(Mark::softmax_begun, block);
    if constexpr (config.maximum == Maximum::before) {
      rescale_rows(o, softmax.rescale());
      softmax.template exponentiate<element>(p, s);
    } else {
      while (hopper::warp_any(softmax.template exponentiate<element>(p, s))) rescale_rows(o, softmax.raise(s));  // [10]
    }
    softmax.accept();
    stamp_(Mark::softmax_done, block);
    softmax_turn_.pass();
  }
  /// Maximum::before: a new m for the block, under its P V; exponentiate() rescales O.
  HOPPER_FUNCTION static void raise_before(const S& s, OnlineSoftmax& softmax) {
    if constexpr (config.maximum == Maximum::before) softmax.follow(s);
  }

  /// Algorithm 2, the loop body: S of the next block beside O += P V of this one, then P of the next.
  template <class MaskBlock>
  HOPPER_FUNCTION void step(int block, S& s, P& p, O& o, OnlineSoftmax& softmax, const MaskBlock& mask_block) {
    if constexpr (config.pipeline == Pipeline::none) return step_alone(block, s, p, o, softmax, mask_block);
    stamp_(Mark::turn_wanted, block);
    turn_.take();
    stamp_(Mark::turn_taken, block);
    issue_s(s);  // [6] S(j+1) = Q K(j+1)^T
    stamp_(Mark::s_issued, block);
    issue_pv(o, p);  // [7] O += P(j) V(j)
    turn_.pass();
    hopper::wgmma_wait<1>(s);
    stamp_(Mark::s_ready, block);
    release_k();
    mask_block();  // [8]
    raise_before(s, softmax);
    hopper::wgmma_wait<0>(o);
    stamp_(Mark::o_ready, block);
    release_v();
    exponentiate(block, s, p, o, softmax);  // [9]
  }

  /// [11] Last block: O += P V.
  HOPPER_FUNCTION void accumulate_last(O& o, const P& p) {
    stamp_(Mark::s_issued, 0);
    issue_pv(o, p);
    hopper::wgmma_wait<0>(o);
    stamp_(Mark::o_ready, 0);
    release_v();
  }

  HOPPER_FUNCTION void attend(const Tile& tile) {
    const BlockWalk item = walk_item<config>(args_, tile);
    const BlockWalk mine =
        BlockWalk::of(args_.mask, tile.first_row + 64 * warpgroup_, 64, config.tile_kv, args_.scale.sign != 1.0f);
    OnlineSoftmax softmax(args_.scale);
    O o{};
    int block = item.end - 1;
    HOPPER_NO_UNROLL
    for (; block >= maximum(mine.end, item.begin); --block) skip();
    if constexpr (config.pipeline == Pipeline::three_stage) {
      if (!mine.empty()) three_stages(tile, mine, block, o, softmax);
      release_q();
    } else if (!mine.empty()) {
      S s;
      P p;
      const auto mask = [&] { apply_mask(s, args_, tile.first_row + my_row(), block * config.tile_kv); };
      // [4] [5] First block: S(0) = Q K(0)^T and its softmax.
      stamp_(Mark::turn_wanted, block);
      turn_.take();
      stamp_(Mark::turn_taken, block);
      issue_s(s);
      turn_.pass();
      hopper::wgmma_wait<0>(s);
      stamp_(Mark::s_ready, block);
      release_k();
      if (mine.is_edge(block)) mask();
      softmax.begin(s);
      raise_before(s, softmax);
      exponentiate(block, s, p, o, softmax);
      --block;

      if constexpr (config.edges == Edges::branch) {
        HOPPER_NO_UNROLL
        for (; block >= mine.begin; --block) {
          step(block, s, p, o, softmax, [&] {
            if (mine.is_edge(block)) mask();
          });
        }
      } else {
        // Why a loop: one copy of each body. Right edge and whole blocks, then, only if the mask has one, the left
        // edge.
        HOPPER_NO_UNROLL
        for (int left = 0; left < 2; ++left) {
          HOPPER_NO_UNROLL
          for (; block >= (left ? mine.begin : mine.full_end); --block) step(block, s, p, o, softmax, mask);
          HOPPER_NO_UNROLL
          for (; block >= (left ? mine.begin : mine.full_begin); --block) step(block, s, p, o, softmax, [] {});
        }
      }

      release_q();
      accumulate_last(o, p);
    } else {
      release_q();
    }
    HOPPER_NO_UNROLL
    for (; block >= item.begin; --block) skip();
    store(o, softmax, tile);
  }

  /// [12] O / l and LSE to global memory.
  HOPPER_FUNCTION void store(O& o, const OnlineSoftmax& softmax, const Tile& tile) {
    const auto row_of = [&](int r) { return tile.first_row + my_row() + 8 * r; };
    float lse[2];
    normalise(o, lse, softmax, args_, row_of);
    if constexpr (config.output == Output::by_registers) {
      store_from_registers(o, tile);
    } else {
      store_through_shared(o, tile);
    }
    store_lse(lse, args_, tile, row_of);
  }

  /// Each warp stages and stores its own 16 rows; only O over Q has to wait for the warpgroup.
  HOPPER_FUNCTION void store_through_shared(const O& o, const Tile& tile) {
    auto& staged = shared_.o(q_.stage);
    if constexpr (config.output == Output::over_q) {
      Shared<config>::rows(warpgroup_).sync();
    } else {
      if (hopper::lane() == 0) hopper::store_wait_read<0>();  // the previous tile's O has left
      hopper::warp_sync();
    }
    stage_rows<element>(staged, warp_row_, o);
    if (hopper::lane() == 0) {
      hopper::store_rows(args_.o, {0, tile.first_row + warp_row_, tile.head, tile.batch}, staged, warp_row_);
      hopper::store_commit();
      if constexpr (config.output == Output::over_q) {
        hopper::store_wait_read<0>();
        shared_.q_empty[q_.stage].arrive();
      }
    }
    hopper::warp_sync();
  }

  /// Lanes 2 i and 2 i + 1 exchange halves of two neighbouring groups of eight columns, so that a quad stores 32 bytes
  /// of a row, eight from each lane: whole sectors of L2.
  HOPPER_FUNCTION void store_from_registers(const O& o, const Tile& tile) {
    const bool odd = hopper::lane() % 2 == 1;
    // Of the pair of groups at column c, this lane stores columns c + 8 odd + 4 (lane / 2 % 2) + 0..3.
    const int first_column = 8 * (hopper::lane() % 2) + 4 * (hopper::lane() / 2 % 2);
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = tile.first_row + my_row() + 8 * r;
      std::uint16_t* const to = args_.o_data + tile.batch * args_.o_stride[0] + tile.head * args_.o_stride[1] +
                                row * args_.o_stride[2] + first_column;
      HOPPER_UNROLL
      for (int column = 0; column < config.d_v; column += 16) {
        const float* const first = o.value + column / 2 + 2 * r;
        const std::uint32_t even_group = hopper::pack2<element>(first[0], first[1]);
        const std::uint32_t odd_group = hopper::pack2<element>(first[4], first[5]);
        const std::uint32_t theirs = hopper::from_neighbour(odd ? even_group : odd_group);
        const std::uint64_t value =
            odd ? std::uint64_t(odd_group) << 32 | theirs : std::uint64_t(theirs) << 32 | even_group;
        if (row < args_.mask.seqlen_q && column + first_column < args_.o_columns)
          *reinterpret_cast<std::uint64_t*>(to + column) = value;
      }
    }
  }

  // Ways not taken by the product (kernels/ablation.hpp).

  /// As issue_s, for the block after the next one to be released.
  HOPPER_FUNCTION void issue_s_ahead(S& s) {
    Cursor<config.stages> k = k_;
    ++k;
    shared_.k_full[k.stage].wait(k.phase);
    hopper::issue_abt<element>(s, shared_.q[q_.stage], 64 * warpgroup_, shared_.k[k.stage]);
    hopper::wgmma_commit();
  }

  /// Algorithm 1 instead: each of the three alone.
  template <class MaskBlock>
  HOPPER_FUNCTION void step_alone(int block, S& now, P& p, O& o, OnlineSoftmax& softmax, const MaskBlock& mask_block) {
    turn_.take();
    issue_pv(o, p);
    hopper::wgmma_wait<0>(o);
    release_v();
    issue_s(now);
    turn_.pass();
    hopper::wgmma_wait<0>(now);
    release_k();
    mask_block();
    raise_before(now, softmax);
    exponentiate(block, now, p, o, softmax);
  }

  /// Three stages (appendix B.3): all blocks from `block` down to mine.begin; `block` becomes mine.begin - 1.
  HOPPER_FUNCTION void three_stages(const Tile& tile, const BlockWalk& mine, int& block, O& o, OnlineSoftmax& softmax) {
    S s0, s1;
    P p0, p1;
    const auto mask = [&](S& s, int at) {
      if (mine.is_edge(at)) apply_mask(s, args_, tile.first_row + my_row(), at * config.tile_kv);
    };
    turn_.take();
    issue_s(s0);
    turn_.pass();
    hopper::wgmma_wait<0>(s0);
    release_k();
    mask(s0, block);
    softmax.begin(s0);
    exponentiate(block, s0, p0, o, softmax);
    if (--block < mine.begin) return accumulate_last(o, p0);
    turn_.take();
    issue_s(s1);
    turn_.pass();
    // Twice per round, so that scores and P change places without being copied.
    HOPPER_NO_UNROLL
    for (;;) {
      if (--block < mine.begin) return drain(mine.begin, s1, p0, p1, o, softmax, mask);
      step_ahead(block + 1, s1, s0, p0, p1, o, softmax, mask);
      if (--block < mine.begin) return drain(mine.begin, s0, p1, p0, o, softmax, mask);
      step_ahead(block + 1, s0, s1, p1, p0, o, softmax, mask);
    }
  }
  /// P of block `block`, whose scores `now` are in flight, under O += P V of the block before it and S of the one
  /// behind it, which goes to `next`.
  template <class MaskBlock>
  HOPPER_FUNCTION void step_ahead(int block, S& now, S& next, P& p, P& p_next, O& o, OnlineSoftmax& softmax,
                                  const MaskBlock& mask) {
    turn_.take();
    issue_pv(o, p);
    issue_s_ahead(next);
    turn_.pass();
    hopper::wgmma_wait<2>(now);
    exponentiate_under_pv<1>(block, now, p_next, o, softmax, mask);
  }
  /// The same for the last block, and its P V.
  template <class MaskBlock>
  HOPPER_FUNCTION void drain(int block, S& now, P& p, P& p_next, O& o, OnlineSoftmax& softmax, const MaskBlock& mask) {
    issue_pv(o, p);
    hopper::wgmma_wait<1>(now);
    exponentiate_under_pv<0>(block, now, p_next, o, softmax, mask);
    accumulate_last(o, p_next);
  }
  /// `later`: products issued after P V.
  template <int later, class MaskBlock>
  HOPPER_FUNCTION void exponentiate_under_pv(int block, S& now, P& p_next, O& o, OnlineSoftmax& softmax,
                                             const MaskBlock& mask) {
    release_k();
    mask(now, block);
    PostponedRescale o_in_flight;
    exponentiate(block, now, p_next, o_in_flight, softmax);
    hopper::wgmma_wait<later>(o);
    release_v();
    if (o_in_flight.wanted) rescale_rows(o, o_in_flight.rescale);
  }
  Shared<config>& shared_;
  const ForwardArguments& args_;
  const Turn<config, Turns::gemm> turn_;
  const Turn<config, Turns::softmax> softmax_turn_;
  const int warpgroup_;
  const int warp_row_;  // the warp's first row in the tile
  Cursor<config.q_buffers> q_;
  Cursor<config.stages> k_, v_;
  [[no_unique_address]] Prefetch<config> prefetch_;
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
  if constexpr (config.cluster > 1) {
    hopper::cluster_sync();
  } else {
    hopper::cta_sync();
  }
  if constexpr (config.loads == Loads::consumer) {
    Consumer<config>(shared, args, warpgroup).run();
  } else if (warpgroup == 0) {
    hopper::release_registers<config.producer_registers()>();
    if (leader) {
      if constexpr (config.fp8()) {
        Fp8Producer<config>(shared, args).run();
      } else {
        produce(shared, args);
      }
    }
    if constexpr (config.transposes_v()) {
      const int transposer = hopper::warp_of_warpgroup() - 1;
      static_assert(Shared<config>::transposer_warps == 3);
      if (transposer >= 0) run_transposer(shared, transposer);
    }
  } else {
    hopper::claim_registers<config.consumer_registers()>();
    if constexpr (config.fp8()) {
      Fp8Consumer<config>(shared, args, warpgroup - 1).run();
    } else {
      Consumer<config>(shared, args, warpgroup - 1).run();
    }
  }
  if constexpr (config.cluster > 1) {
    hopper::warp_sync();
    hopper::cluster_sync();  // the peer may still write to this CTA and arrive on its barriers
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
