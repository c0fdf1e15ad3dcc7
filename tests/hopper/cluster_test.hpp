// Clusters of CTAs: identity, barriers over the cluster, remote arrivals, sent words and bytes, multicast loads.
#pragma once

#include <array>
#include <set>

#include "tma_test.hpp"

namespace fa3::hopper_test {

class Clusters : public MachineTest {};
INSTANTIATE_TEST_SUITE_P(, Clusters, modes(), ModeName());

/// By CTA. A CTA whose rounds are right has seen what its peer wrote in each of them.
struct ClusterIdentity {
  static constexpr int threads = 128, rounds = 8;
  struct Record {
    int cluster, cluster_count, rank, size, right;
    bool operator==(const Record&) const = default;
  };
  struct Arguments {
    Record* record;
    int* round;  // of every CTA
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    const int me = hopper::cta(), peer = me ^ 1;
    int right = 0;
    for (int i = 1; i <= rounds; ++i) {
      if (rank() == 0) args.round[me] = i;
      hopper::cluster_sync();
      right += const_cast<const volatile int*>(args.round)[peer] == i;
      hopper::cluster_sync();
    }
    if (rank() == threads - 1)
      args.record[me] = {hopper::cluster(), hopper::cluster_count(), hopper::cluster_rank(), hopper::cluster_size(),
                         right};
  }
};

TEST_P(Clusters, KnowWhoTheyAreAndWaitForEachOther) {
  constexpr int ctas = 6;
  Buffer<ClusterIdentity::Record> record(ctas, ClusterIdentity::Record{});
  Buffer<int> round(ctas, 0);
  launch<ClusterIdentity>({record.data(), round.data()}, ctas, 2);
  const std::vector<ClusterIdentity::Record> got = record.read();
  for (int i = 0; i < ctas; ++i)
    EXPECT_TRUE((got[std::size_t(i)] == ClusterIdentity::Record{i / 2, ctas / 2, i % 2, 2, ClusterIdentity::rounds}))
        << "CTA " << i;
}

/// Without clusters every CTA is one.
struct LoneCluster {
  static constexpr int threads = 128;
  struct Arguments {
    int* right;
  };
  struct Shared {
    hopper::Mbarrier told, arrived;
    std::uint32_t word;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    if (rank() == 0) {
      shared.told.init(1);
      shared.arrived.init(threads);
      hopper::fence_barrier_init();
    }
    hopper::cluster_sync();
    if (rank() == 0) {
      shared.told.arrive_expect_bytes(4);
      hopper::send_word(shared.word, 77u, shared.told, 0);
    }
    shared.arrived.arrive_remote(0);
    shared.told.wait(0);
    shared.arrived.wait(0);
    const bool right = hopper::cluster_rank() == 0 && hopper::cluster_size() == 1 &&
                       hopper::cluster() == hopper::cta() && hopper::cluster_count() == hopper::cta_count() &&
                       hopper::load_shared(shared.word) == 77u;
    args.right[hopper::cta() * threads + rank()] = right;
  }
};

TEST_P(Clusters, OfOneCta) {
  constexpr int ctas = 3;
  Buffer<int> right(ctas * LoneCluster::threads, 0);
  launch<LoneCluster>({right.data()}, ctas);
  EXPECT_EQ(right.read(), std::vector<int>(ctas * LoneCluster::threads, 1));
}

/// Rings of two words from each CTA of a cluster to every CTA, itself too. The words of a slot count on one barrier;
/// all readers tell both writers that the slot is free.
struct WordRing {
  static constexpr int threads = 128, slots = 2, items = 9, ctas = 2;
  struct Arguments {
    std::uint32_t* got;  // by CTA, item, sender, thread
  };
  struct Shared {
    std::uint32_t word[slots][ctas];
    hopper::Mbarrier full[slots], empty[slots];
  };
  HOPPER_FUNCTION static std::uint32_t value(int cta, int item, int receiver) {
    return std::uint32_t(cta * 1000000 + item * 1000 + receiver);
  }
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int me = rank(), own = hopper::cluster_rank();
    if (me == 0) {
      for (int i = 0; i < slots; ++i) {
        shared.full[i].init(1);
        shared.empty[i].init(ctas * threads);
      }
      hopper::fence_barrier_init();
    }
    hopper::cluster_sync();
    for (int i = 0; i < items; ++i) {
      const int slot = i % slots, phase = i / slots % 2;
      if (me == 0) {
        shared.empty[slot].wait(phase ^ 1);
        shared.full[slot].arrive_expect_bytes(4 * ctas);
        for (int to = 0; to < ctas; ++to)
          hopper::send_word(shared.word[slot][own], value(hopper::cta(), i, to), shared.full[slot], to);
      }
      shared.full[slot].wait(phase);
      for (int from = 0; from < ctas; ++from)
        args.got[((hopper::cta() * items + i) * ctas + from) * threads + me] =
            hopper::load_shared(shared.word[slot][from]);
      for (int to = 0; to < ctas; ++to) shared.empty[slot].arrive_remote(to);
    }
    hopper::cluster_sync();
  }
};

