// The forward pass of e4m3 (paper, section 3.3). Producer, schedule and marks in brackets are those of forward.hpp;
// this is what differs:
//
// - The tensor core takes e4m3 operands only if they are contiguous along the depth, for P V along the keys. So three
//   warps beside the producer write V^T to shared memory, from which consumers take it; or it comes as V^T already
//   (transpose_values.hpp).
// - Of a block's 16 keys a thread has S of two and two neighbouring ones, where an A operand wants four neighbours. P
//   stays where it is: V^T has its keys in the order that fits. Likewise O's columns are in the order in which V^T is
//   written without bank conflicts, in which a thread has four neighbouring features.
// - The tensor core adds e4m3 products with few bits. A block's P V begins at 0, and is added to O in f32 with the
//   block's scale of V: two levels of sums, and scales of blocks at no cost. Those of Q and K are one factor of the
//   block's exponents.
//
// Inside a warpgroup, one step j -> j+1. P V comes in parts of pv_columns, each added under the next one, and the last
// one under S where there are registers for both. Warpgroups take turns for products, as in forward.hpp; a softmax runs
// under the products of the others only, of which there are two at most (docs/lab_book.md, 40 and 44).
//
//   GEMMs       [P(j) V(j)             ][S(j+1) = Q K(j+1)^T]
//   registers       [O += v_scale P(j) V(j)]                 [mask][P(j+1) = exp2(scale S(j+1) - m) in e4m3, sums]
//   releases                       V^T(j)                    K(j+1)
//   transposers [V^T(j+1) from V(j+1)]
#pragma once

#include "attention/forward_parts.hpp"
#include "attention/item_queue.hpp"
#include "attention/transpose_values.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// What the producer stores with a block of K.
template <ForwardConfig config>
HOPPER_FUNCTION auto scales_of_block(const ForwardArguments& args, const Tile& tile, int block) {
  const int kv_head = tile.head / args.group;
  return typename Shared<config>::BlockScales{args.k_scale.of(tile.batch, kv_head, block),
                                              args.v_scale.of(tile.batch, kv_head, block)};
}

// --------------------------------------------------------------------------------------------------------------------
// Transposers.

/// One warp of those that write V^T.
template <ForwardConfig config>
HOPPER_FUNCTION void run_transposer(Shared<config>& shared, int warp) {
  const TileTransposer<config.tile_kv, config.d_v, Shared<config>::transposer_warps> transposer(warp);
  for (Cursor<config.stages> at;; ++at) {
    shared.v_full[at.stage].wait(at.phase);
    if (hopper::load_shared(shared.vt_state.last[at.stage]) != 0) return;
    shared.vt_state.empty[at.stage].wait(at.phase ^ 1);
    transposer.transpose(shared.v[at.stage], shared.vt[at.stage]);
    hopper::fence_async_shared();
    release(shared.vt_state.full[at.stage]);
    release(shared.v_empty[at.stage]);
  }
}

/// After the producer's last block.
template <ForwardConfig config>
HOPPER_FUNCTION void end_transposers(Shared<config>& shared, Cursor<config.stages> at) {
  shared.v_empty[at.stage].wait(at.phase ^ 1);
  hopper::store_shared(shared.vt_state.last[at.stage], 1);
  shared.v_full[at.stage].arrive();
}

// --------------------------------------------------------------------------------------------------------------------
// Softmax.

/// As OnlineSoftmax, but P may be no more than 448, to which the conversion saturates. So the block's maximum is looked
/// at before; m still lags behind and O is rarely rescaled. A block has a scale of its own.
class Fp8Softmax {
 public:
  /// P = 2^(S * scale - m) in e4m3, as the A operand of P V; l grows by its sums before rounding.
  template <int columns>
  HOPPER_FUNCTION void exponentiate(hopper::OperandA<columns / 2>& p, const hopper::Accumulator<columns>& s,
                                    float scale) {
    float sum[2] = {0, 0};
    HOPPER_UNROLL
    for (int i = 0; i < columns / 8; ++i) {
      const int r = i % 2, j = i / 2 * 2;
      float x[4];
      HOPPER_UNROLL
      for (int e = 0; e < 4; ++e) {
        x[e] = hopper::exp2(hopper::fma(s.value[4 * (j + e / 2) + 2 * r + e % 2], scale, -m_[r]));
        sum[r] += x[e];
      }
      p.value[i] = hopper::pack4_e4m3(x[0], x[1], x[2], x[3]);
    }
    l_[0] += sum[0];
    l_[1] += sum[1];
  }

