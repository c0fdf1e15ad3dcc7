// TMA: boxes against element-by-element copies on the host.
#pragma once

#include <array>

#include "values.hpp"

namespace fa3::hopper_test {

using hopper::Coordinates;

class Tma : public MachineTest {};
INSTANTIATE_TEST_SUITE_P(, Tma, modes(), ModeName());

/// Tensor of 16-bit elements on the host with gaps between its rows.
struct Tensor {
  std::array<int, 4> extent;  // feature, row, head, batch
  std::array<std::size_t, 4> stride{1, 0, 0, 0};
  std::vector<std::uint16_t> data;

  /// `order`: the dimensions 1..3 from the innermost.
  Tensor(std::array<int, 4> extent_, std::array<int, 3> order) : extent(extent_) {
    std::size_t size = std::size_t(extent[0] + 7) / 8 * 8 + 8;
    for (const int i : order) {
      stride[std::size_t(i)] = size;
      size *= std::size_t(extent[std::size_t(i)]);
    }
    data.resize(size);
    for (std::size_t i = 0; i < size; ++i) data[i] = pattern(i);
  }
  /// Null outside the tensor.
  std::uint16_t* find(Coordinates at) {
    const int position[4] = {at.feature, at.row, at.head, at.batch};
    std::size_t offset = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      if (position[i] < 0 || position[i] >= extent[i]) return nullptr;
      offset += std::size_t(position[i]) * stride[i];
    }
    return &data[offset];
  }
  hopper::TensorMap map(std::uint16_t* memory, int box_rows, int swizzle_bytes, Element element = Element::f16) const {
    hopper::TensorMapSpec spec{
        "T", memory, element, {}, {}, std::uint32_t(swizzle_bytes / 2), std::uint32_t(box_rows), swizzle_bytes};
    for (std::size_t i = 0; i < 4; ++i) spec.extent[i] = std::uint64_t(extent[i]);
    for (std::size_t i = 0; i < 3; ++i) spec.stride_bytes[i] = 2 * stride[i + 1];
    return encode(spec);
  }
};

/// Calls visit(coordinates, byte in the box's image) for every element of a box.
template <class Visit>
void for_each_in_box(Coordinates at, int box_rows, int swizzle_bytes, Visit visit) {
  for (int row = 0; row < box_rows; ++row)
    for (int feature = 0; feature < swizzle_bytes / 2; ++feature)
      visit(Coordinates{at.feature + feature, at.row + row, at.head, at.batch},
            swizzle(std::size_t(row * swizzle_bytes + 2 * feature), swizzle_bytes));
}

constexpr int max_box_bytes = 256 * 128;
const std::array<int, 3> orders[] = {{2, 1, 3}, {1, 2, 3}, {3, 2, 1}};  // the head, the row, the batch is innermost

struct LoadBoxes {
  static constexpr int threads = 128;
  struct Arguments {
    hopper::TensorMap map;
    const Coordinates* at;
    int count, bytes;
    Chunk* image;  // count boxes
  };
  struct Shared {
    alignas(1024) Chunk box[max_box_bytes / 16];
    hopper::Mbarrier full;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int me = rank();
    if (me == 0) {
      hopper::prefetch(args.map);
      shared.full.init(1);
      hopper::fence_barrier_init();
    }
    hopper::cta_sync();
    for (int i = 0; i < args.count; ++i) {
      if (me == 0) {
        shared.full.arrive_expect_bytes(args.bytes);
        hopper::tma_load(hopper::shared_address(shared.box), args.map, args.at[i], shared.full);
      }
      shared.full.wait(i % 2);
      copy_out(args.image + i * (args.bytes / 16), shared.box, args.bytes, threads);
      hopper::cta_sync();
    }
  }
};

