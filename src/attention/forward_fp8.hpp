// The forward pass of e4m3 (paper, section 3.3). Schedule and marks in brackets are those of forward.hpp; this is what
// differs:
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
// - Of narrow q, k and v (fa3.h) it adds in f16 where config.f16_sums says so. S and the parts of P V take half of the
//   registers then, and the softmax goes by pairs (docs/lab_book.md, 52).
// - There is no shared memory for O. It is staged in the ring of V^T, where each warpgroup has a turn after a tile's
//   blocks, or stored from registers (Output; output_fp8.hpp).
//
// Inside a warpgroup, one step j -> j+1. P V comes in parts of pv_columns, each added under the next one, and the last
// one under S where there are registers for both. Warpgroups take turns for products, as in forward.hpp, or, where
// config.turns says so, run freely; a softmax runs under the products of the others only, of which there are three at
// d = 64, two up to d_v = 128 and one beyond (docs/lab_book.md, 40, 44 and 48).
//
//   GEMMs       [P(j) V(j)             ][S(j+1) = Q K(j+1)^T]
//   registers       [O += v_scale P(j) V(j)]                 [mask][P(j+1) = exp2(scale S(j+1) - m) in e4m3, sums]
//   releases                       V^T(j)                    K(j+1)
//   transposers [V^T(j+1) from V(j+1)]
//
// At a tile's end no other product is left to work under, so what can be done earlier is (docs/lab_book.md, 50; in rows
// that have something else to do under S the blocks are counted behind P V):
//
//   GEMMs       [S(last)              ]          [P(last) V(last)       ]
//   registers   [the next tile's blocks][P(last)][1 / l; O / l, by parts][O staged, stored]
#pragma once

#include "attention/forward_parts.hpp"
#include "attention/item_queue.hpp"
#include "attention/output_fp8.hpp"
#include "attention/transpose_values.hpp"
#include "fa3/fa3.h"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

// --------------------------------------------------------------------------------------------------------------------
// Producer: one thread. As that of 16 bits, but V of a block comes before K of the next, as P V does here before S; the
// first K of a tile before its Q, whose buffer may be in use for longer; and scales are read while TMA loads, those of
// Q beside the first K. A tile's record is written before its Q is asked for, so that consumers know its blocks when
// they get there. They may hold Q and the last K of the tile before until it comes: so it must not wait for that Q, and
// there are at least two stages.

template <ForwardConfig config>
class Fp8Producer {
 public:
  HOPPER_FUNCTION Fp8Producer(Shared<config>& shared, const ForwardArguments& args) : shared_(shared), args_(args) {}

  HOPPER_FUNCTION void run() {
    ItemQueue<config> queue(shared_, args_);
    for (; queue.item() < args_.items(); ++q_) {
      // [1] Take the next item.
      const Item tile = args_.item(queue.item());
      const BlockWalk walk = walk_item<config>(args_, tile);
      // [2] Load Q, beside the first K.
      const Record record = describe(tile);
      if (!walk.empty()) ask_for_k(tile, walk.end - 1);
      post(record);
      ask_for_q(tile);
      if (!walk.empty()) describe_k(tile, walk.end - 1);
      turns_for_o();
      // [3] Load V of all blocks and K of the others through the rings. The next item is asked for near the end: a CTA
      // that asks early has it long before it can begin, while others run out of items.
      if (walk.empty()) queue.ask();
      const int ask_at = minimum(walk.begin + blocks_ahead, walk.end - 1);
      for (int block = walk.end - 1; block >= walk.begin; --block) {
        if (block == ask_at) queue.ask();
        load_v(tile, block, block == walk.begin ? VTurn::last_block : VTurn::block);
        if (block > walk.begin) load_k(tile, block - 1);
      }
      if constexpr (config.transposes_v() && config.output == Output::in_v_ring) {
        if (walk.empty()) turn_without_block(VTurn::no_block);
      }
      o_comes_ = true;
    }
    post({{{-1, 0, 0}, 0}, {}});
    turns_for_o();
    if constexpr (config.transposes_v()) turn_without_block(VTurn::end);
  }

