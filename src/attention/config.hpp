// The compile-time choices of one forward kernel. A value is here only if it sizes a register array or a shared-memory
// tile, is an instruction immediate, or selects another instruction order; everything else is runtime data
// (ForwardArguments).
#pragma once

#include "hopper/element.hpp"

namespace fa3::attention {

/// What consumer warpgroups take turns for (paper, section 3.1).
enum class Turns : unsigned char {
  free_running,  // every consumer warpgroup when it likes
  gemm,          // ping-pong: in turn, so that one's softmax runs under the others' GEMMs
  softmax        // the exponentials are in turn instead, the GEMMs free; for comparison, like free_running
};

/// How O gets from registers to global memory.
enum class Output : unsigned char {
  own_buffer,    // staged in shared memory of its own, stored by TMA
  over_q,        // staged in Q's buffer, which frees shared memory, but keeps Q from being loaded ahead
  by_registers,  // not staged: stored by the threads, 32 bytes of a row at a time, of e4m3 64
  in_v_ring      // e4m3: staged in the ring of V^T, where each warpgroup's O has a turn after the tile's blocks
};

/// Where blocks are masked.
enum class Edges : unsigned char {
  own_loop,  // in a loop of their own: nothing stands between the waits and the exponentials of whole blocks
  branch     // in the one loop, by a branch: less code
};

/// What overlaps inside a warpgroup (paper, section 3.2 and appendix B.3).
enum class Pipeline : unsigned char {
  none,        // Algorithm 1: S, softmax and P V of a block one after the other
  two_stage,   // Algorithm 2: S of the next block beside P V of this one
  three_stage  // and S of the block after that under the softmax of the next
};

/// When a row's m is raised.
enum class Maximum : unsigned char {
  lagging,  // when a block's P outgrows it: rarely
  before    // in every block to its maximum, before the exponentials: Algorithm 1, line 10
};

/// Who issues the loads.
enum class Loads : unsigned char {
  producer,  // a warpgroup of its own (warp specialisation)
  consumer   // a thread of the first consumer warpgroup, between its products
};

inline constexpr int max_consumer_warpgroups = 4;  // time_of_low_tile() has times for no more

struct ForwardConfig {
  hopper::Element element;
  int d;          // features of Q and K, a multiple of 16
  int d_v;        // features of V and O, likewise
  int tile_q;     // B_r: query rows of a CTA, 64 per consumer warpgroup
  int tile_kv;    // B_c: keys of a block, a multiple of 16
  int stages;     // depth of the K/V ring
  int q_buffers;  // 2: the next tile's Q is loaded under this tile
  Output output;
  Edges edges;
  Turns turns;
  int cluster;  // CTAs that share their K and V by multicast, with neighbouring tiles of the same head
  // Others than these are for comparison (kernels/ablation.hpp).
  Pipeline pipeline = Pipeline::two_stage;
  Maximum maximum = Maximum::lagging;
  Loads loads = Loads::producer;
  bool trace = false;  // records Stamps; never in the product
  // e4m3 (forward_fp8.hpp).
  int pv_columns = 0;            // columns of O that a product P V makes at a time, beside O itself
  bool v_is_transposed = false;  // V comes as V^T (transpose_values.hpp); else the kernel transposes it
  bool look_after = false;       // a block's scores are looked at only if its P came out large; needs f16_sums
  bool f16_sums = false;         // the tensor core adds in f16, which is enough for q, k and v that are narrow (fa3.h)

  constexpr bool operator==(const ForwardConfig&) const = default;

  constexpr bool fp8() const { return element == hopper::Element::e4m3; }
  constexpr bool transposes_v() const { return fp8() && !v_is_transposed; }
  /// Of 16 bits, in which shared memory is counted.
  constexpr int stored_d() const { return d / hopper::per_16_bits(element); }
  constexpr int stored_d_v() const { return d_v / hopper::per_16_bits(element); }

  constexpr int consumer_warpgroups() const { return tile_q / 64; }
  /// Of so many pairs of exponentials one is a polynomial, which spares the exponential unit; 0: none is. That unit is
  /// what binds where four softmaxes share a scheduler (docs/lab_book.md, 54).
  constexpr int pairs_per_polynomial() const { return f16_sums && consumer_warpgroups() == 4 ? 16 : 0; }
  constexpr int producer_warpgroups() const { return loads == Loads::producer ? 1 : 0; }
  constexpr int threads() const { return 128 * (producer_warpgroups() + consumer_warpgroups()); }
  // Registers per thread after the hand-over; their sum over the warpgroups is what the launch allocates:
  // 168 x 384 = 40 x 128 + 232 x 256, 128 x 512 = 32 x 128 + 160 x 384, 96 x 640 = 32 x 128 + 112 x 512.
  constexpr int producer_registers() const { return consumer_warpgroups() == 2 ? 40 : 32; }
  constexpr int consumer_registers() const {
    return consumer_warpgroups() == 2 ? 232 : consumer_warpgroups() == 3 ? 160 : 112;
  }
  constexpr int registers() const {
    if (loads == Loads::consumer) return 0;  // none change hands
    return 128 * (producer_registers() + consumer_warpgroups() * consumer_registers());
  }

  constexpr bool valid() const {
    if (fp8() != (pv_columns > 0) || ((v_is_transposed || f16_sums || output == Output::in_v_ring) && !fp8()))
      return false;
    if (look_after && !f16_sums) return false;  // S has to survive the exponentials
    // A buffer of the ring with two turns for O would complete two phases between a warpgroup's looks at it.
    if (output == Output::in_v_ring && stages < consumer_warpgroups()) return false;
    if (v_is_transposed && d_v % 64 != 0) return false;  // TMA's box has d_v rows, the buffer d_v rounded up to 64
    // V is transposed 64 keys and 16 features at a time; a block has one scale, and its keys are one panel of V^T.
    if (fp8() && (d % 32 != 0 || d_v % 32 != 0 || tile_kv != 128 || pv_columns % 16 != 0 || d_v % pv_columns != 0 ||
                  (output != Output::in_v_ring && output != Output::by_registers) || edges != Edges::branch ||
                  turns == Turns::softmax || loads != Loads::producer || pipeline != Pipeline::none ||
                  maximum != Maximum::before || cluster != 1 || trace))
      return false;
    return d % 16 == 0 && d_v % 16 == 0 && d_v <= 256 && d <= 256 && tile_q % 64 == 0 && consumer_warpgroups() >= 2 &&
           consumer_warpgroups() <= max_consumer_warpgroups && tile_kv % 16 == 0 && tile_kv <= 128 && stages >= 2 &&
           q_buffers >= 1 && (output != Output::over_q || d_v <= d) && (cluster == 1 || cluster == 2) &&
           tile_kv / cluster % 8 == 0 &&
           (loads == Loads::producer || (cluster == 1 && pipeline != Pipeline::three_stage)) &&
           (pipeline != Pipeline::three_stage ||
            (output != Output::over_q && edges == Edges::branch && maximum == Maximum::lagging));
  }
};

}  // namespace fa3::attention