TEST_P(Tma, LoadsBoxesAndFillsWithZero) {
  std::size_t combination = 0;
  for (const int swizzle_bytes : {32, 64, 128})
    for (const int box_rows : {8, 24, 80, 256}) {
      Tensor tensor({72, 100, 3, 2}, orders[combination++ % 3]);
      SCOPED_TRACE(testing::Message() << box_rows << " rows, swizzle " << swizzle_bytes);
      const std::vector<Coordinates> at = {{0, 0, 0, 0},   {0, 8, 2, 1},  {64, 96, 1, 1}, {8, 1, 0, 1},
                                           {-8, -5, 1, 0}, {16, 0, 3, 0}, {16, 0, -1, 0}, {0, 0, 0, 2},
                                           {72, 0, 0, 0},  {0, 100, 0, 0}};
      const int bytes = box_rows * swizzle_bytes;
      Buffer<std::uint16_t> memory(tensor.data);
      Buffer<Coordinates> boxes(at);
      Buffer<Chunk> image(at.size() * std::size_t(bytes) / 16, Chunk{1, 2, 3, 4});
      launch<LoadBoxes>(
          {tensor.map(memory.data(), box_rows, swizzle_bytes), boxes.data(), int(at.size()), bytes, image.data()});
      std::vector<Chunk> expected(at.size() * std::size_t(bytes) / 16);
      for (std::size_t i = 0; i < at.size(); ++i)
        for_each_in_box(at[i], box_rows, swizzle_bytes, [&](Coordinates element, std::size_t byte) {
          if (const std::uint16_t* bits = tensor.find(element))
            std::memcpy(reinterpret_cast<char*>(expected.data()) + i * std::size_t(bytes) + byte, bits, 2);
        });
      expect_equal(image.read(), expected);
    }
}

/// Stores boxes from two buffers in turn; the latest store may still be reading while the next box is written.
template <bool add>
struct StoreBoxes {
  static constexpr int threads = 128;
  struct Arguments {
    hopper::TensorMap map;
    const Coordinates* at;
    int count, bytes;
    const Chunk* image;
  };
  struct Shared {
    alignas(1024) Chunk box[2][max_box_bytes / 16];
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int me = rank();
    for (int i = 0; i < args.count; ++i) {
      if (me == 0) hopper::store_wait_read<1>();
      hopper::cta_sync();
      copy_in(shared.box[i % 2], args.image + i * (args.bytes / 16), args.bytes, threads);
      hopper::fence_async_shared();
      hopper::cta_sync();
      if (me == 0) {
        if constexpr (add) {
          hopper::tma_reduce_add(args.map, args.at[i], hopper::shared_address(shared.box[i % 2]));
        } else {
          hopper::tma_store(args.map, args.at[i], hopper::shared_address(shared.box[i % 2]));
        }
        hopper::store_commit();
      }
    }
    if (me == 0) hopper::store_wait_read<0>();
  }
};

/// Boxes that cover a tensor and reach over its edges, and some outside it.
inline std::vector<Coordinates> cover(const Tensor& tensor, int box_rows, int features) {
  std::vector<Coordinates> at = {{0, 0, tensor.extent[2], 0}, {0, 0, 0, tensor.extent[3]}, {tensor.extent[0], 0, 0, 0}};
  for (int batch = 0; batch < tensor.extent[3]; ++batch)
    for (int head = 0; head < tensor.extent[2]; ++head)
      for (int row = 0; row < tensor.extent[1]; row += box_rows)
        for (int feature = 0; feature < tensor.extent[0]; feature += features)
          at.push_back({feature, row, head, batch});
  return at;
}

TEST_P(Tma, StoresBoxesAndClips) {
  std::size_t combination = 0;
  for (const int swizzle_bytes : {32, 64, 128})
    for (const int box_rows : {8, 16, 256}) {
      Tensor tensor({72, 20, 2, 2}, orders[combination++ % 3]);
      SCOPED_TRACE(testing::Message() << box_rows << " rows, swizzle " << swizzle_bytes);
      const std::vector<Coordinates> at = cover(tensor, box_rows, swizzle_bytes / 2);
      const int bytes = box_rows * swizzle_bytes;
      std::vector<Chunk> boxes(at.size() * std::size_t(bytes) / 16);
      for (std::size_t i = 0; i < boxes.size(); ++i)
        for (std::uint32_t word = 0; word < 4; ++word) boxes[i].word[word] = std::uint32_t(4 * i + word) * 2654435761u;
      Buffer<std::uint16_t> memory(tensor.data);
      Buffer<Coordinates> positions(at);
      Buffer<Chunk> image(boxes);
      launch<StoreBoxes<false>>(
          {tensor.map(memory.data(), box_rows, swizzle_bytes), positions.data(), int(at.size()), bytes, image.data()});
      for (std::size_t i = 0; i < at.size(); ++i)
        for_each_in_box(at[i], box_rows, swizzle_bytes, [&](Coordinates element, std::size_t byte) {
          if (std::uint16_t* bits = tensor.find(element))
            std::memcpy(bits, reinterpret_cast<const char*>(boxes.data()) + i * std::size_t(bytes) + byte, 2);
        });
      EXPECT_EQ(memory.read(), tensor.data);  // the gaps between the rows too
    }
}