 private:
  using Record = typename Shared<config>::Record;
  // From the block with which the next item is asked for to the last one; the answer takes less than a block.
  static constexpr int blocks_ahead = 3;

  HOPPER_FUNCTION Record describe(const Item& tile) const {
    Record record{tile, {}};
    HOPPER_UNROLL
    for (int w = 0; w < config.consumer_warpgroups(); ++w) {
      // Of rows that exist: there is no scale behind the last. A block of keys has as many rows as a scale.
      const int row = minimum(tile.first_row + 64 * w, args_.mask.seqlen_q - 1);
      record.q_scale[w] = args_.q_scale.of(tile.batch, tile.head, row / config.tile_kv);
    }
    return record;
  }
  HOPPER_FUNCTION void post(const Record& record) {
    hopper::store_shared(shared_.record.of[record_.stage], record);
    shared_.record.full[record_.stage].arrive();
    ++record_;
  }
  HOPPER_FUNCTION void ask_for_q(const Tile& tile) {
    shared_.q_empty[q_.stage].wait(q_.phase ^ 1);
    shared_.q_full[q_.stage].arrive_expect_bytes(Shared<config>::QTile::bytes);
    hopper::load_tile(shared_.q[q_.stage], args_.q, {0, tile.first_row, tile.head, tile.batch},
                      shared_.q_full[q_.stage]);
  }
  HOPPER_FUNCTION void load_k(const Tile& tile, int block) {
    ask_for_k(tile, block);
    describe_k(tile, block);
  }
  HOPPER_FUNCTION void ask_for_k(const Tile& tile, int block) {
    shared_.k_empty[k_.stage].wait(k_.phase ^ 1);
    shared_.k_full[k_.stage].arrive_expect_bytes(Shared<config>::KTile::bytes);
    hopper::load_tile(shared_.k[k_.stage], args_.k, {0, block * config.tile_kv, tile.head / args_.group, tile.batch},
                      shared_.k_full[k_.stage]);
  }
  HOPPER_FUNCTION void describe_k(const Tile& tile, int block) {
    const int kv_head = tile.head / args_.group;
    const typename Shared<config>::BlockScales scales{args_.k_scale.of(tile.batch, kv_head, block),
                                                      args_.v_scale.of(tile.batch, kv_head, block)};
    hopper::store_shared(shared_.scales[k_.stage], scales);
    shared_.k_full[k_.stage].arrive();
    ++k_;
  }
  HOPPER_FUNCTION void load_v(const Tile& tile, int block, VTurn turn) {
    const int key = block * config.tile_kv, kv_head = tile.head / args_.group;
    begin_turn(turn);
    shared_.v_full[v_.stage].arrive_expect_bytes(Shared<config>::VTile::bytes);
    hopper::load_tile(shared_.v[v_.stage], args_.v,
                      config.v_is_transposed ? hopper::Coordinates{key / 2, 0, kv_head, tile.batch}
                                             : hopper::Coordinates{0, key, kv_head, tile.batch},
                      shared_.v_full[v_.stage]);
    ++v_;
  }
  HOPPER_FUNCTION void begin_turn(VTurn turn) {
    shared_.v_empty[v_.stage].wait(v_.phase ^ 1);
    if constexpr (config.transposes_v()) hopper::store_shared(shared_.vt_state.turn[v_.stage], turn);
  }
  HOPPER_FUNCTION void turn_without_block(VTurn turn) {
    begin_turn(turn);
    shared_.v_full[v_.stage].arrive();
    ++v_;
  }
  /// The turns for O of the tile before, where the ring of V^T is filled from here. Behind the first K and Q of this
  /// one, which must not wait for them: consumers end such a turn when they have issued the next tile's first S.
  HOPPER_FUNCTION void turns_for_o() {
    if constexpr (config.v_is_transposed && config.output == Output::in_v_ring) {
      for (int w = 0; o_comes_ && w < config.consumer_warpgroups(); ++w) turn_without_block(VTurn::no_block);
    }
  }

