#include "attention/tile_order.hpp"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

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