TEST_P(Tma, ReducesByAdding) {
  for (const Element element : {Element::f16, Element::bf16}) {
    SCOPED_TRACE(name(element));
    constexpr int box_rows = 16, swizzle_bytes = 128, bytes = box_rows * swizzle_bytes;
    Tensor tensor({72, 20, 2, 2}, orders[0]);
    for (std::size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] = to_bits(element, double(i % 17) - 8);
    std::vector<Coordinates> at = cover(tensor, box_rows, swizzle_bytes / 2);
    const std::vector<Coordinates> again = at;
    at.insert(at.end(), again.begin(), again.end());  // adding twice adds twice
    std::vector<Chunk> boxes(at.size() * std::size_t(bytes) / 16);
    const auto bits_of = [&](std::size_t i) { return to_bits(element, double(i % 13) * 0.5 - 3); };
    for (std::size_t i = 0; i < boxes.size() * 4; ++i)
      boxes[i / 4].word[i % 4] = bits_of(2 * i) | std::uint32_t(bits_of(2 * i + 1)) << 16;
    Buffer<std::uint16_t> memory(tensor.data);
    Buffer<Coordinates> positions(at);
    Buffer<Chunk> image(boxes);
    launch<StoreBoxes<true>>({tensor.map(memory.data(), box_rows, swizzle_bytes, element), positions.data(),
                              int(at.size()), bytes, image.data()});
    for (std::size_t i = 0; i < at.size(); ++i)
      for_each_in_box(at[i], box_rows, swizzle_bytes, [&](Coordinates position, std::size_t byte) {
        std::uint16_t addend;
        std::memcpy(&addend, reinterpret_cast<const char*>(boxes.data()) + i * std::size_t(bytes) + byte, 2);
        if (std::uint16_t* bits = tensor.find(position))
          *bits = to_bits(element, double(to_value(element, *bits)) + to_value(element, addend));
      });
    EXPECT_EQ(memory.read(), tensor.data);
  }
}

/// load_tile, then store_rows by every warp for its own rows.
template <int rows, int columns>
struct MoveTile {
  static constexpr int threads = 128;
  using Tile = hopper::SharedTile<rows, columns>;
  struct Arguments {
    hopper::TensorMap from, to;  // boxes of `rows` and of 16 rows
    Coordinates from_at, to_at;
    Chunk* image;
  };
  struct Shared {
    Tile tile;
    hopper::Mbarrier full;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int me = rank(), first_row = 16 * hopper::warp_of_warpgroup();
    if (me == 0) {
      shared.full.init(1);
      hopper::fence_barrier_init();
      shared.full.arrive_expect_bytes(Tile::bytes);
      hopper::load_tile(shared.tile, args.from, args.from_at, shared.full);
    }
    hopper::cta_sync();
    shared.full.wait(0);
    copy_out(args.image, &shared.tile, Tile::bytes, threads);
    if (hopper::lane() == 0) {
      for (int row = first_row; row < rows; row += 64) {
        hopper::store_rows(args.to, {args.to_at.feature, args.to_at.row + row, args.to_at.head, args.to_at.batch},
                           shared.tile, row);
        hopper::store_commit();
      }
      hopper::store_wait_read<0>();
    }
  }
};