  /// If false no P of the two rows leaves the range of e4m3 (or it is NaN, as may be the row). Looks at scores above 0
  /// only, with half of the instructions; those below it matter only where m is small.
  template <int columns>
  HOPPER_FUNCTION bool may_outgrow(const hopper::Accumulator<columns>& s, float scale) {
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      largest_[r] = 0;
      HOPPER_UNROLL
      for (int j = 0; j < columns / 8; ++j)
        largest_[r] = hopper::maximum_from_0(largest_[r], s.value[4 * j + 2 * r], s.value[4 * j + 2 * r + 1]);
    }
    return outgrows(0, largest_[0] * scale) || outgrows(1, largest_[1] * scale);
  }
  /// As OnlineSoftmax::raise(), of the rows whose P would leave the range, after may_outgrow(). By the whole warp.
  template <int columns>
  HOPPER_FUNCTION Rescale raise(const hopper::Accumulator<columns>& s, float scale) {
    Rescale rescale;
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      float largest = hopper::quad_max(largest_[r]);
      if (hopper::warp_any(largest == 0)) largest = hopper::quad_max(largest_of(s, r));  // none above 0: the others
      const float m = outgrows(r, largest * scale) ? largest * scale - log2_largest : m_[r];
      rescale.factor[r] = m == m_[r] ? 1.0f : hopper::exp2(m_[r] - m);
      m_[r] = m;
      l_[r] *= rescale.factor[r];
    }
    return rescale;
  }

  struct Row {
    float normalise, lse;
  };
  HOPPER_FUNCTION Row finish(int r) const {
    constexpr float ln_2 = 0.693147180559945f;
    const float l = hopper::quad_sum(l_[r]);
    return {hopper::reciprocal(l), (m_[r] + hopper::log2(l)) * ln_2};
  }
  HOPPER_FUNCTION bool nothing_seen(int r) const { return m_[r] == unseen; }

 private:
  static constexpr float unseen = -0x1.fffffep127f;  // as in OnlineSoftmax
  // When m is set the largest P is 2^this: far enough below 448 that m is rarely raised, and far above 2^-6, where e4m3
  // begins to lose bits (docs/numerics.md).
  static constexpr float log2_largest = 6.0f;
  static constexpr float log2_most = 8.75f;  // 2^8.75 is a little below 432, from where the conversion rounds to 448
  HOPPER_FUNCTION bool outgrows(int r, float largest) const { return largest - m_[r] > log2_most; }

  float m_[2] = {unseen, unseen};
  float l_[2] = {0.0f, 0.0f};
  float largest_[2];  // of the block's scores above 0, this thread's share
};

// --------------------------------------------------------------------------------------------------------------------
// Consumers: each warpgroup owns 64 rows of the tile.

template <ForwardConfig config>
class Fp8Consumer {
 public:
  HOPPER_FUNCTION Fp8Consumer(Shared<config>& shared, const ForwardArguments& args, int warpgroup)
      : shared_(shared),
        args_(args),
        turn_(warpgroup),
        warpgroup_(warpgroup),
        warp_row_(64 * warpgroup + 16 * hopper::warp_of_warpgroup()) {}

  HOPPER_FUNCTION void run() {
    for (;; ++q_) {
      shared_.q_full[q_.stage].wait(q_.phase);
      const Tile tile = hopper::load_shared(shared_.tile[q_.stage]);
      if (tile.first_row < 0) break;
      attend(tile);
    }
    turn_.finish();
  }