  Shared<config>& shared_;
  const ForwardArguments& args_;
  bool o_comes_ = false;
  Cursor<config.q_buffers> q_;
  Cursor<Shared<config>::records> record_;
  Cursor<config.stages> k_, v_;
};

// --------------------------------------------------------------------------------------------------------------------
// Transposers.

/// One warp of those that write V^T.
template <ForwardConfig config>
HOPPER_FUNCTION void run_transposer(Shared<config>& shared, int warp) {
  const TileTransposer<config.tile_kv, config.d_v, Shared<config>::transposer_warps> transposer(warp);
  Cursor<config.stages> v, vt;
  for (;; ++v) {
    shared.v_full[v.stage].wait(v.phase);
    const VTurn turn = hopper::load_shared(shared.vt_state.turn[v.stage]);
    if (turn == VTurn::end) return;
    if (turn != VTurn::no_block) {
      shared.vt_state.empty[vt.stage].wait(vt.phase ^ 1);
      transposer.transpose(shared.v[v.stage], shared.vt[vt.stage]);
      hopper::fence_async_shared();
      release(shared.vt_state.full[vt.stage]);
      ++vt;
    }
    release(shared.v_empty[v.stage]);
    if constexpr (config.output == Output::in_v_ring) {
      if (turn == VTurn::block) continue;
      for (int w = 0; w < config.consumer_warpgroups(); ++w) {  // turns for O
        shared.vt_state.empty[vt.stage].wait(vt.phase ^ 1);
        release(shared.vt_state.full[vt.stage]);
        ++vt;
      }
    }
  }
}

// --------------------------------------------------------------------------------------------------------------------
// Softmax.

/// The largest of a row's scores; -inf if all are NaN.
template <int columns>
HOPPER_FUNCTION float largest_of(const hopper::HalfAccumulator<columns>& s, int r) {
  std::uint32_t largest = 0xfc00fc00u;
  HOPPER_UNROLL
  for (int j = 0; j < columns / 8; ++j) largest = hopper::pair_maximum(largest, s.value[2 * j + r]);
  float low, high;
  hopper::unpack2<hopper::Element::f16>(largest, low, high);
  return hopper::maximum(low, high);
}

constexpr std::uint32_t same_pair(std::uint32_t half) { return half << 16 | half; }

/// pair_exp2() with no instruction of the exponential unit. Relative error 2^-8.7 from 2^-14 on; below it goes to 0,
/// which it is from 2^-15 on.
HOPPER_FUNCTION std::uint32_t pair_exp2_by_polynomial(std::uint32_t x) {
  x = hopper::pair_clamp(x, same_pair(0xcb80), same_pair(0x4c00));  // -15, 16
  // x = n + f, |f| <= 1/2. Numbers from 1024 to 2048 are whole, so that `turned` is 1055 - n, its lowest bits 31 - n.
  const std::uint32_t turned = hopper::pair_fma(x, same_pair(0xbc00), same_pair(0x641f));  // -1, 1055
  const std::uint32_t f = hopper::pair_sum(x, hopper::pair_sum(turned, same_pair(0xe41f)));
  // 1 + 0.703 f + 0.24 f^2
  const std::uint32_t power =
      hopper::pair_fma(hopper::pair_fma(f, same_pair(0x33ae), same_pair(0x39a0)), f, same_pair(0x3c00));
  // n is added to the exponents, which are 10 bits up: n = 31 - (31 - n), in both halves; and what the low half of
  // `turned` puts into the high one is constant (but of NaN, which makes a NaN of the row whatever the other is). Why
  // turned: so NaN, all ones but the sign, stays one.
  return power - (turned << 10) + (same_pair(31 << 10) + (0x6400u << 10));
}

