#include "cpu/threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "error.hpp"

namespace fa3::cpu {
namespace {

class ThreadLimit : public testing::Test {
 protected:
  void TearDown() override { unsetenv("FA3_NUM_THREADS"); }
};

TEST_F(ThreadLimit, VariableLowersItOnly) {
  unsetenv("FA3_NUM_THREADS");
  const int cores = thread_limit();
  ASSERT_GE(cores, 1);
  setenv("FA3_NUM_THREADS", "1", 1);
  EXPECT_EQ(thread_limit(), 1);
  setenv("FA3_NUM_THREADS", "1000000", 1);
  EXPECT_EQ(thread_limit(), cores);
}

TEST_F(ThreadLimit, RefusesWhatIsNoPositiveInteger) {
  for (const char* text : {"", "0", "-2", "two", "2x", "1.5", "99999999999999"}) {
    setenv("FA3_NUM_THREADS", text, 1);
    try {
      thread_limit();
      ADD_FAILURE() << '"' << text << "\" was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code, FA3_INVALID_ARGUMENT);
      EXPECT_EQ(error.what(), "FA3_NUM_THREADS: is \"" + std::string(text) + "\", expected a positive integer");
    }
  }
}

TEST(ParallelFor, EveryTaskOnceAndNoThreadTwiceAtATime) {
  for (const int threads : {1, 2, 7}) {
    std::vector<std::atomic<int>> calls(1000), busy(static_cast<std::size_t>(threads));
    std::atomic<bool> clash = false;
    parallel_for(1000, threads, [&](std::int64_t index, int thread) {
      if (busy[std::size_t(thread)]++ != 0) clash = true;
      ++calls[std::size_t(index)];
      --busy[std::size_t(thread)];
    });
    for (const auto& count : calls) ASSERT_EQ(count, 1);
    EXPECT_FALSE(clash);
  }
}

TEST(ParallelFor, NoTasks) {
  parallel_for(0, 3, [](std::int64_t, int) { FAIL(); });
}

}  // namespace
}  // namespace fa3::cpu
