// Clusters on the simulator: a ring of tiles that two CTAs fill for each other, faults in it and what is said about
// them.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "hopper/hopper.hpp"
#include "hopper/sim/machine.hpp"

namespace fa3 {
namespace {

using simulator::Completion;

constexpr int ctas = 2, threads = 256, stages = 2, blocks = 7;
using Tile = hopper::SharedTile<64, 64>;

struct Shared {
  Tile tile[stages];
  hopper::Mbarrier full[stages], empty[stages], told;
  std::uint32_t word;
};

/// Where the ring below is broken.
struct Faults {
  bool release_own_only = false, release_early = false, expect_half = false, no_fence_barrier_init = false;
  int releases = 4 * ctas;         // that complete a stage's phase
  int second_ends_after = blocks;  // blocks
  void (*begin)() = hopper::cluster_sync;
  void (*end)() = hopper::cluster_sync;
};

class Cluster : public testing::Test {
 protected:
  Cluster() {
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = std::uint16_t(i / (64 * 64));
  }

  std::vector<std::uint16_t> memory = std::vector<std::uint16_t>(std::size_t(blocks * 64 * 64));

  hopper::TensorMap map() {
    return simulator::encode(
        {"X", memory.data(), hopper::Element::f16, {64, blocks * 64, 1, 1}, {128, 128, 128}, 64, 32, 128});
  }

  /// The message of the failure; "" if there is none.
  template <class Kernel>
  static std::string run(const Kernel& kernel, Completion completion, std::uint64_t seed = 1) {
    // The third and fourth CTA of a grid of four.
    simulator::Cluster cluster({completion, seed, false}, 2, 4, threads, sizeof(Shared), ctas);
    const auto shared = [&]() -> Shared& { return *reinterpret_cast<Shared*>(cluster.shared()); };
    cluster.name_warpgroup(0, "producer");
    cluster.name_warpgroup(1, "consumer");
    for (int i = 0; i < stages; ++i) {
      const std::string index = "[" + std::to_string(i) + "]";
      cluster.name_region(&shared().tile[i], sizeof(Tile), "tile" + index);
      cluster.name_region(&shared().full[i], sizeof(hopper::Mbarrier), "full" + index);
      cluster.name_region(&shared().empty[i], sizeof(hopper::Mbarrier), "empty" + index);
    }
    cluster.name_region(&shared().told, sizeof(hopper::Mbarrier), "told[0]");
    cluster.name_region(&shared().word, sizeof(std::uint32_t), "word[0]");
    try {
      cluster.run([&] { kernel(shared()); });
    } catch (const simulator::Failure& failure) {
      return failure.what();
    }
    return "";
  }

  static int thread() { return 128 * hopper::warpgroup() + 32 * hopper::warp_of_warpgroup() + hopper::lane(); }

  /// Each CTA loads half of every tile for both; the warps of a consumer release a stage to both.
  std::string ring(const Faults& faults, Completion completion, std::uint64_t seed = 1) {
    int right = 0;
    const std::string message = run(
        [&](Shared& shared) {
          const int me = thread(), warpgroup = hopper::warpgroup();
          if (me == 0) {
            for (int i = 0; i < stages; ++i) {
              shared.full[i].init(1);
              shared.empty[i].init(faults.releases);
            }
            if (!faults.no_fence_barrier_init) hopper::fence_barrier_init();
          }
          faults.begin();
          for (int i = 0; i < blocks; ++i) {
            if (hopper::cluster_rank() == 1 && i == faults.second_ends_after) return;
            const int stage = i % stages, phase = i / stages % 2;
            if (me == 0) {
              shared.empty[stage].wait(phase ^ 1);
              shared.full[stage].arrive_expect_bytes(faults.expect_half ? Tile::bytes / 2 : Tile::bytes);
              hopper::load_tile_multicast<ctas>(shared.tile[stage], map(), {0, 64 * i, 0, 0}, shared.full[stage]);
            } else if (warpgroup == 1) {
              shared.full[stage].wait(phase);
              for (int row = 0; row < Tile::rows; ++row) {
                const auto* word = reinterpret_cast<const std::uint32_t*>(shared.tile[stage].element[0][row]);
                right += hopper::load_shared(word[hopper::lane()]) == std::uint32_t(i << 16 | i);
              }
              hopper::Accumulator<64> s{};
              hopper::issue_abt<hopper::Element::f16>(s, shared.tile[stage], 0, shared.tile[stage]);
              hopper::wgmma_commit();
              // To the peer only: the CTA's own producer still has to wait.
              if (faults.release_early && hopper::lane() != hopper::cluster_rank() && hopper::lane() < ctas)
                shared.empty[stage].arrive_remote(hopper::lane());
              hopper::wgmma_wait<0>(s);
              hopper::warp_sync();
              if (faults.release_early && hopper::lane() != hopper::cluster_rank()) continue;
              if (hopper::lane() < ctas && (!faults.release_own_only || hopper::lane() == hopper::cluster_rank()))
                shared.empty[stage].arrive_remote(hopper::lane());
            }
          }
          faults.end();
        },
        completion, seed);
    EXPECT_TRUE(!message.empty() || right == ctas * 128 * blocks * Tile::rows) << right;
    return message;
  }