/// As OnlineSoftmax, but P may be no more than 448, to which the conversion saturates. So the block's maximum is looked
/// at before; m still lags behind and O is rarely rescaled. A block has a scale of its own.
///
/// With f16_sums all of it but l and O is in f16, two keys at a time; m and the scale are numbers of f16, so that the
/// exponents are rounded once. Not for scores beyond 8192 (log2), where m is rounded by more than P has room for. One
/// pair in pairs_per_polynomial is exponentiated by a polynomial, if that is not 0; with 16 all in a thread's first row
/// (docs/lab_book.md, 54).
template <bool f16_sums, int pairs_per_polynomial>
class Fp8Softmax {
 public:
  /// What scores can be multiplied by. At least the smallest number there is: times 0 the -inf of a masked one would be
  /// NaN, as is all where it is infinite.
  HOPPER_FUNCTION static float held(float scale) {
    return f16_sums ? in_f16(hopper::maximum(scale, 0x1p-24f)) : hopper::maximum(scale, 0x1p-126f);
  }

  /// P = 2^(S * scale - m) in e4m3, as the A operand of P V. Its sums before rounding are l's when it is accepted.
  template <int columns>
  HOPPER_FUNCTION void exponentiate(hopper::OperandA<columns / 2>& p, const hopper::Accumulator<columns>& s,
                                    float scale) {
    sum_[0] = sum_[1] = 0;
    HOPPER_UNROLL
    for (int i = 0; i < columns / 8; ++i) {
      const int r = i % 2, j = i / 2 * 2;
      float x[4];
      HOPPER_UNROLL
      for (int e = 0; e < 4; ++e) {
        x[e] = hopper::exp2(hopper::fma(s.value[4 * (j + e / 2) + 2 * r + e % 2], scale, -m_[r]));
        sum_[r] += x[e];
      }
      p.value[i] = hopper::pack4_e4m3(x[0], x[1], x[2], x[3]);
    }
  }
  template <int columns>
  HOPPER_FUNCTION void exponentiate(hopper::OperandA<columns / 2>& p, const hopper::HalfAccumulator<columns>& s,
                                    float scale) {
    std::uint32_t sum[2] = {0, 0};  // at most 16 pairs of 2^log2_most; or infinite
    const std::uint32_t factor = twice(scale), minus_m[2] = {twice(-m_[0]), twice(-m_[1])};
    HOPPER_UNROLL
    for (int i = 0; i < columns / 8; ++i) {
      const int r = i % 2, j = i / 2 * 2;
      std::uint32_t x[2];
      HOPPER_UNROLL
      for (int e = 0; e < 2; ++e) {
        const std::uint32_t exponent = hopper::pair_fma(s.value[2 * (j + e) + r], factor, minus_m[r]);
        if (pairs_per_polynomial > 0 && (2 * i + e) % pairs_per_polynomial == 0) {
          x[e] = pair_exp2_by_polynomial(exponent);
        } else {
          x[e] = hopper::pair_exp2(exponent);
        }
      }
      sum[r] = hopper::pair_sum(sum[r], hopper::pair_sum(x[0], x[1]));
      p.value[i] = hopper::pack4_e4m3(x[0], x[1]);
    }
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      float low, high;
      hopper::unpack2<hopper::Element::f16>(sum[r], low, high);
      sum_[r] = low + high;
    }
  }
  /// If false no P of the two rows that exponentiate() has made leaves the range of e4m3. May hold although none does.
  HOPPER_FUNCTION bool may_have_outgrown() const { return !(hopper::maximum(sum_[0], sum_[1]) <= 430.0f); }
  /// The block's P count.
  HOPPER_FUNCTION void accept() {
    l_[0] += sum_[0];
    l_[1] += sum_[1];
  }

  /// If false no P of the two rows leaves the range of e4m3 (or it is NaN, as may be the row).
  HOPPER_FUNCTION bool may_outgrow(const auto& s, float scale) {
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) largest_[r] = bound_of(s, r);
    return outgrows(0, largest_[0] * scale) || outgrows(1, largest_[1] * scale);
  }
  /// As OnlineSoftmax::raise(), of the rows whose P would leave the range, after may_outgrow(). By the whole warp.
  HOPPER_FUNCTION Rescale raise(const auto& s, float scale) {
    Rescale rescale;
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      float largest = hopper::quad_max(largest_[r]);
      if constexpr (!f16_sums)
        if (hopper::warp_any(largest == 0)) largest = hopper::quad_max(largest_of(s, r));  // none above 0: the others
      float m = m_[r];
      if (outgrows(r, largest * scale)) {
        m = largest * scale - (m == unseen ? log2_first : log2_later);
        if constexpr (f16_sums) m = in_f16(m);
      }
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
  static constexpr float unseen = f16_sums ? -65504.0f : -0x1.fffffep127f;  // as in OnlineSoftmax
  // When m is set the largest P is 2^this: far enough below 448 that m is rarely raised, and far above 2^-6, where e4m3
  // begins to lose bits (docs/numerics.md). In a row's first block, beyond whose maximum it will see others, less than
  // later.
  static constexpr float log2_first = 4.0f, log2_later = 6.0f;
  static constexpr float log2_most = 8.75f;  // 2^8.75 is a little below 432, from where the conversion rounds to 448
  static_assert(128 * 448 * FA3_E4M3_NARROW_V < 65504);

  /// No score is above this. In f32 those above 0 are looked at only, with half of the instructions; the others matter
  /// only where m is small.
  template <int columns>
  HOPPER_FUNCTION static float bound_of(const hopper::Accumulator<columns>& s, int r) {
    float largest = 0;
    HOPPER_UNROLL
    for (int j = 0; j < columns / 8; ++j)
      largest = hopper::maximum_from_0(largest, s.value[4 * j + 2 * r], s.value[4 * j + 2 * r + 1]);
    return largest;
  }
  template <int columns>
  HOPPER_FUNCTION static float bound_of(const hopper::HalfAccumulator<columns>& s, int r) {
    return largest_of(s, r);
  }
  HOPPER_FUNCTION static std::uint32_t twice(float x) { return hopper::pack2<hopper::Element::f16>(x, x); }
  HOPPER_FUNCTION static float in_f16(float x) {
    float low, high;
    hopper::unpack2<hopper::Element::f16>(twice(x), low, high);
    return low;
  }
  HOPPER_FUNCTION bool outgrows(int r, float largest) const { return largest - m_[r] > log2_most; }

  float m_[2] = {unseen, unseen};
  float l_[2] = {0.0f, 0.0f};
  float sum_[2];      // of this thread's P of the block
  float largest_[2];  // bound_of() the block's scores, this thread's share
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
    for (next_tile(); exists_; ++q_) attend();
    turn_.finish();
    release_o();
  }

 private:
  static constexpr hopper::Element element = config.element;
  static constexpr int parts = config.d_v / config.pv_columns;
  static constexpr int parts_at_once = parts > 1 ? 2 : 1;  // one is added under the next one's product
  // Whether there are registers for S of the next block beside the last part, O and P, and some for the rest.
  // Not if four share the schedulers: others have something to do then.
  static constexpr bool s_under_pv =
      config.consumer_warpgroups() < 4 &&
      (config.tile_kv + config.pv_columns) / (config.f16_sums ? 4 : 2) + config.d_v / 2 + config.tile_kv / 8 <=
          config.consumer_registers() - 16;
  // Whether a warpgroup waits for S with nothing else to do: not if S runs under P V, nor if four share the schedulers.
  static constexpr bool idle_under_s = !s_under_pv && config.consumer_warpgroups() < 4;
  template <int columns>
  using Sum = std::conditional_t<config.f16_sums, hopper::HalfAccumulator<columns>, hopper::Accumulator<columns>>;
  using Softmax = Fp8Softmax<config.f16_sums, config.pairs_per_polynomial()>;
  using S = Sum<config.tile_kv>;                   // 64 x B_c
  using P = hopper::OperandA<config.tile_kv / 2>;  // 64 x B_c, e4m3
  using O = hopper::Accumulator<config.d_v>;       // 64 x d_v, f32
  using Part = Sum<config.pv_columns>;             // of P V of a block
  using BlockScales = typename Shared<config>::BlockScales;
  static_assert(!config.f16_sums || config.d * FA3_E4M3_NARROW_QK * FA3_E4M3_NARROW_QK < 65504);

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
    for (int i = 0; i < config.pv_columns / 2; i += 2) {
      float product[2];
      if constexpr (config.f16_sums) {
        hopper::unpack2<hopper::Element::f16>(pv.value[i / 2], product[0], product[1]);
      } else {
        product[0] = pv.value[i], product[1] = pv.value[i + 1];
      }
      HOPPER_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& sum = o.value[config.pv_columns / 2 * part + i + e];
        sum = hopper::fma(v_scale, product[e], sum);
      }
    }
  }

  /// A block that other rows of the item need and this warpgroup's do not.
  HOPPER_FUNCTION void skip() {
    release_o();
    turn_.take();
    turn_.pass();
    shared_.k_full[k_.stage].wait(k_.phase);
    release_k();
    shared_.v_operand(v_.stage).full.wait(v_.phase);
    release_v();
  }

  /// [9] [10] P of the block.
  HOPPER_FUNCTION static void exponentiate(const S& s, float scale, P& p, O& o, bool o_is_0, Softmax& softmax) {
    // In a row's first block m has to be set.
    const bool looked = !config.look_after || o_is_0;
    if (looked && hopper::warp_any(softmax.may_outgrow(s, scale))) {
      const Rescale rescale = softmax.raise(s, scale);
      if (!o_is_0) rescale_rows(o, rescale);
    }
    softmax.exponentiate(p, s, scale);
    if constexpr (config.look_after) {
      // A large sum may be one of many P.
      if (!looked && hopper::warp_any(softmax.may_have_outgrown()) && hopper::warp_any(softmax.may_outgrow(s, scale))) {
        rescale_rows(o, softmax.raise(s, scale));
        softmax.exponentiate(p, s, scale);
      }
    }
    softmax.accept();
  }

  /// [7] [11] O += P V of the block, part by part. `meanwhile` runs under the first parts; `issue_more`, after the last
  /// part, issues `more` groups of products; `finish(part)` gets O's parts as they are ready.
  template <int more>
  HOPPER_FUNCTION void accumulate(O& o, const P& p, float v_scale, const auto& meanwhile, const auto& issue_more,
                                  const auto& finish) {
    Part pv[parts_at_once];
    shared_.v_operand(v_.stage).full.wait(v_.phase);
    HOPPER_UNROLL
    for (int i = 0; i < parts_at_once - 1; ++i) issue_pv(pv[i], p, i);
    HOPPER_UNROLL
    for (int i = 0; i < parts; ++i) {
      const int ahead = i + parts_at_once - 1;
      if (ahead < parts) issue_pv(pv[ahead % parts_at_once], p, ahead);
      if (i == 0) meanwhile();
      if (i + 1 == parts) {
        issue_more();
        hopper::wgmma_wait<more>(pv[i % parts_at_once]);
        release_v();
      } else {
        hopper::wgmma_wait<parts_at_once - 1>(pv[i % parts_at_once]);
      }
      add(o, pv[i % parts_at_once], i, v_scale);
      finish(i);
    }
  }

  /// How this thread's two rows end. A blank one sees no key: O = 0 even if a NaN stood in a block the tile visited.
  struct RowEnds {
    float factor[2];  // O is multiplied by it
    bool blank[2];
  };
  /// [12] After the last block. Stores LSE.
  HOPPER_FUNCTION RowEnds end_rows(const Softmax& softmax, const Tile& tile) const {
    const auto row_of = [&](int r) { return tile.first_row + my_row() + 8 * r; };
    RowEnds ends;
    float lse[2];
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      const typename Softmax::Row row = softmax.finish(r);
      const Interval keys = args_.mask.visible(row_of(r));
      ends.blank[r] = softmax.nothing_seen(r) && keys.first >= keys.end;
      ends.factor[r] = row.normalise;
      lse[r] = ends.blank[r] ? -__builtin_inff() : row.lse;
    }
    store_lse(lse, args_, tile, row_of);
    return ends;
  }
  /// [12] A part of O / l.
  HOPPER_FUNCTION static void divide(O& o, int part, const RowEnds& ends) {
    HOPPER_UNROLL
    for (int i = 0; i < config.pv_columns / 2; ++i) o.value[config.pv_columns / 2 * part + i] *= ends.factor[i / 2 % 2];
  }
  HOPPER_FUNCTION static void clear_blank_rows(O& o, const RowEnds& ends) {
    if (!hopper::warp_any(ends.blank[0] || ends.blank[1])) return;
    HOPPER_UNROLL
    for (int i = 0; i < config.d_v / 2; ++i)
      if (ends.blank[i / 2 % 2]) o.value[i] = 0.0f;
  }

  /// Waits for the record of the next tile, and goes to its first block, that of the last keys.
  HOPPER_FUNCTION void next_tile() {
    shared_.record.full[record_.stage].wait(record_.phase);
    ++record_;
    const Item tile = this->tile(0);
    exists_ = tile.first_row >= 0;
    if (!exists_) return;
    const BlockWalk all = walk_item<config>(args_, tile);
    block_ = all.end - 1;
    mine_ = has_rows(tile) ? BlockWalk::of(args_.mask, tile.first_row + 64 * warpgroup_, 64, config.tile_kv,
                                           args_.scale.sign != 1.0f)
                           : BlockWalk{};
    // Blocks left of what these rows see are masked, not skipped: a tile ends with the same block for all.
    if (mine_.empty()) mine_.end = all.begin;
    mine_.begin = all.begin;
  }
  /// Whether this warpgroup has rows of the tile.
  HOPPER_FUNCTION bool has_rows(const Item& tile) const { return tile.first_row + 64 * warpgroup_ < tile.end_row; }
  /// The tile of the last next_tile() (before = 0) or of the one before (1); read where it is needed, for want of
  /// registers.
  HOPPER_FUNCTION Item tile(int before) const { return hopper::load_shared(record(before).item); }
  HOPPER_FUNCTION const typename Shared<config>::Record& record(int before) const {
    const int at = record_.stage - 1 - before;
    return shared_.record.of[at < 0 ? at + Shared<config>::records : at];
  }

  /// Attends to the tile of the last next_tile(), and goes on to the next one.
  HOPPER_FUNCTION void attend() {
    Softmax softmax;
    O o{};
    HOPPER_NO_UNROLL
    for (; block_ >= mine_.end; --block_) skip();
    shared_.q_full[q_.stage].wait(q_.phase);
    if (!mine_.empty()) {
      S s;
      P p;
      // [4] [6] S of the block.
      float s_scale, v_scale;
      const auto issue = [&] {
        const BlockScales scales = issue_s(s);
        turn_.pass();
        const float q_scale = hopper::load_shared(record(0).q_scale[warpgroup_]);
        s_scale = Softmax::held(args_.scale.scale_log2 * q_scale * scales.k);
        v_scale = scales.v;
      };
      const auto nothing = [](auto...) {};
      turn_.take();
      issue();
      release_o();
      HOPPER_NO_UNROLL
      for (;;) {  // S of the block is in flight
        const int block = block_--;
        const bool first = block + 1 == mine_.end, last = block == mine_.begin, edge = mine_.is_edge(block);
        if (idle_under_s && last) next_tile();
        hopper::wgmma_wait<0>(s);
        release_k();
        if (last) release(shared_.q_empty[q_.stage]);  // early: at large d there is one buffer only
        if (edge) apply_mask(s, args_, tile(idle_under_s && last).first_row + my_row(), block * config.tile_kv);  // [8]
        exponentiate(s, s_scale, p, o, first, softmax);  // [5] [9]
        if (last) break;
        turn_.take();
        if constexpr (s_under_pv) {
          accumulate<1>(o, p, v_scale, nothing, issue, nothing);  // [7]
        } else {
          accumulate<0>(o, p, v_scale, nothing, nothing, nothing);
          issue();
        }
      }
      RowEnds ends{};
      const auto end = [&] { ends = end_rows(softmax, tile(idle_under_s)); };
      const auto divide_part = [&](int part) { divide(o, part, ends); };
      accumulate<0>(o, p, v_scale, end, nothing, divide_part);  // [11] [12]
      clear_blank_rows(o, ends);
      if (!idle_under_s) next_tile();
    } else {
      release(shared_.q_empty[q_.stage]);
      release_o();
      next_tile();
      if (const Item ended = tile(1); has_rows(ended)) end_rows(softmax, ended);
    }
    store(o, tile(1));
  }

  HOPPER_FUNCTION void store(const O& o, const Item& tile) {
    if (args_.bf16_output) {
      store<hopper::Element::bf16>(o, tile);
    } else {
      store<hopper::Element::f16>(o, tile);
    }
  }
  template <hopper::Element o_element>
  HOPPER_FUNCTION void store(const O& o, const Item& tile) {
    if constexpr (config.output == Output::in_v_ring) {
      store_through_v_ring<o_element>(o, tile);
    } else {
      HOPPER_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int row = tile.first_row + my_row() + 8 * r;
        std::uint16_t* const to =
            args_.o_data + tile.batch * args_.o_stride[0] + tile.head * args_.o_stride[1] + row * args_.o_stride[2];
        store_o_row<o_element>(to, o, r, row < tile.end_row, args_.o_columns);
      }
    }
  }
  /// In this warpgroup's turn. A thread has TMA store all 64 rows: an instruction of TMA may have to wait for others.
  template <hopper::Element o_element>
  HOPPER_FUNCTION void store_through_v_ring(const O& o, const Item& tile) {
    Cursor<config.stages> mine;
    HOPPER_UNROLL
    for (int w = 0; w < config.consumer_warpgroups(); ++w, ++v_)
      if (w == warpgroup_) mine = v_;
    shared_.v_operand(mine.stage).full.wait(mine.phase);
    auto& staged = shared_.o_in_v_ring(mine.stage);
    stage_o<o_element>(staged, o, my_row() % 64);
    hopper::fence_async_shared();
    Shared<config>::rows(warpgroup_).sync();
    if (is_leader() && has_rows(tile)) {
      hopper::store_rows(args_.o, {0, tile.first_row + 64 * warpgroup_, tile.head, tile.batch}, staged, 0);
      hopper::store_commit();
    }
    o_stage_ = mine.stage;
  }
  /// Ends the turn for O. Not before the next tile's first S is issued, so that TMA has read it meanwhile, but before
  /// this warpgroup waits for a V^T of that tile, which comes after.
  HOPPER_FUNCTION void release_o() {
    if (o_stage_ < 0) return;
    if (is_leader()) {
      hopper::store_wait_read<0>();
      HOPPER_UNROLL
      for (int i = 0; i < Shared<config>::consumer_warps; ++i) shared_.v_operand(o_stage_).empty.arrive();
    }
    hopper::warp_sync();
    o_stage_ = -1;
  }
  HOPPER_FUNCTION bool is_leader() const { return warp_row_ % 64 == 0 && hopper::lane() == 0; }

  Shared<config>& shared_;
  const ForwardArguments& args_;
  const Turn<config, Turns::gemm> turn_;
  const int warpgroup_;
  const int warp_row_;  // the warp's first row in the tile
  // Of the last next_tile().
  bool exists_;
  BlockWalk mine_;
  int block_;
  Cursor<Shared<config>::records> record_;
  Cursor<config.q_buffers> q_;
  Cursor<config.stages> k_, v_;
  int o_stage_ = -1;  // of the ring, where this warpgroup's O stands
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