TEST_P(Tma, MovesTilesOfManyPanels) {
  const auto test = [&]<int rows, int columns>(hopper::SharedTile<rows, columns>*, int head_step, int batch_step) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", steps " << head_step << ", " << batch_step);
    using Kernel = MoveTile<rows, columns>;
    // A repeated dimension has extent 1 and is addressed by any coordinate.
    Tensor from({columns - 8, rows + 9, head_step ? 3 : 1, batch_step ? 2 : 1}, orders[1]),
        to({columns - 16, rows + 5, 2, 2}, orders[0]);
    Buffer<std::uint16_t> from_memory(from.data), to_memory(to.data);
    Buffer<Chunk> image(Kernel::Tile::bytes / 16, Chunk{});
    typename Kernel::Arguments args{from.map(from_memory.data(), rows, 128),
                                    to.map(to_memory.data(), 16, 128),
                                    {0, 16, 2, 1},
                                    {0, 8, 1, 1},
                                    image.data()};
    args.from.head_step = head_step;
    args.from.batch_step = batch_step;
    launch<Kernel>(args);
    const auto element = [&](int row, int column) {
      const std::uint16_t* bits = from.find({column, 16 + row, 2 * head_step, batch_step});
      return bits ? *bits : std::uint16_t(0);
    };
    expect_equal(image.read(), tile_image(rows, columns, element));
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < columns; ++column)
        if (std::uint16_t* bits = to.find({column, 8 + row, 1, 1})) *bits = element(row, column);
    EXPECT_EQ(to_memory.read(), to.data);
  };
  test(static_cast<hopper::SharedTile<80, 64>*>(nullptr), 1, 1);
  test(static_cast<hopper::SharedTile<112, 96>*>(nullptr), 1, 1);
  test(static_cast<hopper::SharedTile<128, 128>*>(nullptr), 0, 1);
  test(static_cast<hopper::SharedTile<192, 192>*>(nullptr), 1, 0);
  test(static_cast<hopper::SharedTile<128, 256>*>(nullptr), 0, 0);
}

/// A ring of three stages. Two threads of warpgroup 0 load a tile each into a stage, expecting their own bytes on its
/// "full" barrier; the warps of warpgroup 1 read and release it.
struct Ring {
  static constexpr int threads = 256, stages = 3, rows = 64;
  using Tile = hopper::SharedTile<rows, 64>;
  struct Arguments {
    hopper::TensorMap map;
    int blocks;
    Chunk* image;  // blocks x 2 tiles
  };
  struct Shared {
    Tile tile[stages][2];
    hopper::Mbarrier full[stages], empty[stages];
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int warpgroup = hopper::warpgroup(), warp = hopper::warp_of_warpgroup(), me = rank();
    if (me == 0) {
      for (int i = 0; i < stages; ++i) {
        shared.full[i].init(2);
        shared.empty[i].init(4);
      }
      hopper::fence_barrier_init();
    }
    hopper::cta_sync();
    const bool loads = warpgroup == 0 && warp < 2 && hopper::elect_one();
    if (warpgroup == 0 && !loads) return;
    for (int i = 0; i < args.blocks; ++i) {
      const int stage = i % stages, phase = i / stages % 2;
      if (loads) {
        shared.empty[stage].wait(phase ^ 1);
        shared.full[stage].arrive_expect_bytes(Tile::bytes);
        hopper::load_tile(shared.tile[stage][warp], args.map, {0, rows * i, warp, 0}, shared.full[stage]);
      } else {
        shared.full[stage].wait(phase);
        for (int j = me - 128; j < 2 * Tile::bytes / 16; j += 128)
          args.image[i * (2 * Tile::bytes / 16) + j] =
              hopper::load_shared(reinterpret_cast<const Chunk*>(shared.tile[stage])[j]);
        hopper::warp_sync();
        if (hopper::lane() == 0) shared.empty[stage].arrive();
      }
    }
  }
};

TEST_P(Tma, LoadsThroughARing) {
  constexpr int blocks = 11;
  Tensor tensor({64, blocks * Ring::rows - 10, 2, 1}, orders[1]);
  Buffer<std::uint16_t> memory(tensor.data);
  Buffer<Chunk> image(std::size_t(blocks * 2 * Ring::Tile::bytes / 16), Chunk{});
  Ring::Arguments args{tensor.map(memory.data(), Ring::rows, 128), blocks, image.data()};
  args.map.head_step = 1;
  launch<Ring>(args);
  std::vector<Chunk> expected;
  for (int i = 0; i < 2 * blocks; ++i) {
    const std::vector<Chunk> tile = tile_image(Ring::rows, 64, [&](int row, int column) {
      const std::uint16_t* bits = tensor.find({column, i / 2 * Ring::rows + row, i % 2, 0});
      return bits ? *bits : std::uint16_t(0);
    });
    expected.insert(expected.end(), tile.begin(), tile.end());
  }
  expect_equal(image.read(), expected);
}

}  // namespace fa3::hopper_test
