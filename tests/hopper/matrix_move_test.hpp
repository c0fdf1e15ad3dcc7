// stmatrix and ldmatrix.
#pragma once

#include "values.hpp"

namespace fa3::hopper_test {

class MatrixMove : public MachineTest {};
INSTANTIATE_TEST_SUITE_P(, MatrixMove, modes(), ModeName());

constexpr int move_rows = 64, move_columns = 192;
HOPPER_FUNCTION std::uint32_t move_pair(int row, int column) {
  return std::uint32_t(row << 8 | column) | std::uint32_t(row << 8 | (column + 1)) << 16;
}

struct StoreMatrix {
  static constexpr int threads = 128;
  using Tile = hopper::SharedTile<move_rows, move_columns>;
  struct Arguments {
    Chunk* image;
  };
  struct Shared {
    Tile tile;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int first = 16 * hopper::warp_of_warpgroup();
    for (int column = 0; column < move_columns; column += 16) {
      const int row = first + hopper::lane() / 4, mine = column + 2 * (hopper::lane() % 4);
      const std::uint32_t fragment[4] = {move_pair(row, mine), move_pair(row + 8, mine), move_pair(row, mine + 8),
                                         move_pair(row + 8, mine + 8)};
      hopper::store_matrix(shared.tile, first, column, fragment);
    }
    hopper::cta_sync();
    copy_out(args.image, &shared.tile, Tile::bytes, threads);
  }
};

inline std::vector<Chunk> move_image() {
  return tile_image(move_rows, move_columns, [](int row, int column) { return std::uint16_t(row << 8 | column); });
}

TEST_P(MatrixMove, StoreMatrixFillsATile) {
  Buffer<Chunk> image(StoreMatrix::Tile::bytes / 16, Chunk{});
  launch<StoreMatrix>({image.data()});
  expect_equal(image.read(), move_image());
}

/// As StoreMatrix, every block transposed on the way.
struct StoreMatrixTransposed {
  static constexpr int threads = 128;
  using Tile = hopper::SharedTile<move_columns, move_rows>;
  struct Arguments {
    Chunk* image;
  };
  struct Shared {
    Tile tile;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int first = 16 * hopper::warp_of_warpgroup();
    for (int column = 0; column < move_columns; column += 16) {
      const int row = first + hopper::lane() / 4, mine = column + 2 * (hopper::lane() % 4);
      const std::uint32_t fragment[4] = {move_pair(row, mine), move_pair(row + 8, mine), move_pair(row, mine + 8),
                                         move_pair(row + 8, mine + 8)};
      hopper::store_matrix_transposed(shared.tile, column, first, fragment);
    }
    hopper::cta_sync();
    copy_out(args.image, &shared.tile, Tile::bytes, threads);
  }
};

TEST_P(MatrixMove, StoreMatrixTransposedFillsATile) {
  Buffer<Chunk> image(StoreMatrixTransposed::Tile::bytes / 16, Chunk{});
  launch<StoreMatrixTransposed>({image.data()});
  expect_equal(image.read(), tile_image(move_columns, move_rows,
                                        [](int row, int column) { return std::uint16_t(column << 8 | row); }));
}

struct LoadMatrix {
  static constexpr int threads = 128;
  using Tile = hopper::SharedTile<move_rows, move_columns>;
  struct Arguments {
    const Chunk* image;
    Chunk* fragment;  // threads x blocks of 16 columns
  };
  struct Shared {
    Tile tile;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    copy_in(&shared.tile, args.image, Tile::bytes, threads);
    hopper::cta_sync();
    for (int block = 0; block < move_columns / 16; ++block) {
      std::uint32_t fragment[4];
      hopper::load_matrix(fragment, shared.tile, 16 * hopper::warp_of_warpgroup(), 16 * block);
      args.fragment[rank() * (move_columns / 16) + block] = {fragment[0], fragment[1], fragment[2], fragment[3]};
    }
  }
};

TEST_P(MatrixMove, LoadMatrixReadsATile) {
  constexpr int blocks = move_columns / 16;
  Buffer<Chunk> image(move_image()), fragment(128 * blocks, Chunk{});
  launch<LoadMatrix>({image.data(), fragment.data()});
  std::vector<Chunk> expected;
  for (int t = 0; t < 128; ++t)
    for (int block = 0; block < blocks; ++block) {
      Chunk chunk{};
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i % 2), column = 16 * block + 2 * (t % 4) + 8 * (i / 2);
        const auto element = [&](int e) { return std::uint32_t(row << 8 | (column + e)); };
        chunk.word[i] = element(0) | element(1) << 16;
      }
      expected.push_back(chunk);
    }
  expect_equal(fragment.read(), expected);
}

