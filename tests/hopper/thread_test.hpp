// Threads, barriers, registers, ordinary accesses, atomics.
#pragma once

#include <set>

#include "machine.hpp"

namespace fa3::hopper_test {

class Threads : public MachineTest {};
INSTANTIATE_TEST_SUITE_P(, Threads, modes(), ModeName());

struct Identity {
  static constexpr int threads = 256;
  struct Record {
    int cta, cta_count, warpgroup, warp, lane, elected, thread, of_warp;
  };
  struct Arguments {
    Record* record;
    unsigned* next;
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    const int warp = hopper::warp_of_warpgroup();
    const Record record{
        hopper::cta(),  hopper::cta_count(), hopper::warpgroup(),           warp,
        hopper::lane(), hopper::elect_one(), hopper::thread_of_warpgroup(), hopper::in_uniform_register(warp - 1000)};
    const unsigned count = unsigned(threads * hopper::cta_count());
    args.record[hopper::atomic_add(args.next, 1u) % count] = record;
  }
};

TEST_P(Threads, EveryThreadIsOnceAndOneOfAWarpIsElected) {
  constexpr int ctas = 3, count = ctas * Identity::threads;
  Buffer<Identity::Record> buffer(count, Identity::Record{-1, -1, -1, -1, -1, -1, -1, -1});
  Buffer<unsigned> next(std::vector<unsigned>{0});
  launch<Identity>({buffer.data(), next.data()}, ctas);
  EXPECT_EQ(next.read()[0],
            unsigned(count));  // and the tickets were 0, 1, ..: every record is overwritten, each by one thread
  std::set<int> seen;
  std::vector<int> elected(count / 32);
  for (const Identity::Record& record : buffer.read()) {
    ASSERT_TRUE(record.cta >= 0 && record.cta < ctas && record.warpgroup >= 0 && record.warpgroup < 2 &&
                record.warp >= 0 && record.warp < 4 && record.lane >= 0 && record.lane < 32);
    EXPECT_EQ(record.cta_count, ctas);
    EXPECT_EQ(record.thread, 32 * record.warp + record.lane);
    EXPECT_EQ(record.of_warp, record.warp - 1000);
    const int warp = record.cta * 8 + record.warpgroup * 4 + record.warp;
    EXPECT_TRUE(seen.insert(32 * warp + record.lane).second);
    elected[std::size_t(warp)] += record.elected;
  }
  EXPECT_EQ(int(seen.size()), count);
  EXPECT_EQ(elected, std::vector<int>(count / 32, 1));
}

/// A record of a size that is no power of two.
struct Record {
  int round, rank, sum;
};

/// Rounds in which each thread reads what another one wrote: over the CTA and within the warp.
struct Rounds {
  static constexpr int threads = 256, rounds = 8;
  struct Arguments {
    int *by_cta, *by_warp;  // number of right records per thread
  };
  struct Shared {
    Record record[threads];
    std::uint64_t word[threads];
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int me = rank(), stranger = (me + 101) % threads, neighbour = me / 32 * 32 + (me + 5) % 32;
    int right[2] = {0, 0};
    for (int i = 0; i < rounds; ++i) {
      hopper::store_shared(shared.record[me], Record{i, me, 3 * i + me});
      hopper::cta_sync();
      const Record record = hopper::load_shared(shared.record[stranger]);
      right[0] += record.round == i && record.rank == stranger && record.sum == 3 * i + stranger;
      hopper::cta_sync();
    }
    for (int i = 0; i < rounds; ++i) {
      hopper::store_shared(shared.word[me], std::uint64_t(i) << 40 | std::uint64_t(me));
      hopper::warp_sync();
      right[1] += hopper::load_shared(shared.word[neighbour]) == (std::uint64_t(i) << 40 | std::uint64_t(neighbour));
      hopper::warp_sync();
    }
    args.by_cta[me] = right[0];
    args.by_warp[me] = right[1];
  }
};

TEST_P(Threads, SyncOrdersOrdinaryAccesses) {
  Buffer<int> by_cta(Rounds::threads, -1), by_warp(Rounds::threads, -1);
  launch<Rounds>({by_cta.data(), by_warp.data()});
  EXPECT_EQ(by_cta.read(), std::vector<int>(Rounds::threads, Rounds::rounds));
  EXPECT_EQ(by_warp.read(), std::vector<int>(Rounds::threads, Rounds::rounds));
}

struct Tickets {
  static constexpr int threads = 128;
  struct Arguments {
    unsigned* counter;
    unsigned* ticket;
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    args.ticket[hopper::cta() * threads + rank()] = hopper::atomic_add(args.counter, 3u);
  }
};

TEST_P(Threads, AtomicAddGivesEveryThreadAnotherOldValue) {
  constexpr unsigned ctas = 4, count = ctas * Tickets::threads;
  Buffer<unsigned> counter(std::vector<unsigned>{0xffffff00u}), ticket(count, 0u);  // wraps around
  launch<Tickets>({counter.data(), ticket.data()}, ctas);
  std::set<unsigned> seen;
  for (const unsigned x : ticket.read()) seen.insert(x - 0xffffff00u);
  std::set<unsigned> expected;
  for (unsigned i = 0; i < count; ++i) expected.insert(3 * i);
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(counter.read()[0], 0xffffff00u + 3 * count);
}

/// A ring of two cells from one warpgroup to the other, guarded by named barriers alone.
struct NamedRing {
  static constexpr int threads = 256, slots = 2, items = 9;
  struct Arguments {
    int* got;  // items x 128
  };
  struct Shared {
    int cell[slots][128];
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int warpgroup = hopper::warpgroup(), me = rank() % 128;
    for (int i = 0; i < items; ++i) {
      const int slot = i % slots;
      const hopper::NamedBarrier full{1 + slot, threads}, empty{14 + slot, threads};
      if (warpgroup == 0) {
        if (i >= slots) empty.sync();
        hopper::store_shared(shared.cell[slot][me], 1000 * i + me);
        full.arrive();
      } else {
        full.sync();
        args.got[128 * i + me] = hopper::load_shared(shared.cell[slot][127 - me]);
        if (i + slots < items) empty.arrive();
      }
    }
  }
};

TEST_P(Threads, NamedBarriersHandARingOver) {
  Buffer<int> got(NamedRing::items * 128, -1);
  launch<NamedRing>({got.data()});
  const std::vector<int> values = got.read();
  for (int i = 0; i < NamedRing::items; ++i)
    for (int t = 0; t < 128; ++t)
      ASSERT_EQ(values[std::size_t(128 * i + t)], 1000 * i + 127 - t) << "item " << i << ", thread " << t;
}

/// Three warpgroups in turn; each appends its number to a word in shared memory. The last grant is collected.
struct NamedTurns {
  static constexpr int threads = 384, rounds = 5;
  struct Arguments {
    unsigned* word;
  };
  struct Shared {
    unsigned word;
  };
  HOPPER_FUNCTION static hopper::NamedBarrier turn(int warpgroup) { return {1 + warpgroup, 256}; }
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int warpgroup = hopper::warpgroup(), me = rank();
    if (me == 0) hopper::store_shared(shared.word, 1u);
    hopper::cta_sync();
    if (warpgroup == 2) turn(0).arrive();
    for (int i = 0; i < rounds; ++i) {
      turn(warpgroup).sync();
      if (me % 128 == 5) hopper::store_shared(shared.word, hopper::load_shared(shared.word) * 3u + unsigned(warpgroup));
      hopper::warp_sync();
      turn((warpgroup + 1) % 3).arrive();
    }
    if (warpgroup == 0) turn(0).sync();
    if (me == 0) *args.word = hopper::load_shared(shared.word);
  }
};