 private:
  static constexpr hopper::Element element = config.element;
  static constexpr int parts = config.d_v / config.pv_columns;
  static constexpr int parts_at_once = parts > 1 ? 2 : 1;  // one is added under the next one's product
  // Whether there are registers for S of the next block beside the last part, O and P, and some for the rest.
  static constexpr bool s_under_pv = config.tile_kv / 2 + config.pv_columns / 2 + config.d_v / 2 + config.tile_kv / 8 <=
                                     config.consumer_registers() - 16;
  using S = hopper::Accumulator<config.tile_kv>;        // 64 x B_c, f32
  using P = hopper::OperandA<config.tile_kv / 2>;       // 64 x B_c, e4m3
  using O = hopper::Accumulator<config.d_v>;            // 64 x d_v, f32
  using Part = hopper::Accumulator<config.pv_columns>;  // of P V of a block
  using BlockScales = typename Shared<config>::BlockScales;

  HOPPER_FUNCTION int my_row() const { return warp_row_ + hopper::lane() / 4; }

  /// Returns the block's scales.
  HOPPER_FUNCTION BlockScales issue_s(S& s) {
    shared_.k_full[k_.stage].wait(k_.phase);
    const BlockScales scales = hopper::load_shared(shared_.scales[k_.stage]);
    hopper::issue_abt<element>(s, shared_.q[q_.stage], 64 * warpgroup_, shared_.k[k_.stage]);
    hopper::wgmma_commit();
    return scales;
  }
  HOPPER_FUNCTION void issue_pv(Part& pv, const P& p, int part) {
    hopper::issue_abt<element>(pv, p, shared_.v_operand(v_.stage).tile, config.pv_columns * part);
    hopper::wgmma_commit();
  }
  HOPPER_FUNCTION void release_k() {
    release(shared_.k_empty[k_.stage]);
    ++k_;
  }
  HOPPER_FUNCTION void release_v() {
    release(shared_.v_operand(v_.stage).empty);
    ++v_;
  }
  /// O += v_scale * P V, of one part.
  HOPPER_FUNCTION static void add(O& o, const Part& pv, int part, float v_scale) {
    HOPPER_UNROLL
    for (int i = 0; i < config.pv_columns / 2; ++i) {
      float& sum = o.value[config.pv_columns / 2 * part + i];
      sum = hopper::fma(v_scale, pv.value[i], sum);
    }
  }

  /// A block that other rows of the item need and this warpgroup's do not.
  HOPPER_FUNCTION void skip() {
    turn_.take();
    turn_.pass();
    shared_.k_full[k_.stage].wait(k_.phase);
    release_k();
    shared_.v_operand(v_.stage).full.wait(v_.phase);
    release_v();
  }

  /// [9] [10] P of the block.
  HOPPER_FUNCTION static void exponentiate(const S& s, float scale, P& p, O& o, Fp8Softmax& softmax) {
    if (hopper::warp_any(softmax.may_outgrow(s, scale))) rescale_rows(o, softmax.raise(s, scale));
    softmax.exponentiate(p, s, scale);
  }

  /// [7] [11] O += P V of the block, part by part. `issue_more`, after the last part, issues `more` groups of products.
  template <int more>
  HOPPER_FUNCTION void accumulate(O& o, const P& p, float v_scale, const auto& issue_more) {
    Part pv[parts_at_once];
    shared_.v_operand(v_.stage).full.wait(v_.phase);
    HOPPER_UNROLL
    for (int i = 0; i < parts_at_once - 1; ++i) issue_pv(pv[i], p, i);
    HOPPER_UNROLL
    for (int i = 0; i < parts; ++i) {
      const int ahead = i + parts_at_once - 1;
      if (ahead < parts) issue_pv(pv[ahead % parts_at_once], p, ahead);
      if (i + 1 == parts) {
        issue_more();
        hopper::wgmma_wait<more>(pv[i % parts_at_once]);
        release_v();
      } else {
        hopper::wgmma_wait<parts_at_once - 1>(pv[i % parts_at_once]);
      }
      add(o, pv[i % parts_at_once], i, v_scale);
    }
  }
  HOPPER_FUNCTION void accumulate(O& o, const P& p, float v_scale) {
    accumulate<0>(o, p, v_scale, [] {});
  }