TEST_P(Clusters, SendWordsAndTellThatTheyWereRead) {
  constexpr int ctas = 4;
  Buffer<std::uint32_t> got(ctas * WordRing::items * 2 * WordRing::threads, 0u);
  launch<WordRing>({got.data()}, ctas, 2);
  const std::vector<std::uint32_t> values = got.read();
  std::size_t next = 0;
  for (int cta = 0; cta < ctas; ++cta)
    for (int item = 0; item < WordRing::items; ++item)
      for (int from = 0; from < 2; ++from)
        for (int t = 0; t < WordRing::threads; ++t)
          ASSERT_EQ(values[next++], std::uint32_t((cta / 2 * 2 + from) * 1000000 + item * 1000 + cta % 2))
              << "CTA " << cta << ", item " << item << ", from rank " << from << ", thread " << t;
}

/// Every warp of a CTA writes a piece and sends it to the peer, through two buffers. Readers tell the sender that its
/// piece has been read there, so that it may write the next one and send it.
struct ByteRing {
  static constexpr int threads = 128, stages = 2, items = 9, words = 128;  // a piece's words
  struct Arguments {
    std::uint32_t* got;  // by CTA, item, warp, word
  };
  struct Shared {
    alignas(16) std::uint32_t own[stages][4][words], peer[stages][4][words];
    hopper::Mbarrier full[stages], empty[stages];
  };
  static constexpr std::uint32_t value(int cta, int item, int warp, int word) {
    return std::uint32_t(cta * 10000000 + item * 100000 + warp * 1000 + word);
  }
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int me = rank(), warp = me / 32, lane = hopper::lane(), peer = 1 - hopper::cluster_rank();
    if (me == 0) {
      for (int i = 0; i < stages; ++i) {
        shared.full[i].init(4);
        shared.empty[i].init(4);
      }
      hopper::fence_barrier_init();
    }
    hopper::cluster_sync();
    for (int i = 0; i < items; ++i) {
      const int stage = i % stages, phase = i / stages % 2;
      shared.empty[stage].wait(phase ^ 1);
      for (int word = lane; word < words; word += 32)
        hopper::store_shared(shared.own[stage][warp][word], value(hopper::cta(), i, warp, word));
      hopper::fence_async_shared();
      hopper::warp_sync();
      if (lane == 0) {
        shared.full[stage].arrive_expect_bytes(4 * words);
        hopper::send_bytes(shared.peer[stage][warp], shared.own[stage][warp], 4 * words, shared.full[stage], peer);
      }
      shared.full[stage].wait(phase);
      for (int word = lane; word < words; word += 32)
        args.got[((hopper::cta() * items + i) * 4 + warp) * words + word] =
            hopper::load_shared(shared.peer[stage][warp][word]);
      hopper::warp_sync();
      if (lane == 0) shared.empty[stage].arrive_remote(peer);
    }
    hopper::cluster_sync();
  }
};

TEST_P(Clusters, SendBytes) {
  constexpr int ctas = 4;
  Buffer<std::uint32_t> got(ctas * ByteRing::items * 4 * ByteRing::words, 0u);
  launch<ByteRing>({got.data()}, ctas, 2);
  const std::vector<std::uint32_t> values = got.read();
  std::size_t next = 0;
  for (int cta = 0; cta < ctas; ++cta)
    for (int item = 0; item < ByteRing::items; ++item)
      for (int warp = 0; warp < 4; ++warp)
        for (int word = 0; word < ByteRing::words; ++word)
          ASSERT_EQ(values[next++], ByteRing::value(cta ^ 1, item, warp, word))
              << "CTA " << cta << ", item " << item << ", warp " << warp << ", word " << word;
}

/// A tile that both CTAs of a cluster load half of, for both.
template <int rows, int columns>
struct MulticastTile {
  static constexpr int threads = 128, ctas = 2;
  using Tile = hopper::SharedTile<rows, columns>;
  struct Arguments {
    hopper::TensorMap map;  // boxes of rows / 2
    Coordinates at;
    Chunk* image;  // of each CTA
  };
  struct Shared {
    Tile tile;
    hopper::Mbarrier full;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    if (rank() == 0) {
      shared.full.init(1);
      hopper::fence_barrier_init();
    }
    hopper::cluster_sync();
    if (rank() == 0) {
      shared.full.arrive_expect_bytes(Tile::bytes);
      hopper::load_tile_multicast<ctas>(shared.tile, args.map, args.at, shared.full);
    }
    shared.full.wait(0);
    copy_out(args.image + hopper::cta() * (Tile::bytes / 16), &shared.tile, Tile::bytes, threads);
    hopper::cluster_sync();
  }
};

