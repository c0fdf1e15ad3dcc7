// What the simulator says about faulty kernels: every message names what a person needs to find the fault.
#include <gtest/gtest.h>

#include "error.hpp"

#include <cmath>
#include <set>

#include "hopper/hopper.hpp"
#include "hopper/sim/machine.hpp"
#include "hopper/sim/tensor_map.hpp"

namespace fa3 {
namespace {

using simulator::Completion;
using Tile = hopper::SharedTile<64, 64>;

struct Shared {
  Tile a, b;
  hopper::Mbarrier full, empty;
  int record;
};

/// 64 x 64 blocks of ones, and the machine to put them to faulty use.
class Diagnoses : public testing::Test {
 protected:
  static constexpr int rows = 256;
  std::vector<std::uint16_t> memory = std::vector<std::uint16_t>(rows * 64 + 8, 0x3c00);
  std::uint16_t* data = memory.data() + (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16) % 16 / 2;

  hopper::TensorMapSpec spec() const {
    return {"X", data, hopper::Element::f16, {64, rows, 1, 1}, {128, 128, 128}, 64, 64, 128};
  }
  hopper::TensorMap map() const { return simulator::encode(spec()); }

  /// The message of the failure; "" if there is none.
  template <class Kernel>
  static std::string run(const Kernel& kernel, Completion completion = Completion::lazy, std::uint64_t seed = 1,
                         int threads = 128) {
    simulator::Cluster cta({completion, seed, false}, 0, 1, threads, sizeof(Shared));
    Shared& shared = *reinterpret_cast<Shared*>(cta.shared());
    if (threads == 256) cta.name_warpgroup(1, "helper");
    cta.name_region(&shared.a, sizeof(Tile), "a[0]");
    cta.name_region(&shared.b, sizeof(Tile), "b[0]");
    cta.name_region(&shared.full, sizeof(shared.full), "full[0]");
    cta.name_region(&shared.empty, sizeof(shared.empty), "empty[0]");
    cta.name_region(&shared.record, sizeof(shared.record), "record[0]");
    try {
      cta.run([&] { kernel(shared); });
    } catch (const simulator::Failure& failure) {
      return failure.what();
    }
    return "";
  }

