#include "attention/tile_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace fa3::attention {
namespace {

TEST(TileOrder, EveryItemOnceSectionBySectionLongestFirst) {
  for (const int row_items : {1, 2, 7})
    for (const int heads : {1, 3, 8})
      for (const int batch : {1, 2, 5})
        for (const int group : {1, 2, 3, 8})
          for (const auto& [resident, most] : {std::pair{1, 99}, {4, 99}, {132, 99}, {132, 8}, {4, group}}) {
            if (heads % group != 0) continue;
            const TileOrder order = make_tile_order(128, row_items, heads, heads * batch, group, resident, most);
            const int before = order.sequences - order.last;
            ASSERT_GE(before, 0);
            EXPECT_TRUE(order.last * row_items >= few_rounds * resident || order.last == order.sequences ||
                        order.last == most);
            EXPECT_LE(order.last, most);
            std::set<std::tuple<int, int, int>> seen;
            int previous_section = 0, previous_row = row_items * 128;
            for (int i = 0; i < order.count(); ++i) {
              const Tile tile = order.item(i);
              ASSERT_TRUE(tile.head >= 0 && tile.head < heads && tile.batch >= 0 && tile.batch < batch);
              ASSERT_TRUE(tile.first_row >= 0 && tile.first_row < row_items * 128 && tile.first_row % 128 == 0);
              ASSERT_TRUE(seen.emplace(tile.first_row, tile.head, tile.batch).second);
              const int sequence = tile.batch * heads + tile.head;
              const int section = sequence >= before ? before : sequence / group * group;
              ASSERT_GE(section, previous_section);
              if (section == previous_section) {
                ASSERT_LE(tile.first_row, previous_row);
              }
              previous_section = section;
              previous_row = tile.first_row;
            }
            ASSERT_EQ(int(seen.size()), row_items * heads * batch);
          }
}

/// Of the CTA that is busy for longest, by static_place().
float time_of(int seqlen_q, int warpgroups, int sequences, int resident, const LowTiles& low) {
  const auto tiles = [&](int height) { return (seqlen_q + 64 * height - 1) / (64 * height); };
  const int whole = (sequences - low.sequences) * tiles(warpgroups);
  const int items = whole + (low.sequences > 0 ? low.sequences * tiles(low.warpgroups) : 0);
  float longest = 0;
  for (int cta = 0; cta < std::min(resident, items); ++cta) {
    float time = 0;
    for (int round = 0; round * resident < items; ++round) {
      const int item = round * resident + static_place(cta, round, resident, false);
      if (item < items) time += item < whole ? 1.0f : time_of_low_tile(low.warpgroups, warpgroups);
    }
    longest = std::max(longest, time);
  }
  return longest;
}

TEST(LowTiles, NeverTakeLongerByCount) {
  int chosen = 0;
  for (const int warpgroups : {2, 3, 4})
    for (const int seqlen_q : {1, 64, 65, 200, 512, 1000, 4096})
      for (const int group : {1, 4, 7})
        for (const int groups : {1, 2, 5, 16, 40})
          for (const int resident : {1, 2, 7, 32, 132}) {
            const int sequences = group * groups;
            const LowTiles low = choose_low_tiles(seqlen_q, warpgroups, sequences, group, resident);
            ASSERT_TRUE(low.sequences >= 0 && low.sequences <= sequences && low.sequences % group == 0);
            if (low.sequences == 0) continue;
            ++chosen;
            ASSERT_TRUE(low.warpgroups >= 1 && low.warpgroups < warpgroups);
            EXPECT_LT(time_of(seqlen_q, warpgroups, sequences, resident, low),
                      time_of(seqlen_q, warpgroups, sequences, resident, {}))
                << warpgroups << " warpgroups, " << seqlen_q << " rows, " << sequences << " sequences, " << resident;
          }
  EXPECT_GT(chosen, 300);
}

TEST(LowTiles, WhereTheLastRoundIsNotFull) {
  const auto chosen = [](int seqlen_q, int warpgroups, int sequences, int group) {
    const LowTiles low = choose_low_tiles(seqlen_q, warpgroups, sequences, group, 132);
    return std::pair{low.sequences, low.warpgroups};
  };
  EXPECT_EQ(chosen(16384, 3, 16, 1), std::pair(1, 2)) << "10.4 rounds: 56 tiles would make 76 CTAs wait";
  EXPECT_EQ(chosen(16384, 4, 32, 1), std::pair(2, 3)) << "15.5 rounds";
  EXPECT_EQ(chosen(16384, 2, 8, 1), std::pair(0, 2)) << "7.76 rounds";
  EXPECT_EQ(chosen(2048, 3, 8, 1), std::pair(8, 2)) << "88 tiles for 132 CTAs";
  EXPECT_EQ(chosen(2048, 3, 4, 4), std::pair(4, 1));
  EXPECT_EQ(chosen(192, 3, 132, 1), std::pair(0, 3)) << "one round, full";
  EXPECT_EQ(chosen(16384, 3, 1600, 1), std::pair(0, 3)) << "1042 rounds";
  EXPECT_EQ(chosen(0, 3, 8, 1), std::pair(0, 3));
  EXPECT_EQ(chosen(INT_MAX - 1024, 4, 1, 1), std::pair(0, 4));
}

TEST(TileOrder, LastSectionKeepsItsKeysInL2) {
  EXPECT_EQ(most_in_last_section(1, 512 << 10), 50);
  EXPECT_EQ(most_in_last_section(4, 512 << 10), 200);
  EXPECT_EQ(most_in_last_section(4, std::int64_t(1) << 33), 64);  // longer than L2: by what memory delivers
  for (const std::int64_t bytes : {0, 1, 384}) EXPECT_EQ(most_in_last_section(1 << 20, bytes), 1 << 30);
}

TEST(StaticPlace, GivesEveryItemOnceAndDifferentRows) {
  for (const bool shrinking : {false, true})
    for (const int clusters : {1, 2, 3, 66, 132})
      for (int round = 0; round < 9; ++round) {
        std::set<int> places;
        for (int cluster = 0; cluster < clusters; ++cluster) {
          const int place = static_place(cluster, round, clusters, shrinking);
          ASSERT_TRUE(place >= 0 && place < clusters);
          places.insert(place);
        }
        ASSERT_EQ(int(places.size()), clusters);
      }
  std::set<int> rows;
  for (int round = 0; round < 3; ++round) rows.insert((round * 132 + static_place(5, round, 132, false)) % 3);
  EXPECT_EQ(rows.size(), 3u);
}

}  // namespace
}  // namespace fa3::attention