  HOPPER_FUNCTION void attend(const Tile& tile) {
    const BlockWalk item = walk_item<config>(args_, tile);
    const BlockWalk mine =
        BlockWalk::of(args_.mask, tile.first_row + 64 * warpgroup_, 64, config.tile_kv, args_.scale.sign != 1.0f);
    Fp8Softmax softmax;
    O o{};
    int block = item.end - 1;
    HOPPER_NO_UNROLL
    for (; block >= maximum(mine.end, item.begin); --block) skip();
    if (!mine.empty()) {
      S s;
      P p;
      // Of rows that exist: there is no scale behind the last. A block of keys has as many rows as a scale.
      const float q_scale =
          args_.scale.scale_log2 *
          args_.q_scale.of(tile.batch, tile.head, (tile.first_row + 64 * warpgroup_) / config.tile_kv);
      // [4] [6] S of the block.
      BlockScales scales;
      const auto issue = [&] {
        scales = issue_s(s);
        turn_.pass();
      };
      turn_.take();
      issue();
      HOPPER_NO_UNROLL
      for (;;) {  // S of the block is in flight
        hopper::wgmma_wait<0>(s);
        release_k();
        if (mine.is_edge(block)) apply_mask(s, args_, tile.first_row + my_row(), block * config.tile_kv);  // [8]
        // At least the smallest normal number: times 0 the -inf of a masked score would be NaN.
        exponentiate(s, hopper::maximum(q_scale * scales.k, 0x1p-126f), p, o, softmax);  // [5] [9]
        if (--block < mine.begin) break;
        turn_.take();
        const float v_scale = scales.v;
        if constexpr (s_under_pv) {
          accumulate<1>(o, p, v_scale, issue);  // [7]
        } else {
          accumulate(o, p, v_scale);
          issue();
        }
      }
      release(shared_.q_empty[q_.stage]);
      accumulate(o, p, scales.v);  // [11]
    } else {
      release(shared_.q_empty[q_.stage]);
    }
    HOPPER_NO_UNROLL
    for (; block >= item.begin; --block) skip();
    const auto row_of = [&](int r) { return tile.first_row + my_row() + 8 * r; };
    float lse[2];
    normalise(o, lse, softmax, args_, row_of);
    store(o, tile);
    store_lse(lse, args_, tile, row_of);
  }

  /// A thread has four neighbouring features of every 16 (TileTransposer); a quad stores 32 bytes.
  HOPPER_FUNCTION void store(const O& o, const Tile& tile) const {
    const int first_column = 4 * (hopper::lane() % 4);
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = tile.first_row + my_row() + 8 * r;
      if (row >= args_.mask.seqlen_q) continue;
      std::uint16_t* const to = args_.o_data + tile.batch * args_.o_stride[0] + tile.head * args_.o_stride[1] +
                                row * args_.o_stride[2] + first_column;
      const auto store16 = [&](int column) {
        const float* const even = o.value + column / 2 + 2 * r;
        const float* const odd = even + 4;
        *reinterpret_cast<std::uint64_t*>(to + column) = pair(even[0], odd[0]) | std::uint64_t(pair(even[1], odd[1]))
                                                                                     << 32;
      };
      // Whole rows without a branch for every store.
      if (args_.o_columns == config.d_v) {
        HOPPER_UNROLL
        for (int column = 0; column < config.d_v; column += 16) store16(column);
      } else {
        HOPPER_UNROLL
        for (int column = 0; column < config.d_v; column += 16)
          if (column < args_.o_columns) store16(column);
      }
    }
  }
  HOPPER_FUNCTION std::uint32_t pair(float low, float high) const {
    return args_.bf16_output ? hopper::pack2<hopper::Element::bf16>(low, high)
                             : hopper::pack2<hopper::Element::f16>(low, high);
  }

  Shared<config>& shared_;
  const ForwardArguments& args_;
  const Turn<config, Turns::gemm> turn_;
  const int warpgroup_;
  const int warp_row_;  // the warp's first row in the tile
  Cursor<config.q_buffers> q_;
  Cursor<config.stages> k_, v_;
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
