#include "attention/tile_order.hpp"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace fa3::attention {
namespace {

TEST(TileOrder, EveryTileOnceAndLongestFirstWithinASection) {
  for (const int q_tiles : {1, 2, 7})
    for (const int heads : {1, 3, 8})
      for (const int batch : {1, 2, 5})
        for (int section = 1; section <= heads * batch; ++section) {
          const TileOrder order{128, q_tiles, heads, heads * batch, section};
          std::set<std::tuple<int, int, int>> seen;
          int previous_section = 0, previous_row = q_tiles * 128;
          for (int i = 0; i < order.count(); ++i) {
            const Tile tile = order.tile(i);
            ASSERT_TRUE(tile.head >= 0 && tile.head < heads && tile.batch >= 0 && tile.batch < batch);
            ASSERT_TRUE(tile.first_row >= 0 && tile.first_row < q_tiles * 128 && tile.first_row % 128 == 0);
            ASSERT_TRUE(seen.emplace(tile.first_row, tile.head, tile.batch).second);
            const int this_section = (tile.batch * heads + tile.head) / section;
            ASSERT_GE(this_section, previous_section);
            if (this_section == previous_section) {
              ASSERT_LE(tile.first_row, previous_row);
            }
            previous_section = this_section;
            previous_row = tile.first_row;
          }
          ASSERT_EQ(int(seen.size()), q_tiles * heads * batch);
        }
}

}  // namespace
}  // namespace fa3::attention
