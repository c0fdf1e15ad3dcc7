// V^T of e4m3 as P V takes it (forward_fp8.hpp): made by warps of the forward kernel itself or, for rows that take it
// so, by the kernel below before it.
#pragma once

#include <cstdint>

#include "attention/transpose_arguments.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// Transposes a tile of V. Where in V^T and in O a feature stands: of 16 first the even ones, then the odd ones. And a
/// key in V^T and P: keys 2 t, 2 t + 1, 8 + 2 t, 8 + 2 t + 1 of 16 side by side, as thread t of a quad has their S.
template <int keys_, int features_, int warps>
class TileTransposer {
 public:
  using V = hopper::SharedTile<keys_, features_ / 2>;  // pairs of features
  // Pairs of keys. It may be padded to more rows, which do not matter: it has one panel.
  using Vt = hopper::SharedTile<hopper::stored_columns(features_), keys_ / 2>;
  static_assert(Vt::panels == 1);

  HOPPER_FUNCTION explicit TileTransposer(int warp)
      : warp_(warp),
        from_(std::uint32_t(V::chunk_offset(hopper::lane(), 0))),
        to_(std::uint32_t(Vt::chunk_offset(hopper::lane() % 16, hopper::lane() / 16))) {}

  /// This warp's share of the tile.
  HOPPER_FUNCTION void transpose(const V& v_tile, const Vt& vt_tile) const {
    const std::uint32_t v = hopper::shared_address(&v_tile), vt = hopper::shared_address(&vt_tile);
    // Not unrolled: nvcc 13.0 would keep all addresses, for which there are no registers.
    HOPPER_NO_UNROLL
    for (unsigned first = unsigned(warp_); first < pieces; first += at_once * warps) {
      // Several at a time: a load takes long while products read shared memory. What is beyond the end is the last
      // piece again, so that no branch stands between the loads.
      std::uint32_t keys[at_once][2][4];
      HOPPER_UNROLL
      for (unsigned i = 0; i < at_once; ++i) {
        const unsigned piece = first + i * warps < pieces ? first + i * warps : pieces - 1;
        load(keys[i], v, piece / 2, piece % 2);
      }
      HOPPER_UNROLL
      for (unsigned i = 0; i < at_once; ++i) {
        const unsigned piece = first + i * warps;
        if (piece < pieces) store(keys[i], vt, piece / 2, piece % 2);
      }
    }
  }

 private:
  // A piece: 64 keys of 16 features.
  static constexpr unsigned pieces = keys_ / 64 * (features_ / 16), at_once = 2;

  /// Chunk c of a row is at chunk position c ^ (row % 8), so further chunks are an exclusive or away from from_ and
  /// to_.
  HOPPER_FUNCTION void load(std::uint32_t (&keys)[2][4], std::uint32_t v, unsigned group, unsigned half) const {
    const std::uint32_t begin = v + group / 8 * V::panel_bytes + half * (64 * V::row_bytes) + (from_ ^ group % 8 * 16);
    hopper::ldmatrix_x4_transposed(keys[0], begin);
    hopper::ldmatrix_x4_transposed(keys[1], begin + 32 * V::row_bytes);
  }
  HOPPER_FUNCTION void store(const std::uint32_t (&keys)[2][4], std::uint32_t vt, unsigned group, unsigned half) const {
    const std::uint32_t begin = vt + group * (16 * Vt::row_bytes);
    HOPPER_UNROLL
    for (unsigned i = 0; i < 2; ++i) {
      // A register has two features of two keys.
      const std::uint32_t features[4] = {
          hopper::permute_bytes(keys[i][0], keys[i][1], 0x6420), hopper::permute_bytes(keys[i][0], keys[i][1], 0x7531),
          hopper::permute_bytes(keys[i][2], keys[i][3], 0x6420), hopper::permute_bytes(keys[i][2], keys[i][3], 0x7531)};
      hopper::stmatrix_x4(begin + (to_ ^ (64 * half + 32 * i)), features);
    }
  }