  /// Every policy must find the fault and say one of these.
  void expect_found(const Faults& faults, std::initializer_list<const char*> messages) {
    std::vector<std::string> got = {ring(faults, Completion::eager), ring(faults, Completion::lazy)};
    for (std::uint64_t seed = 1; seed <= 5; ++seed) got.push_back(ring(faults, Completion::random, seed));
    for (const std::string& message : got) {
      bool found = false;
      for (const char* part : messages) found |= message.find(part) != std::string::npos;
      EXPECT_TRUE(found) << "not among the expected messages:\n" << message;
    }
  }
};

void expect_says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "expected \"" << part << "\" in:\n" << message;
}

TEST_F(Cluster, SharesARing) {
  for (const Completion completion : {Completion::eager, Completion::lazy, Completion::timed})
    EXPECT_EQ(ring({}, completion), "") << simulator::name(completion);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(ring({}, Completion::random, seed), "");
}

TEST_F(Cluster, StageNotReleasedToThePeer) {
  expect_found({.release_own_only = true}, {"deadlock"});
  expect_says(
      ring({.release_own_only = true}, Completion::lazy),
      {"cluster of CTAs 2 to 3: deadlock\n",
       "producer of CTA 2, warp 0: waits for cluster_sync (31 lanes); waits for empty[0] of CTA 2, phase of parity "
       "0 (4 of 8 arrivals and 0 bytes pending) (1 lane)\n",
       "consumer of CTA 3, warp 3: waits for full[0] of CTA 3, phase of parity 1"});
  // The barrier counts on the CTA's own consumers only.
  expect_found({.release_own_only = true, .releases = 4}, {"race: the TMA load of X rows"});
  // All release to all, but half of them suffice.
  expect_found({.releases = 4}, {"race: the TMA load of X rows", "beyond the 1 arrivals of its phase"});
}

TEST_F(Cluster, StageReleasedToThePeerBeforeTheProductIsWaitedFor) {
  expect_found({.release_early = true}, {"race: the TMA load of X rows"});
}

TEST_F(Cluster, WrongBytes) {
  expect_found({.expect_half = true},
               {"more bytes landed than were expected in this phase", "too few bytes were expected",
                "without having waited for", "is in flight", "may count in either of two phases of full["});
}

TEST_F(Cluster, PeerThatEndsOrBeginsTooEarly) {
  expect_found({.second_ends_after = 3}, {"CTA 3 ends before it can know of an arrival by thread ",
                                          "CTA 3 ends before it can know of bytes from a peer on full[",
                                          "of CTA 3, but that CTA has ended (cluster_sync is missing)"});
  expect_found({.second_ends_after = 0}, {"of CTA 3, but that CTA has ended (cluster_sync is missing)",
                                          "CTA 3 ends before it can know of bytes from a peer on full[0] of CTA 3"});
  expect_found({.end = [] {}}, {" ends before it can know of an arrival by thread ", "but that CTA has ended"});
  expect_found({.begin = hopper::cta_sync},
               {"which is not initialised", "not ordered after its initialisation by thread 0 of CTA "});
  expect_found({.no_fence_barrier_init = true}, {"whose initialisation was not fenced (fence_barrier_init)"});
}

/// Thread 0 of the first CTA sends words to the second.
class SentWord : public Cluster {
 protected:
  static void expect_found(std::initializer_list<const char*> parts, const std::function<void(Shared&)>& kernel) {
    for (const Completion completion : {Completion::eager, Completion::lazy, Completion::random}) {
      const std::string message = run(
          [&](Shared& shared) {
            if (thread() == 0) {
              shared.told.init(1);
              hopper::fence_barrier_init();
            }
            hopper::cluster_sync();
            if (thread() == 0) kernel(shared);
            hopper::cluster_sync();
          },
          completion);
      EXPECT_EQ(message.empty(), parts.size() == 0) << message;
      expect_says(message, parts);
    }
  }
};

TEST_F(SentWord, IsReadByWhoeverWaitsForIt) {
  std::uint32_t got = 0;
  const auto kernel = [&](bool expects, bool waits, int words) {
    return [&got, expects, waits, words](Shared& shared) {
      if (hopper::cluster_rank() == 0) {
        for (int i = 0; i < words; ++i) hopper::send_word(shared.word, 12345u + unsigned(i), shared.told, 1);
      } else {
        expects ? shared.told.arrive_expect_bytes(4 * words) : shared.told.arrive();
        if (waits) shared.told.wait(0);
        got = hopper::load_shared(shared.word);
      }
    };
  };
  expect_found({}, kernel(true, true, 1));
  EXPECT_EQ(got, 12345u);
  // Which of the two is noticed is up to the schedule.
  expect_found({"race: ", "word[0] of CTA 3 + 0, not ordered after the "}, kernel(true, false, 1));
  expect_found({"race: send_word writes word[0] of CTA 3 + 0, not ordered after the write by send_word"},
               kernel(true, true, 2));
  expect_found({"told[0] of CTA 3"}, kernel(false, true, 1));
}

TEST_F(SentWord, MustNotComeBeforeTheLastOneWasRead) {
  // The reader says so through the sender's barrier, or keeps it to itself.
  const auto kernel = [](bool tells) {
    return [tells](Shared& shared) {
      if (hopper::cluster_rank() == 0) {
        hopper::send_word(shared.word, 1, shared.told, 1);
        if (tells) shared.told.wait(0);
        hopper::send_word(shared.word, 2, shared.told, 1);
      } else {
        for (int i = 0; i < 2; ++i) {
          shared.told.arrive_expect_bytes(4);
          shared.told.wait(i);
          EXPECT_EQ(hopper::load_shared(shared.word), std::uint32_t(i + 1));
          if (i == 0 && tells) shared.told.arrive_remote(0);
        }
      }
    };
  };
  expect_found({}, kernel(true));
  expect_found({"race: "}, kernel(false));
}

/// Four words sent by thread 0 of the first CTA to the second, which says that it has them.
struct SentBytes {
  bool fences = true, expects = true, waits = true, overwrites = false, overwrites_early = false;
  int bytes = 16;
  std::uint32_t* got = nullptr;  // their sum, as received

