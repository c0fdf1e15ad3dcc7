// What CTAs do with each other by way of global memory, and bulk loads from it.
#pragma once

#include "values.hpp"

namespace fa3::hopper_test {

class Grid : public MachineTest {};
INSTANTIATE_TEST_SUITE_P(, Grid, modes(), ModeName());

/// Every thread of every CTA adds four numbers to each of some places, neighbouring threads to the same ones.
struct AddToGlobal {
  static constexpr int threads = 128, places = 48;
  struct Arguments {
    float* sum;  // 4 x places
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    for (int i = 0; i < places; ++i) {
      const float four[4] = {1.0f, float(rank()), float(hopper::cta()), float(i)};
      hopper::add_to_global(args.sum + 4 * ((i + rank()) % places), four);
    }
  }
};

TEST_P(Grid, AddsFourNumbersAtATime) {
  constexpr int ctas = 5, threads = AddToGlobal::threads, places = AddToGlobal::places;
  Buffer<float> sum(4 * places, 0.5f);
  launch<AddToGlobal>({sum.data()}, ctas);
  std::vector<float> expected(4 * places, 0.5f);
  for (int cta = 0; cta < ctas; ++cta)
    for (int thread = 0; thread < threads; ++thread)
      for (int i = 0; i < places; ++i) {
        float* const at = expected.data() + 4 * ((i + thread) % places);
        at[0] += 1;
        at[1] += float(thread);
        at[2] += float(cta);
        at[3] += float(i);
      }
  EXPECT_EQ(sum.read(), expected);
}

/// CTAs change a number one after the other; a warp of each waits for its turn and passes it on.
struct Turns {
  static constexpr int threads = 128;
  struct Arguments {
    unsigned* count;
    std::uint32_t* number;  // 32 of them, each changed by a lane
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    if (hopper::warp_of_warpgroup() != 2) return;
    if (hopper::elect_one()) hopper::wait_for_count(*args.count, unsigned(hopper::cta()));
    hopper::warp_sync();
    volatile std::uint32_t& mine = args.number[hopper::lane()];
    mine = 3 * mine + std::uint32_t(hopper::cta());
    hopper::warp_sync();
    if (hopper::elect_one()) hopper::raise_count(*args.count);
  }
};

TEST_P(Grid, TakesTurnsInTheOrderOfTheCtas) {
  constexpr int ctas = 40;
  Buffer<unsigned> count(1, 0u);
  Buffer<std::uint32_t> number(32, 1u);
  launch<Turns>({count.data(), number.data()}, ctas);
  std::uint32_t expected = 1;
  for (int cta = 0; cta < ctas; ++cta) expected = 3 * expected + std::uint32_t(cta);
  EXPECT_EQ(number.read(), std::vector<std::uint32_t>(32, expected));
  EXPECT_EQ(count.read()[0], unsigned(ctas));
}

/// Every warp of every CTA adds numbers of its own to the same places, through shared memory, twice from one buffer.
struct BulkAdds {
  static constexpr int threads = 128, floats = 96;
  struct Arguments {
    float* sum;
  };
  struct Shared {
    alignas(16) float staged[threads / 32][floats];
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    auto& mine = shared.staged[rank() / 32];
    for (int i = 0; i < 2; ++i) {
      if (rank() % 32 == 0) hopper::store_wait_read<0>();
      hopper::warp_sync();
      for (int j = rank() % 32; j < floats; j += 32) hopper::store_shared(mine[j], float(j + 100 * i + rank() / 32));
      hopper::fence_async_shared();
      hopper::warp_sync();
      if (rank() % 32 == 0) {
        hopper::add_floats(args.sum, mine, sizeof(mine));
        hopper::store_commit();
      }
    }
    if (rank() % 32 == 0) hopper::store_wait<0>();
  }
};

TEST_P(Grid, AddsFromSharedMemory) {
  constexpr int ctas = 30;
  Buffer<float> sum(BulkAdds::floats, 0.5f);
  launch<BulkAdds>({sum.data()}, ctas);
  std::vector<float> expected;
  for (int j = 0; j < BulkAdds::floats; ++j) expected.push_back(0.5f + ctas * (8.0f * float(j) + 412.0f));
  EXPECT_EQ(sum.read(), expected);
}

/// Three warps stage numbers, the fourth's first thread has the fence and adds them, again and again from one buffer.
struct AddsForOthers {
  static constexpr int threads = 128, floats = 96, rounds = 20;
  struct Arguments {
    float* sum;
  };
  struct Shared {
    alignas(16) float staged[floats];
    hopper::Mbarrier full, empty;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int me = rank();
    if (me == 0) {
      shared.full.init(floats);
      shared.empty.init(1);
      hopper::fence_barrier_init();
    }
    hopper::cta_sync();
    for (int i = 0; i < rounds; ++i) {
      if (me < floats) {
        shared.empty.wait(i % 2 ^ 1);
        hopper::store_shared(shared.staged[me], float(i + me));
        shared.full.arrive();
      } else if (me == floats) {
        shared.full.wait(i % 2);
        hopper::fence_async_shared();
        hopper::add_floats(args.sum, shared.staged, sizeof(shared.staged));
        hopper::store_commit();
        hopper::store_wait_read<0>();
        shared.empty.arrive();
      }
    }
    if (me == floats) hopper::store_wait<0>();
  }
};

TEST_P(Grid, AddsWhatOthersStaged) {
  constexpr int ctas = 30, rounds = AddsForOthers::rounds;
  Buffer<float> sum(AddsForOthers::floats, 0.5f);
  launch<AddsForOthers>({sum.data()}, ctas);
  std::vector<float> expected;
  for (int j = 0; j < AddsForOthers::floats; ++j)
    expected.push_back(0.5f + float(ctas * rounds * (rounds - 1 + 2 * j) / 2));
  EXPECT_EQ(sum.read(), expected);
}

/// Rows of numbers through a ring of two buffers.
struct BulkRing {
  static constexpr int threads = 128, stages = 2, chunks = 24;
  struct Arguments {
    const Chunk* from;
    int rows;
    Chunk* to;
  };
  struct Shared {
    Chunk row[stages][chunks];
    hopper::Mbarrier full[stages], empty[stages];
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    if (rank() == 0) {
      for (int i = 0; i < stages; ++i) {
        shared.full[i].init(1);
        shared.empty[i].init(threads);
      }
      hopper::fence_barrier_init();
    }
    hopper::cta_sync();
    const int me = rank();
    for (int i = 0; i < args.rows; ++i) {
      const int stage = i % stages, phase = i / stages % 2;
      if (me == 0) {
        shared.empty[stage].wait(phase ^ 1);
        shared.full[stage].arrive_expect_bytes(16 * chunks);
        hopper::load_bytes(shared.row[stage], args.from + i * chunks, 16 * chunks, shared.full[stage]);
      }
      shared.full[stage].wait(phase);
      if (me < chunks) args.to[i * chunks + me] = hopper::load_shared(shared.row[stage][me]);
      shared.empty[stage].arrive();
    }
  }
};

TEST_P(Grid, LoadsBytes) {
  constexpr int rows = 7;
  std::vector<Chunk> chunk(std::size_t(rows * BulkRing::chunks));
  for (std::size_t i = 0; i < chunk.size(); ++i)
    for (std::size_t word = 0; word < 4; ++word) chunk[i].word[word] = pattern(4 * i + word);
  Buffer<Chunk> from(chunk), to(chunk.size(), Chunk{});
  launch<BulkRing>({from.data(), rows, to.data()});
  expect_equal(to.read(), chunk);
}

}  // namespace fa3::hopper_test