TEST_P(Threads, NamedBarriersGrantTurns) {
  Buffer<unsigned> word(std::vector<unsigned>{0});
  launch<NamedTurns>({word.data()});
  unsigned expected = 1;
  for (unsigned i = 0; i < 3 * NamedTurns::rounds; ++i) expected = expected * 3 + i % 3;
  EXPECT_EQ(word.read()[0], expected);
}

/// `arrivals` threads of warpgroup 0 write a cell each and arrive on "full"; warpgroup 1 reads and arrives on "empty".
struct Phases {
  static constexpr int threads = 256, phases = 7;
  struct Arguments {
    int arrivals;
    int* got;  // phases x 128
  };
  struct Shared {
    hopper::Mbarrier full, empty;
    int cell[128];
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int warpgroup = hopper::warpgroup(), me = rank() % 128;
    if (warpgroup == 0 && me == 0) {
      shared.full.init(args.arrivals);
      shared.empty.init(128);
      hopper::fence_barrier_init();
    }
    hopper::cta_sync();
    if (warpgroup == 0 && me >= args.arrivals) return;
    for (int i = 0; i < phases; ++i) {
      const int parity = i % 2;
      if (warpgroup == 0) {
        shared.empty.wait(parity ^ 1);
        hopper::store_shared(shared.cell[me], 1000 * i + me);
        shared.full.arrive();
      } else {
        shared.full.wait(parity);
        args.got[128 * i + me] = hopper::load_shared(shared.cell[(me + i) % args.arrivals]);
        shared.empty.arrive();
      }
    }
  }
};