  static int thread() { return 128 * hopper::warpgroup() + 32 * hopper::warp_of_warpgroup() + hopper::lane(); }
  static void init(Shared& shared) {
    if (thread() == 0) {
      shared.full.init(1);
      shared.empty.init(1);
      hopper::fence_barrier_init();
    }
    hopper::cta_sync();
  }
  void load(Shared& shared, Tile& tile, int row) const {
    shared.full.arrive_expect_bytes(Tile::bytes);
    hopper::load_tile(tile, map(), {0, row, 0, 0}, shared.full);
  }
  /// Both operands landed, known to everybody.
  void load_operands(Shared& shared) const {
    init(shared);
    if (thread() == 0) load(shared, shared.a, 64);
    shared.full.wait(0);
    hopper::cta_sync();
    if (thread() == 0) load(shared, shared.b, 128);
    shared.full.wait(1);
    hopper::cta_sync();
  }
};

void expect_says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "expected \"" << part << "\" in:\n" << message;
}

TEST_F(Diagnoses, CorrectUseIsNotCalledWrong) {
  for (const Completion completion : {Completion::eager, Completion::lazy, Completion::random}) {
    std::set<float> results;
    EXPECT_EQ(run(
                  [&](Shared& shared) {
                    load_operands(shared);
                    hopper::Accumulator<64> s{};
                    hopper::issue_abt<hopper::Element::f16>(s, shared.a, 0, shared.b);
                    hopper::wgmma_commit();
                    hopper::wgmma_wait<0>(s);
                    results.insert(std::begin(s.value), std::end(s.value));
                  },
                  completion),
              "");
    EXPECT_EQ(results, std::set<float>{64.0f});
  }
}

TEST_F(Diagnoses, DeadlockNamesEveryWarpAndBarrier) {
  const std::string message = run(
      [&](Shared& shared) {
        init(shared);
        if (hopper::warpgroup() == 0) {
          if (thread() == 0) shared.full.arrive_expect_bytes(4096);
          if (hopper::warp_of_warpgroup() == 1) shared.full.wait(0);
          if (hopper::warp_of_warpgroup() == 2) hopper::NamedBarrier{3, 64}.sync();
        } else {
          shared.empty.wait(0);
        }
      },
      Completion::lazy, 1, 256);
  expect_says(message,
              {"deadlock\n", "warpgroup 0, warp 0: finished\n",
               "warpgroup 0, warp 1: waits for full[0], phase of parity 0 (0 of 1 arrivals and 4096 bytes pending)\n",
               "warpgroup 0, warp 2: waits for named barrier 3\n", "warpgroup 0, warp 3: finished\n",
               "helper, warp 0: waits for empty[0], phase of parity 0 (1 of 1 arrivals and 0 bytes pending)\n",
               "helper, warp 3: waits for empty[0]", "full[0]: phase 0, 0 of 1 arrivals and 4096 bytes pending\n",
               "named barrier 3: 32 of 64 threads have arrived\n", "[policy lazy, seed 1]"});
}

TEST_F(Diagnoses, OverwrittenOperandNamesTileReaderAndBlock) {
  const auto kernel = [&](Shared& shared) {
    load_operands(shared);
    hopper::Accumulator<64> s{};
    hopper::issue_abt<hopper::Element::f16>(s, shared.a, 0, shared.b);
    hopper::wgmma_commit();
    if (thread() == 127) load(shared, shared.b, 192);
    hopper::wgmma_wait<0>(s);
  };
  expect_says(run(kernel, Completion::lazy),
              {"thread 127", "race: the TMA load of X rows 192.. into b[0]", "wgmma of warpgroup 0", "b[0], block 2"});
  // The product is done at once, but nobody can know.
  const auto after_issue = [&](Shared& shared) {
    load_operands(shared);
    hopper::Accumulator<64> s{};
    hopper::issue_abt<hopper::Element::f16>(s, shared.a, 0, shared.b);
    hopper::wgmma_commit();
    hopper::cta_sync();
    if (thread() == 127) load(shared, shared.b, 192);
    hopper::wgmma_wait<0>(s);
  };
  expect_says(run(after_issue, Completion::eager), {"thread 127", "race: the TMA load of X rows 192.. into b[0]",
                                                    "b[0] (block 2)", "a wgmma of warpgroup 0, warp 0 may still read"});
}

TEST_F(Diagnoses, OperandThatNobodyWaitedFor) {
  const auto kernel = [&](Shared& shared) {
    init(shared);
    if (thread() == 0) load(shared, shared.a, 64);
    hopper::cta_sync();
    hopper::Accumulator<64> s{};
    hopper::issue_abt<hopper::Element::f16>(s, shared.a, 0, shared.a);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>(s);
  };
  expect_says(run(kernel, Completion::eager), {"race: wgmma of warpgroup 0", "reads a[0] (block 1)",
                                               "without having waited for the TMA load of X rows 64.. into a[0]"});
  expect_says(run(kernel, Completion::lazy), {"race: wgmma of warpgroup 0", "reads a[0] (block 1)",
                                              "without having waited for the TMA load of X rows 64.. into a[0]"});
}

TEST_F(Diagnoses, AccumulatorInFlightIsNan) {
  bool all_nan = true;
  const std::string message = run([&](Shared& shared) {
    load_operands(shared);
    hopper::Accumulator<64> s{};
    hopper::issue_abt<hopper::Element::f16>(s, shared.a, 0, shared.b);
    hopper::wgmma_commit();
    for (const float x : s.value) all_nan &= std::isnan(x);
    if (thread() == 5) s.value[3] = 0;
    hopper::wgmma_wait<0>(s);
  });
  EXPECT_TRUE(all_nan);
  expect_says(message, {"race: thread 5 wrote to an accumulator of wgmma of warpgroup 0", "in flight"});
}

TEST_F(Diagnoses, OverwrittenRegisterOperand) {
  expect_says(run([&](Shared& shared) {
                load_operands(shared);
                hopper::Accumulator<64> o{};
                hopper::OperandA<64> p{};
                hopper::issue_ab<hopper::Element::f16>(o, p, shared.b);
                hopper::wgmma_commit();
                if (thread() == 77) p.value[2] = 1;
                hopper::wgmma_wait<0>(o);
              }),
              {"race: thread 77 overwrote a register A operand of wgmma of warpgroup 0 (P V, V in b[0], block 2)"});
}

TEST_F(Diagnoses, WaitThatRetiresTooLittle) {
  expect_says(run([&](Shared& shared) {
                load_operands(shared);
                hopper::Accumulator<64> s{};
                hopper::issue_abt<hopper::Element::f16>(s, shared.a, 0, shared.b);
                hopper::wgmma_commit();
                hopper::wgmma_wait<1>(s);
              }),
              {"wgmma_wait<1> names an accumulator (64 x 64) whose product may still be in flight"});
}

TEST_F(Diagnoses, BadDescriptors) {
  const auto with_descriptor = [&](std::uint64_t (*change)(std::uint64_t)) {
    return run([&, change](Shared& shared) {
      load_operands(shared);
      hopper::Accumulator<64> s{};
      const std::uint64_t good = hopper::descriptor(hopper::shared_address(&shared.a), 16, 1024);
      hopper::wgmma_fence();
      hopper::WgmmaSS<hopper::Element::f16, 64>::issue<0>(s.value, good, change(good));
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(s);
    });
  };
  EXPECT_EQ(with_descriptor([](std::uint64_t bits) { return bits; }), "");
  expect_says(with_descriptor([](std::uint64_t bits) { return bits & ~(std::uint64_t(3) << 62); }),
              {"wgmma descriptor: only swizzled operands"});
  expect_says(with_descriptor([](std::uint64_t bits) { return bits | std::uint64_t(1) << 49; }),
              {"wgmma descriptor", "base offset 0"});
  expect_says(with_descriptor([](std::uint64_t bits) { return bits | 0x3fff; }),
              {"wgmma operand outside the shared-memory plan"});
  expect_says(
      with_descriptor([](std::uint64_t bits) { return (bits & ~(std::uint64_t(3) << 62)) | std::uint64_t(2) << 62; }),
      {"wgmma descriptor: a[0]", "is read with a swizzle of 64 bytes", "wrote it with one of 128"});
}

TEST_F(Diagnoses, OperandsOfE4m3AcrossTheDepth) {
  const auto product = [&]<class Issue>(Issue issue) {
    return run([&](Shared& shared) {
      load_operands(shared);
      hopper::Accumulator<64> s{};
      hopper::wgmma_fence();
      issue(s, hopper::descriptor(hopper::shared_address(&shared.a), 16, 1024),
            hopper::descriptor(hopper::shared_address(&shared.b), 16, 1024));
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(s);
    });
  };
  using hopper::Major;
  using Instruction = hopper::WgmmaSS<hopper::Element::e4m3, 64>;
  EXPECT_EQ(product([](auto& s, std::uint64_t a, std::uint64_t b) { Instruction::issue<0>(s.value, a, b); }), "");
  expect_says(
      product([](auto& s, std::uint64_t a, std::uint64_t b) { Instruction::issue<0, Major::across>(s.value, a, b); }),
      {"wgmma: operands of e4m3 must be contiguous along the depth"});
  expect_says(product([](auto& s, std::uint64_t a, std::uint64_t b) {
                Instruction::issue<0, Major::depth, Major::across>(s.value, a, b);
              }),
              {"wgmma: operands of e4m3 must be contiguous along the depth"});
}

TEST_F(Diagnoses, ThreadsOfAWarpgroupDisagree) {
  expect_says(run([&](Shared& shared) {
                load_operands(shared);
                hopper::Accumulator<64> s{};
                hopper::issue_abt<hopper::Element::f16>(s, shared.a, 0, thread() == 9 ? shared.a : shared.b);
                hopper::wgmma_commit();
                hopper::wgmma_wait<0>(s);
              }),
              {"thread 9 ", "the warpgroup's threads disagree about the instruction"});
}

TEST_F(Diagnoses, ThreadsOfAWarpDiverge) {
  expect_says(run([&](Shared&) {
                if (hopper::lane() == 3)
                  hopper::warp_sync();
                else
                  hopper::release_registers<24>();
              }),
              {"calls ", "while others of its group call "});
}

TEST_F(Diagnoses, MisalignedBox) {
  expect_says(run([&](Shared& shared) {
                init(shared);
                if (thread() != 0) return;
                shared.full.arrive_expect_bytes(Tile::bytes);
                hopper::tma_load(hopper::shared_address(&shared.a) + 128, map(), {0, 0, 0, 0}, shared.full);
              }),
              {"TMA load of X to a[0] + 128", "multiple of 1024 bytes"});
}

TEST_F(Diagnoses, BoxOutsideThePlan) {
  expect_says(run([&](Shared& shared) {
                init(shared);
                if (thread() == 0)
                  hopper::tma_load(hopper::shared_address(&shared.b) + 2 * 1024 * 4, map(), {0, 0, 0, 0}, shared.full);
              }),
              {"TMA load outside the shared-memory plan: 8192 bytes"});
}

TEST_F(Diagnoses, TensorMapsThatTheDriverWouldRefuse) {
  const auto refusal = [&](auto&& change) -> std::string {
    hopper::TensorMapSpec bad = spec();
    change(bad);
    try {
      simulator::encode(bad);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal([](hopper::TensorMapSpec&) {}), "");
  expect_says(refusal([](hopper::TensorMapSpec& s) { s.data = static_cast<std::uint16_t*>(s.data) + 1; }),
              {"X", "16-byte aligned"});
  expect_says(refusal([](hopper::TensorMapSpec& s) { s.stride_bytes[0] = 130; }),
              {"X", "stride 0 is 130 bytes", "multiple of 16"});
  expect_says(refusal([](hopper::TensorMapSpec& s) { s.swizzle_bytes = 48; }),
              {"X", "swizzle is 48 bytes", "32, 64 or 128"});
  expect_says(refusal([](hopper::TensorMapSpec& s) { s.swizzle_bytes = 64; }), {"X", "a box row has 128 bytes", "64"});
  expect_says(refusal([](hopper::TensorMapSpec& s) { s.box_rows = 257; }), {"X", "257 rows", "1 to 256"});
  expect_says(refusal([](hopper::TensorMapSpec& s) { s.extent[3] = 0; }), {"X", "extent 3 is 0"});
}

TEST_F(Diagnoses, Mbarriers) {
  expect_says(run([&](Shared& shared) { shared.full.wait(0); }), {"waits for full[0], which is not initialised"});
  expect_says(run([&](Shared& shared) { shared.full.arrive(); }), {"arrives on full[0], which is not initialised"});
  expect_says(run([&](Shared& shared) {
                if (thread() == 0) shared.full.init(0);
              }),
              {"mbarrier.init: full[0]: 0 arrivals"});
  expect_says(run([&](Shared& shared) {
                if (thread() == 0) shared.full.init(1);
                if (thread() == 1) shared.full.wait(1);
              }),
              {"race: waits for full[0], not ordered after its initialisation by thread 0"});
  expect_says(run([&](Shared& shared) {
                if (thread() == 0) shared.full.init(1);
                hopper::cta_sync();
                if (thread() == 0) load(shared, shared.a, 0);
                shared.full.wait(0);
              }),
              {"full[0], whose initialisation was not fenced (fence_barrier_init)"});
  expect_says(run([&](Shared& shared) {
                init(shared);
                if (thread() == 0) shared.full.arrive_expect_bytes(16);
                if (thread() == 0) shared.full.arrive();
              }),
              {"arrives on full[0] beyond the 1 arrivals of its phase"});
  expect_says(run([&](Shared& shared) {
                init(shared);
                if (thread() == 0) shared.full.arrive_expect_bytes(1 << 20);
              }),
              {"expects 1048576 bytes on full[0]"});
  expect_says(run([&](Shared& shared) {
                init(shared);
                if (thread() != 0) return;
                shared.full.arrive_expect_bytes(Tile::bytes - 16);
                hopper::load_tile(shared.a, map(), {0, 0, 0, 0}, shared.full);
                shared.full.wait(0);
              }),
              {"full[0]: 16 more bytes landed than were expected in this phase"});
}

TEST_F(Diagnoses, NamedBarriers) {
  const auto sync = [](int id, int threads) { return run([=](Shared&) { hopper::NamedBarrier{id, threads}.sync(); }); };
  EXPECT_EQ(sync(1, 128), "");
  expect_says(sync(0, 128), {"named barrier 0: ids are 1 to 15"});
  expect_says(sync(16, 128), {"named barrier 16: ids are 1 to 15"});
  expect_says(sync(2, 100), {"named barrier 2: 100 threads; it must be a multiple of 32"});
  expect_says(sync(2, 256), {"named barrier 2: 256 threads", "within the CTA"});
  expect_says(run([](Shared&) {
                hopper::NamedBarrier{4, hopper::warp_of_warpgroup() < 2 ? 96 : 128}.arrive();
              }),
              {"named barrier 4: 128 threads named here, 96 by an earlier arrival of the same phase"});
  expect_says(run([](Shared&) {
                hopper::NamedBarrier{5, 128}.arrive();
                hopper::NamedBarrier{5, 128}.arrive();
              }),
              {"named barrier 5: arrives twice in one phase"});
  expect_says(run([](Shared&) {
                if (hopper::warp_of_warpgroup() == 0) hopper::NamedBarrier{6, 128}.arrive();
              }),
              {"the CTA ended with named barrier 6 half full: 32 of 128 threads have arrived"});
}

TEST_F(Diagnoses, Registers) {
  // 384 threads get 168 registers each.
  const auto hand_over = [](auto producer, auto consumer) {
    return run([=](Shared&) { hopper::warpgroup() == 0 ? producer() : consumer(); }, Completion::lazy, 1, 384);
  };
  EXPECT_EQ(hand_over([] { hopper::release_registers<40>(); }, [] { hopper::claim_registers<232>(); }), "");
  expect_says(hand_over([] { hopper::release_registers<40>(); }, [] { hopper::claim_registers<240>(); }),
              {"deadlock", "2304 registers of the launch's allocation (setmaxnreg 240), of which too few are free"});
  expect_says(hand_over([] { hopper::release_registers<36>(); }, [] {}),
              {"setmaxnreg 36: a multiple of 8 from 24 to 256 is allowed"});
  expect_says(hand_over([] { hopper::release_registers<16>(); }, [] {}),
              {"setmaxnreg 16: a multiple of 8 from 24 to 256 is allowed"});
  expect_says(hand_over([] { hopper::release_registers<176>(); }, [] {}), {"setmaxnreg.dec 176 from 168 registers"});
  expect_says(hand_over([] { hopper::claim_registers<160>(); }, [] {}), {"setmaxnreg.inc 160 from 168 registers"});
  expect_says(hand_over(
                  [] {
                    if (hopper::warp_of_warpgroup() == 0) hopper::release_registers<40>();
                  },
                  [] {}),
              {"setmaxnreg: the warps of warpgroup 0 executed different ones"});
}

TEST_F(Diagnoses, OrdinaryAccesses) {
  expect_says(run([&](Shared& shared) {
                if (thread() == 3) hopper::store_shared(shared.record, 1);
                if (thread() == 4) hopper::store_shared(shared.record, 2);
              }),
              {"race: an ordinary store writes record[0] + 0, not ordered after the write by thread "});
  expect_says(run([&](Shared& shared) {
                if (thread() == 3) hopper::store_shared(shared.record, 1);
                hopper::warp_sync();
                if (thread() == 40) hopper::load_shared(shared.record);
              }),
              {"race: an ordinary load reads record[0] + 0, not ordered after the write by thread 3"});
  expect_says(run(
                  [&](Shared& shared) {
                    if (thread() == 3) hopper::store_shared(shared.record, 1);
                    hopper::cta_sync();
                    if (thread() == 40) hopper::load_shared(shared.record);
                    if (thread() == 3) hopper::store_shared(shared.record, 2);
                  },
                  Completion::eager),
              {"race: an ordinary store writes record[0] + 0, not ordered after the read by thread 40"});
  int on_stack = 0;
  expect_says(run([&](Shared&) { hopper::store_shared(on_stack, 1); }), {"something outside shared memory"});
}

TEST_F(Diagnoses, StoreOfWhatWasNotFenced) {
  const auto kernel = [&](bool fence, bool sync) {
    return [&, fence, sync](Shared& shared) {
      const std::uint32_t fragment[4] = {};
      if (hopper::warp_of_warpgroup() != 0) return;
      for (int row = 0; row < 64; row += 16)
        for (int column = 0; column < 64; column += 16) hopper::store_matrix(shared.a, row, column, fragment);
      if (fence) hopper::fence_async_shared();
      if (sync) hopper::warp_sync();
      if (hopper::lane() != 0) return;
      hopper::store_rows(map(), {0, 0, 0, 0}, shared.a, 0);
      hopper::store_commit();
      hopper::store_wait_read<0>();
    };
  };
  EXPECT_EQ(run(kernel(true, true)), "");
  expect_says(run(kernel(false, true)),
              {"the TMA store of X rows 0.. from a[0] + 0 reads what thread", "without fence_async_shared"});
  EXPECT_NE(run(kernel(true, false)), "");
}

// The reader may have the fence instead of the writer, once it knows of the writes.
TEST_F(Diagnoses, FenceOfTheReader) {
  enum class Fence { none, before_the_wait, behind_it, in_some_threads };
  const auto kernel = [&](Fence fence, bool product) {
    return [&, fence, product](Shared& shared) {
      init(shared);
      if (hopper::warpgroup() == 1) {
        const std::uint32_t fragment[4] = {};
        for (int column = 0; column < 64; column += 16)
          hopper::store_matrix(shared.a, 16 * hopper::warp_of_warpgroup(), column, fragment);
        hopper::cta_sync();
        return;
      }
      if (fence == Fence::before_the_wait) hopper::fence_async_shared();
      hopper::cta_sync();
      if (fence == Fence::behind_it || (fence == Fence::in_some_threads && thread() < 100))
        hopper::fence_async_shared();
      if (product) {
        hopper::Accumulator<64> s{};
        hopper::issue_abt<hopper::Element::f16>(s, shared.a, 0, shared.a);
        hopper::wgmma_commit();
        hopper::wgmma_wait<0>(s);
      } else if (thread() == 5) {
        hopper::store_rows(map(), {0, 0, 0, 0}, shared.a, 0);
        hopper::store_commit();
        hopper::store_wait_read<0>();
      }
    };
  };
  for (const bool product : {false, true}) {
    EXPECT_EQ(run(kernel(Fence::behind_it, product), Completion::eager, 1, 256), "") << product;
    for (const Fence fence : {Fence::none, Fence::before_the_wait})
      expect_says(run(kernel(fence, product), Completion::eager, 1, 256), {"wrote without fence_async_shared"});
  }
  EXPECT_NE(run(kernel(Fence::in_some_threads, true), Completion::eager, 1, 256), "");
}

TEST_F(Diagnoses, CountThatNobodyRaises) {
  unsigned count = 0;
  const auto kernel = [&](unsigned raises) {
    return [&, raises](Shared&) {
      if (thread() == 3) hopper::wait_for_count(count, 2);
      if (thread() == 40)
        for (unsigned i = 0; i < raises; ++i) hopper::raise_count(count);
    };
  };
  EXPECT_EQ(run(kernel(2)), "");
  count = 0;
  expect_says(run(kernel(1)), {"deadlock", "waits for count 2, which is "});
}

TEST_F(Diagnoses, UniformRegisterOfDifferentValues) {
  EXPECT_EQ(run([](Shared&) { hopper::in_uniform_register(hopper::warp_of_warpgroup()); }), "");
  expect_says(run([](Shared&) { hopper::in_uniform_register(hopper::lane() / 31); }),
              {"in_uniform_register of 1, where lane 0 has 0"});
}

// The fence is for those who read asynchronously; who reads otherwise need not know of it.
TEST_F(Diagnoses, FenceBehindWhatWasHandedOver) {
  EXPECT_EQ(run(
                [&](Shared& shared) {
                  init(shared);
                  if (thread() == 3) {
                    hopper::store_shared(shared.record, 1);
                    shared.full.arrive();
                    hopper::fence_async_shared();
                    shared.empty.arrive();  // the fence's date is later than what the other thread knows
                  }
                  if (thread() != 40) return;
                  shared.full.wait(0);
                  hopper::load_shared(shared.record);
                },
                Completion::eager),
            "");
}

TEST_F(Diagnoses, WorkLeftBehind) {
  expect_says(run([&](Shared& shared) {
                init(shared);
                if (thread() == 0) load(shared, shared.a, 0);
              }),
              {"the CTA ended with a TMA load in flight: the TMA load of X rows 0.. into a[0]"});
  expect_says(run(
                  [&](Shared& shared) {
                    if (thread() != 0) return;
                    hopper::store_rows(map(), {0, 0, 0, 0}, shared.a, 0);
                    hopper::store_commit();
                  },
                  Completion::eager),
              {"thread 0 ", "ended without waiting until its TMA stores have read shared memory (0 of 1 known)"});
  expect_says(run([&](Shared& shared) {
                load_operands(shared);
                hopper::Accumulator<64> s{};
                hopper::issue_abt<hopper::Element::f16>(s, shared.a, 0, shared.b);
                hopper::wgmma_commit();
              }),
              {"the CTA ended with wgmma in flight: wgmma of warpgroup 0"});
}

TEST_F(Diagnoses, SharedMemoryStartsPoisoned) {
  bool poisoned = true;
  EXPECT_EQ(run([&](Shared& shared) { poisoned &= hopper::load_shared(shared.record) == -1; }), "");
  EXPECT_TRUE(poisoned);
}

TEST_F(Diagnoses, WhatTheKernelThrowsIsReported) {
  expect_says(run([&](Shared&) {
                if (thread() == 6) throw std::runtime_error("no such thing");
                hopper::cta_sync();
              }),
              {"thread 6 ", "no such thing"});
}

TEST_F(Diagnoses, SeedIsPrintedAndReplays) {
  // Whether thread 40 or somebody else comes first is up to the seed.
  const auto kernel = [&](Shared& shared) {
    hopper::warp_sync();
    hopper::store_shared(shared.record, thread());
  };
  std::set<std::string> messages;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const std::string message = run(kernel, Completion::random, seed);
    expect_says(message, {"race", ("[policy random, seed " + std::to_string(seed) + "]").c_str()});
    EXPECT_EQ(message, run(kernel, Completion::random, seed));
    messages.insert(message.substr(0, message.find(" [policy")));
  }
  EXPECT_GT(messages.size(), 1u);
}

TEST(Fiber, ResumesWhereItSuspended) {
  std::string order;
  simulator::Fiber* inside = nullptr;
  simulator::Fiber fiber([&] {
    order += "a";
    inside->suspend();
    order += "c";
  });
  inside = &fiber;
  fiber.resume();
  order += "b";
  EXPECT_FALSE(fiber.done());
  fiber.resume();
  EXPECT_TRUE(fiber.done());
  EXPECT_EQ(order, "abc");
}

}  // namespace
}  // namespace fa3