/// The row addresses may be any: rows of the four matrices go to a permutation of 32 chunks and come back in another
/// order.
struct Scatter {
  static constexpr int threads = 128;
  struct Arguments {
    Chunk* stored;  // 4 warps x 32
    Chunk* loaded;
  };
  struct Shared {
    Chunk chunk[4][32];
  };
  HOPPER_FUNCTION static std::uint32_t word(int warp, int lane, int matrix) {
    return std::uint32_t(warp << 16 | lane << 8 | matrix);
  }
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int warp = hopper::warp_of_warpgroup(), lane = hopper::lane();
    const std::uint32_t fragment[4] = {word(warp, lane, 0), word(warp, lane, 1), word(warp, lane, 2),
                                       word(warp, lane, 3)};
    hopper::stmatrix_x4(hopper::shared_address(&shared.chunk[warp][(5 * lane + 3) % 32]), fragment);
    hopper::warp_sync();
    args.stored[32 * warp + lane] = hopper::load_shared(shared.chunk[warp][lane]);
    std::uint32_t back[4];
    hopper::ldmatrix_x4(back, hopper::shared_address(&shared.chunk[warp][(7 * lane + 1) % 32]));
    args.loaded[32 * warp + lane] = {back[0], back[1], back[2], back[3]};
  }
};

TEST_P(MatrixMove, RowAddressesAreFree) {
  Buffer<Chunk> stored(128, Chunk{}), loaded(128, Chunk{});
  launch<Scatter>({stored.data(), loaded.data()});
  std::vector<Chunk> expected(128), expected_back(128);
  for (std::uint32_t warp = 0; warp < 4; ++warp) {
    for (std::uint32_t lane = 0; lane < 32;
         ++lane)  // row lane % 8 of matrix lane / 8: words of lanes 4 row .. 4 row + 3
      for (std::uint32_t pair = 0; pair < 4; ++pair)
        expected[32 * warp + (5 * lane + 3) % 32].word[pair] = warp << 16 | (4 * (lane % 8) + pair) << 8 | lane / 8;
    for (std::uint32_t lane = 0; lane < 32; ++lane)
      for (std::uint32_t pair = 0; pair < 4; ++pair)
        expected_back[32 * warp + 4 * (lane % 8) + pair].word[lane / 8] =
            expected[32 * warp + (7 * lane + 1) % 32].word[pair];
  }
  expect_equal(stored.read(), expected);
  expect_equal(loaded.read(), expected_back);
}

/// ldmatrix.trans from a permutation of 32 chunks.
struct LoadTransposed {
  static constexpr int threads = 128;
  struct Arguments {
    const Chunk* chunk;  // 4 warps x 32
    Chunk* fragment;     // by thread
  };
  struct Shared {
    Chunk chunk[4][32];
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    copy_in(shared.chunk, args.chunk, sizeof(shared.chunk), threads);
    hopper::cta_sync();
    const int warp = hopper::warp_of_warpgroup();
    std::uint32_t fragment[4];
    hopper::ldmatrix_x4_transposed(fragment,
                                   hopper::shared_address(&shared.chunk[warp][(7 * hopper::lane() + 1) % 32]));
    args.fragment[rank()] = {fragment[0], fragment[1], fragment[2], fragment[3]};
  }
};

TEST_P(MatrixMove, LoadTransposedExchangesRowsAndColumns) {
  const auto element = [](int warp, int chunk, int column) {
    return std::uint32_t(pattern(std::size_t((32 * warp + chunk) * 8 + column)));
  };
  std::vector<Chunk> chunks(128), expected(128);
  for (int i = 0; i < 128; ++i)
    for (int word = 0; word < 4; ++word)
      chunks[std::size_t(i)].word[word] = element(i / 32, i % 32, 2 * word) | element(i / 32, i % 32, 2 * word + 1)
                                                                                  << 16;
  for (int t = 0; t < 128; ++t)
    for (int matrix = 0; matrix < 4; ++matrix) {
      const int warp = t / 32, lane = t % 32;
      // Row r of a matrix is where lane 8 * matrix + r says.
      const auto at = [&](int row) { return element(warp, (7 * (8 * matrix + row) + 1) % 32, lane / 4); };
      expected[std::size_t(t)].word[matrix] = at(2 * (lane % 4)) | at(2 * (lane % 4) + 1) << 16;
    }
  Buffer<Chunk> chunk(chunks), fragment(128, Chunk{});
  launch<LoadTransposed>({chunk.data(), fragment.data()});
  expect_equal(fragment.read(), expected);
}

}  // namespace fa3::hopper_test