  const int warp_;
  const std::uint32_t from_, to_;  // this lane's row of the first piece, bytes from the tile's begin
};

// --------------------------------------------------------------------------------------------------------------------
// The kernel: a CTA has a tile of transpose_tile keys and features, four warps. Its 33 KB leave room for others on the
// SM, so that some load or store while others work.

struct TransposeShared {
  using Transposer = TileTransposer<transpose_tile, transpose_tile, transpose_threads / hopper::warp_threads>;
  Transposer::V v;  // where V is given d-major, features by pairs of keys
  Transposer::Vt vt;
  hopper::Mbarrier full;  // 1 + bytes: v has landed
};

struct alignas(16) SixteenKeys {
  std::uint32_t four[4];
};

/// V given d-major has the rows of V^T already, but not the order of its keys and rows. A thread has a feature; keys
/// from `keys` on are beyond the sequence, what stands there is not V's. Two rows of a store share their banks.
HOPPER_FUNCTION void reorder(TransposeShared& shared, int keys) {
  using V = TransposeShared::Transposer::V;
  const int feature = hopper::thread_of_warpgroup();
  const int row = feature / 16 * 16 + feature % 2 * 8 + feature % 16 / 2;
  const auto at = [](auto& tile, int row, int chunk) -> SixteenKeys& {
    return *reinterpret_cast<SixteenKeys*>(reinterpret_cast<unsigned char*>(&tile) + tile.chunk_offset(row, chunk));
  };
  HOPPER_UNROLL
  for (int chunk = 0; chunk < V::row_bytes / 16; ++chunk) {
    SixteenKeys given = hopper::load_shared(at(shared.v, feature, chunk));
    HOPPER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int left = keys - (16 * chunk + 4 * i);  // of these four
      if (left < 4) given.four[i] &= left <= 0 ? 0 : (1u << 8 * left) - 1;
    }
    SixteenKeys ordered;
    HOPPER_UNROLL
    for (int t = 0; t < 4; ++t)
      ordered.four[t] = hopper::permute_bytes(given.four[t / 2], given.four[2 + t / 2], t % 2 == 0 ? 0x5410 : 0x7632);
    hopper::store_shared(at(shared.vt, row, chunk), ordered);
  }
}

HOPPER_FUNCTION void transpose_values(TransposeShared& shared, const TransposeArguments& args) {
  const int panel = hopper::cta() % args.panels, blocks_before = hopper::cta() / args.panels;
  const int block = blocks_before % args.blocks, heads_before = blocks_before / args.blocks;
  const int head = heads_before % args.heads, batch = heads_before / args.heads;
  const int warp = hopper::warp_of_warpgroup();
  const int first_pair = transpose_tile / 2 * block, first_feature = transpose_tile * panel;
  if (warp == 0 && hopper::elect_one()) {
    shared.full.init(1);
    hopper::fence_barrier_init();
    shared.full.arrive_expect_bytes(sizeof(shared.v));
    hopper::load_tile(shared.v, args.v,
                      args.d_major ? hopper::Coordinates{first_pair, first_feature, head, batch}
                                   : hopper::Coordinates{first_feature / 2, transpose_tile * block, head, batch},
                      shared.full);
  }
  hopper::cta_sync();
  shared.full.wait(0);
  if (args.d_major) {
    reorder(shared, args.seqlen - transpose_tile * block);
  } else {
    TransposeShared::Transposer(warp).transpose(shared.v, shared.vt);
  }
  hopper::fence_async_shared();
  hopper::cta_sync();
  if (hopper::lane() != 0) return;
  for (int row = transpose_box * warp; row < transpose_tile;
       row += transpose_threads / hopper::warp_threads * transpose_box)
    if (first_feature + row < args.features)
      hopper::store_rows(args.vt, {first_pair, first_feature + row, head, batch}, shared.vt, row);
  hopper::store_commit();
  hopper::store_wait_read<0>();
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