TEST_P(Threads, MbarrierCountsArrivalsOverPhases) {
  for (const int arrivals : {1, 2, 31, 32, 33, 127, 128}) {
    SCOPED_TRACE("arrivals " + std::to_string(arrivals));
    Buffer<int> got(Phases::phases * 128, -1);
    launch<Phases>({arrivals, got.data()});
    const std::vector<int> values = got.read();
    for (int i = 0; i < Phases::phases; ++i)
      for (int t = 0; t < 128; ++t)
        ASSERT_EQ(values[std::size_t(128 * i + t)], 1000 * i + (t + i) % arrivals) << "phase " << i << ", thread " << t;
  }
}

/// Warpgroup 0 gives registers to the others. What a thread had before survives, and those who claimed hold more values
/// over a barrier than a thread had registers at entry (168 of three warpgroups, 128 of four, 96 of five). `others`:
/// what they may need beside.
template <int warpgroups, int released, int claimed, int others = 24>
struct HandOver {
  static constexpr int threads = 128 * warpgroups, kept = 16, live = claimed - others;
  struct Arguments {
    const float* in;  // threads x live
    float* out;
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    const int me = rank();
    const float* in = args.in + me * live;
    float* out = args.out + me * live;
    float value[live];
    HOPPER_UNROLL
    for (int i = 0; i < kept; ++i) value[i] = in[i];
    hopper::cta_sync();
    if (hopper::warpgroup() == 0) {
      hopper::release_registers<released>();
      HOPPER_UNROLL
      for (int i = 0; i < kept; ++i) out[i] = -value[i];
    } else {
      hopper::claim_registers<claimed>();
      HOPPER_UNROLL
      for (int i = kept; i < live; ++i) value[i] = in[i];
      hopper::NamedBarrier{1, threads - 128}.sync();
      HOPPER_UNROLL
      for (int i = 0; i < live; ++i) out[i] = -value[i];
    }
  }
};

template <class Kernel>
std::vector<float> negated() {
  std::vector<float> expected(std::size_t(Kernel::threads) * Kernel::live, 0.0f);
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (i >= std::size_t(128) * Kernel::live || i % Kernel::live < Kernel::kept) expected[i] = -float(i);
  return expected;
}

TEST_P(Threads, RegistersAreHandedOver) {
  const auto test = [&]<class Kernel>(Kernel) {
    std::vector<float> numbers(std::size_t(Kernel::threads) * Kernel::live);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = float(i);
    Buffer<float> in(numbers), out(numbers.size(), 0.0f);
    launch<Kernel>({in.data(), out.data()});
    EXPECT_EQ(out.read(), negated<Kernel>());
  };
  test(HandOver<3, 40, 232>{});
  test(HandOver<4, 32, 160>{});
  test(HandOver<5, 32, 112, 14>{});
}

}  // namespace fa3::hopper_test
