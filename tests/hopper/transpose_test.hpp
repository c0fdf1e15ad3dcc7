// V^T as the e4m3 rows make it, read by the products that need it: O = P V of the blocks of a ring.
#pragma once

#include <set>

#include "attention/forward_fp8.hpp"
#include "kernels/configs.hpp"
#include "wgmma_test.hpp"

namespace fa3::hopper_test {

class Transpose : public MachineTest {};
INSTANTIATE_TEST_SUITE_P(, Transpose, modes(), ModeName());

constexpr int transposed_blocks = 5;  // more than there are stages

/// Warpgroup 0 as in the kernel: a thread loads V, three warps transpose it. Warpgroup 1 multiplies P by each block.
template <int row_>
struct TransposedProduct {
  static constexpr kernels::ForwardConfig config = kernels::forward_rows[row_].config;
  static constexpr int threads = 256, keys = config.tile_kv, d_v = config.d_v, part = config.pv_columns;
  using Shared = attention::Shared<config>;
  struct Arguments {
    hopper::TensorMap v;
    const std::uint32_t* p;  // fragments_e4m3() of P with its keys in the order of V^T
    float* o;                // 64 x part, by block and part
  };
  HOPPER_FUNCTION static void load(Shared& shared, const Arguments& args) {
    attention::Cursor<config.stages> at;
    for (int block = 0; block <= transposed_blocks; ++block, ++at) {
      const bool end = block == transposed_blocks;
      shared.v_empty[at.stage].wait(at.phase ^ 1);
      hopper::store_shared(shared.vt_state.turn[at.stage], end ? attention::VTurn::end : attention::VTurn::block);
      shared.v_full[at.stage].arrive_expect_bytes(end ? 0 : sizeof(shared.v[0]));
      if (!end) hopper::load_tile(shared.v[at.stage], args.v, {0, keys * block, 0, 0}, shared.v_full[at.stage]);
    }
  }
  HOPPER_FUNCTION static void multiply(Shared& shared, const Arguments& args) {
    hopper::OperandA<keys / 2> p;
    const std::uint32_t* mine = args.p + (rank() - 128) * (keys / 8);
    HOPPER_UNROLL
    for (int i = 0; i < keys / 8; ++i) p.value[i] = mine[i];
    attention::Cursor<config.stages> at;
    for (int block = 0; block < transposed_blocks; ++block, ++at) {
      shared.vt_state.full[at.stage].wait(at.phase);
      for (int first = 0; first < d_v; first += part) {
        hopper::Accumulator<part> o;
        hopper::issue_abt<config.element>(o, p, shared.vt[at.stage], first);
        hopper::wgmma_commit();
        hopper::wgmma_wait<0>(o);
        write(args.o + (block * d_v + first) * 64, o);
      }
      // As many arrivals as the barrier takes in the kernel, of whose warpgroups there is one here.
      for (int i = 0; i < config.consumer_warpgroups(); ++i) attention::release(shared.vt_state.empty[at.stage]);
    }
  }
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    if (rank() == 0) shared.init_barriers();
    hopper::cta_sync();
    if (hopper::warpgroup() == 1) {
      multiply(shared, args);
    } else if (hopper::warp_of_warpgroup() > 0) {
      attention::run_transposer(shared, hopper::warp_of_warpgroup() - 1);
    } else if (hopper::lane() == 0) {
      load(shared, args);
    }
  }
};

/// A store of 8 bytes a lane goes half a warp at a time, which is free of conflicts if it covers all 32 banks.
TEST(StagedO, HalfAWarpCoversAllBanks) {
  using Tile = hopper::SharedTile<64, 128>;
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 4; ++i) {
      std::set<int> banks;
      for (int lane = 16 * half; lane < 16 * half + 16; ++lane) {
        const int row = lane / 4;
        const int offset = attention::staged_offset<Tile>(row, lane % 4, attention::staged_group(i, row));
        EXPECT_EQ(offset % 8, 0);
        for (int word = 0; word < 2; ++word) banks.insert(offset / 4 % 32 + word);
      }
      EXPECT_EQ(banks.size(), 32u) << "group " << i;
    }
}

/// The feature that column `column` of O has: of 16 first the even ones.
constexpr int feature(int column) { return column / 16 * 16 + column % 8 * 2 + column % 16 / 8; }

TEST_P(Transpose, ProductsOfAllBlocksOfV) {
  const auto test = [&]<class Kernel>(Kernel) {
    SCOPED_TRACE(testing::Message() << "d_v = " << Kernel::d_v);
    const Matrix p = integers(64, Kernel::keys, 3, 1);
    const Matrix v = integers(transposed_blocks * Kernel::keys, Kernel::d_v, 3, 2);
    Matrix p_in_order(64, Kernel::keys);
    for (int row = 0; row < 64; ++row)
      for (int key = 0; key < Kernel::keys; ++key) {
        const int t = key % 8 / 2;  // the thread of a quad that has the key
        p_in_order(row, key / 16 * 16 + 4 * t + key % 16 / 8 * 2 + key % 2) = p(row, key);
      }
    std::vector<std::uint8_t> bytes;
    for (const double x : v.value) bytes.push_back(std::uint8_t(to_bits(Element::e4m3, x)));
    Buffer<std::uint8_t> memory(bytes);
    const std::uint64_t row_bytes = std::uint64_t(Kernel::d_v);
    // TMA knows of no e4m3: of pairs.
    const hopper::TensorMap map = encode({"V",
                                          memory.data(),
                                          Element::f16,
                                          {row_bytes / 2, std::uint64_t(v.rows), 1, 1},
                                          {row_bytes, row_bytes, row_bytes},
                                          std::uint32_t(Kernel::Shared::VTile::panel_columns),
                                          std::uint32_t(Kernel::keys),
                                          128});
    Buffer<std::uint32_t> p_fragments(fragments_e4m3(p_in_order));
    Buffer<float> o(std::size_t(transposed_blocks * 64 * Kernel::d_v), 0.0f);
    launch<Kernel>({map, p_fragments.data(), o.data()});
    const std::vector<float> got = o.read();
    for (int block = 0; block < transposed_blocks; ++block)
      for (int row = 0; row < 64; ++row)
        for (int column = 0; column < Kernel::d_v; ++column) {
          double expected = 0;
          for (int key = 0; key < Kernel::keys; ++key)
            expected += p(row, key) * v(block * Kernel::keys + key, feature(column));
          const int part = column / Kernel::part;
          ASSERT_EQ(got[std::size_t((block * Kernel::d_v + part * Kernel::part) * 64 + row * Kernel::part +
                                    column % Kernel::part)],
                    expected)
              << "block " << block << ", row " << row << ", column " << column;
        }
  };
  test(TransposedProduct<kernels::select_forward_row(FA3_E4M3, 64, 64)>{});
  test(TransposedProduct<kernels::select_forward_row(FA3_E4M3, 128, 128)>{});
  test(TransposedProduct<kernels::select_forward_row(FA3_E4M3, 256, 256)>{});
}

}  // namespace fa3::hopper_test