  void operator()(Shared& shared) const {
    const auto words = [](Tile& tile) -> std::uint32_t(&)[4] { return *reinterpret_cast<std::uint32_t(*)[4]>(&tile); };
    if (hopper::cluster_rank() == 0) {
      for (std::uint32_t i = 0; i < 4; ++i) hopper::store_shared(words(shared.tile[0])[i], 100 + i);
      if (fences) hopper::fence_async_shared();
      hopper::send_bytes(&shared.tile[1], &shared.tile[0], bytes, shared.told, 1);
      if (overwrites_early) hopper::store_shared(words(shared.tile[0])[3], 0u);
      shared.told.wait(0);
      if (overwrites) hopper::store_shared(words(shared.tile[0])[3], 0u);
    } else {
      expects ? shared.told.arrive_expect_bytes(16) : shared.told.arrive();
      if (waits) shared.told.wait(0);
      std::uint32_t sum = 0;
      for (const std::uint32_t& word : words(shared.tile[1])) sum += hopper::load_shared(word);
      if (got != nullptr) *got = sum;
      shared.told.arrive_remote(0);
    }
  }
};

TEST_F(SentWord, BytesAreReadByWhoeverWaitsForThem) {
  std::uint32_t got = 0;
  expect_found({}, SentBytes{.overwrites = true, .got = &got});
  EXPECT_EQ(got, 100u + 101u + 102u + 103u);
  expect_found({"wrote without fence_async_shared (tile[0] of CTA 2 + 0)"}, SentBytes{.fences = false});
  expect_found({"told[0] of CTA 3"}, SentBytes{.expects = false});
  expect_found({"race: ", "tile[1] of CTA 3 + 0"}, SentBytes{.waits = false});
  expect_found({"race: an ordinary store writes tile[0] of CTA 2 + "}, SentBytes{.overwrites_early = true});
  expect_found({"send_bytes of 8 bytes: they must begin at a multiple of 16 bytes and be one"}, SentBytes{.bytes = 8});
}

TEST_F(SentWord, StaysInTheCluster) {
  expect_found({"sends a word to a barrier of rank 2 in a cluster of 2"},
               [](Shared& shared) { hopper::send_word(shared.word, 1, shared.told, 2); });
  expect_found({"arrives on a barrier of rank -1 in a cluster of 2"},
               [](Shared& shared) { shared.told.arrive_remote(-1); });
}

}  // namespace
}  // namespace fa3