TEST_P(Clusters, LoadHalfATileEachForBoth) {
  const auto test = [&]<int rows, int columns>(hopper::SharedTile<rows, columns>*, int head_step, int batch_step) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", steps " << head_step << ", " << batch_step);
    using Kernel = MulticastTile<rows, columns>;
    // Ends inside the second half: that is filled with zeros.
    Tensor tensor({columns - 8, rows + 3, head_step ? 3 : 1, batch_step ? 2 : 1}, orders[1]);
    Buffer<std::uint16_t> memory(tensor.data);
    Buffer<Chunk> image(2 * Kernel::Tile::bytes / 16, Chunk{});
    typename Kernel::Arguments args{tensor.map(memory.data(), rows / 2, 128), {0, 16, 2, 1}, image.data()};
    args.map.head_step = head_step;
    args.map.batch_step = batch_step;
    launch<Kernel>(args, 2, 2);
    std::vector<Chunk> expected = tile_image(rows, columns, [&](int row, int column) {
      const std::uint16_t* bits = tensor.find({column, 16 + row, 2 * head_step, batch_step});
      return bits ? *bits : std::uint16_t(0);
    });
    const std::vector<Chunk> tile = expected;
    expected.insert(expected.end(), tile.begin(), tile.end());
    expect_equal(image.read(), expected);
  };
  test(static_cast<hopper::SharedTile<80, 64>*>(nullptr), 1, 1);  // a half is no multiple of 16 rows
  test(static_cast<hopper::SharedTile<128, 128>*>(nullptr), 0, 1);
  test(static_cast<hopper::SharedTile<176, 128>*>(nullptr), 1, 0);
  test(static_cast<hopper::SharedTile<80, 256>*>(nullptr), 0, 0);
}

/// A ring of two stages that both CTAs of a cluster fill, half a tile each for both, and whose readers release a stage
/// to both. Clusters take every cluster_count()-th tile.
struct MulticastRing {
  static constexpr int threads = 256, stages = 2, rows = 64, ctas = 2;
  using Tile = hopper::SharedTile<rows, 64>;
  struct Arguments {
    hopper::TensorMap map;  // boxes of rows / 2
    int tiles;
    Chunk* image;  // tiles x 2 CTAs
  };
  struct Shared {
    Tile tile[stages];
    hopper::Mbarrier full[stages], empty[stages];
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int warpgroup = hopper::warpgroup(), warp = hopper::warp_of_warpgroup(), me = rank();
    if (me == 0) {
      for (int i = 0; i < stages; ++i) {
        shared.full[i].init(1);
        shared.empty[i].init(4 * ctas);
      }
      hopper::fence_barrier_init();
    }
    hopper::cluster_sync();
    const bool loads = warpgroup == 0 && warp == 0 && hopper::elect_one();
    int stage = 0, phase = 0;
    for (int i = hopper::cluster(); i < args.tiles; i += hopper::cluster_count()) {
      if (loads) {
        shared.empty[stage].wait(phase ^ 1);
        shared.full[stage].arrive_expect_bytes(Tile::bytes);
        hopper::load_tile_multicast<ctas>(shared.tile[stage], args.map, {0, rows * i, 0, 0}, shared.full[stage]);
      } else if (warpgroup == 1) {
        shared.full[stage].wait(phase);
        for (int j = me - 128; j < Tile::bytes / 16; j += 128)
          args.image[(ctas * i + hopper::cluster_rank()) * (Tile::bytes / 16) + j] =
              hopper::load_shared(reinterpret_cast<const Chunk*>(&shared.tile[stage])[j]);
        hopper::warp_sync();
        if (hopper::lane() < ctas) shared.empty[stage].arrive_remote(hopper::lane());
      }
      phase ^= stage == stages - 1;
      stage = (stage + 1) % stages;
    }
    hopper::warp_sync();
    hopper::cluster_sync();
  }
};

TEST_P(Clusters, ShareTilesThroughARing) {
  for (const int tiles : {1, 2, 23}) {
    SCOPED_TRACE(tiles);
    Tensor tensor({64, tiles * MulticastRing::rows - 10, 1, 1}, orders[1]);
    Buffer<std::uint16_t> memory(tensor.data);
    Buffer<Chunk> image(std::size_t(tiles * 2 * MulticastRing::Tile::bytes / 16), Chunk{});
    launch<MulticastRing>({tensor.map(memory.data(), MulticastRing::rows / 2, 128), tiles, image.data()}, 4, 2);
    std::vector<Chunk> expected;
    for (int i = 0; i < 2 * tiles; ++i) {
      const std::vector<Chunk> tile = tile_image(MulticastRing::rows, 64, [&](int row, int column) {
        const std::uint16_t* bits = tensor.find({column, i / 2 * MulticastRing::rows + row, 0, 0});
        return bits ? *bits : std::uint16_t(0);
      });
      expected.insert(expected.end(), tile.begin(), tile.end());
    }
    expect_equal(image.read(), expected);
  }
}

}  // namespace fa3::hopper_test
