// Every mask reduces to intervals; the walk must visit each block some row sees once, and call full exactly those that
// all rows see.
#include "attention/mask.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace fa3::attention {
namespace {

TEST(Mask, CausalIsAlignedBottomRight) {
  const Mask mask{3, 5, true};
  EXPECT_EQ(mask.visible(0).end, 3);
  EXPECT_EQ(mask.visible(2).end, 5);
  const Mask longer{5, 3, true};
  EXPECT_EQ(longer.visible(0).end, 0);
  EXPECT_EQ(longer.visible(1).end, 0);
  EXPECT_EQ(longer.visible(2).end, 1);
  EXPECT_EQ(longer.visible(4).end, 3);
}

TEST(Mask, FullSeesAll) {
  const Mask mask{3, 5, false};
  EXPECT_EQ(mask.visible(0).first, 0);
  EXPECT_EQ(mask.visible(0).end, 5);
}

TEST(Mask, SeenByIsTheInverseOfVisible) {
  for (const bool causal : {false, true})
    for (const int seqlen_q : {0, 1, 3, 8, 9})
      for (const int seqlen_k : {0, 1, 3, 8, 9}) {
        const Mask mask{seqlen_q, seqlen_k, causal};
        Interval last{0, 0};
        for (int key = 0; key < seqlen_k + 4; ++key) {
          const Interval rows = mask.seen_by(key);
          for (int row = 0; row < seqlen_q; ++row) {
            const Interval keys = mask.visible(row);
            EXPECT_EQ(rows.first <= row && row < rows.end, keys.first <= key && key < keys.end)
                << "seqlen_q " << seqlen_q << ", seqlen_k " << seqlen_k << ", causal " << causal << ", row " << row
                << ", key " << key;
          }
          EXPECT_TRUE(last.first <= rows.first && last.end <= rows.end) << "an end falls at key " << key;
          last = rows;
        }
      }
  const Mask longest{2147482624, 2147482624, true};
  EXPECT_EQ(longest.seen_by(2147482623).first, 2147482623);
}

void check_walk(const Mask& mask, int first_row, int rows, int tile_kv) {
  SCOPED_TRACE(testing::Message() << "seqlen_q " << mask.seqlen_q << " seqlen_k " << mask.seqlen_k << " causal "
                                  << mask.causal << " first_row " << first_row << " rows " << rows << " tile_kv "
                                  << tile_kv);
  std::set<int> touched, whole;
  for (int block = 0; block * tile_kv < mask.seqlen_k; ++block) {
    bool any = false, all = true;
    for (int row = first_row; row < std::min(first_row + rows, mask.seqlen_q); ++row) {
      const Interval keys = mask.visible(row);
      any |= keys.first < (block + 1) * tile_kv && keys.end > block * tile_kv && keys.first < keys.end;
      all &= keys.first <= block * tile_kv && keys.end >= (block + 1) * tile_kv;
    }
    if (any) touched.insert(block);
    if (all) whole.insert(block);
  }
  for (const bool all_edges : {false, true}) {
    const BlockWalk walk = BlockWalk::of(mask, first_row, rows, tile_kv, all_edges);
    std::set<int> visited;
    for (int block = walk.begin; block < walk.end; ++block) {
      visited.insert(block);
      EXPECT_EQ(!walk.is_edge(block), whole.contains(block) && !all_edges) << "block " << block;
    }
    EXPECT_EQ(visited, touched);
    EXPECT_EQ(walk.empty(), touched.empty());
  }
}

TEST(BlockWalk, VisitsWhatIsVisibleOnce) {
  std::mt19937 random(1);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < 3000; ++i) {
    const Mask mask{draw(1, 700), draw(0, 700), draw(0, 1) == 1};
    const int tile_q = 64 * draw(2, 4);
    const int tile_kv = 16 * draw(1, 8);
    check_walk(mask, draw(0, (mask.seqlen_q - 1) / tile_q + 1) * tile_q, tile_q, tile_kv);
  }
}

TEST(BlockWalk, HasALeftEdgeIfTheMaskHas) {
  std::mt19937 random(3);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int left_edges = 0;
  for (int i = 0; i < 5000; ++i) {
    const int tile_kv = 16 * draw(1, 8);
    const Interval top{draw(0, 500), draw(0, 900)};
    const Interval bottom{draw(top.first, 600), draw(top.end, 1000)};
    const BlockWalk walk = BlockWalk::of(top, bottom, tile_kv, false);
    ASSERT_LE(walk.begin, walk.full_begin);
    ASSERT_LE(walk.full_begin, walk.full_end);
    ASSERT_LE(walk.full_end, walk.end);
    for (int block = walk.begin; block < walk.end; ++block) {
      const int first = block * tile_kv, end = first + tile_kv;
      ASSERT_EQ(!walk.is_edge(block), bottom.first <= first && end <= top.end) << "block " << block;
    }
    left_edges += walk.full_begin > walk.begin && walk.full_end > walk.full_begin;
    for (int block = top.first / tile_kv; block * tile_kv < bottom.end; ++block)
      ASSERT_TRUE(walk.begin <= block && block < walk.end);
  }
  EXPECT_GT(left_edges, 100);
}

TEST(BlockWalk, DoesNotOverflowAtTheLongestSequences) {
  constexpr int longest = (1u << 31) - 1024;
  const Mask mask{longest, longest, true};
  const int first_row = (longest - 1) / 128 * 128;
  const BlockWalk walk = BlockWalk::of(mask, first_row, 128, 128, false);
  EXPECT_EQ(walk.begin, 0);
  EXPECT_EQ(walk.end, (longest + 127LL) / 128);
  EXPECT_EQ(mask.visible(longest - 1).end, longest);
  EXPECT_EQ((Mask{longest, 1000, true}.visible(0).end), 0);
  EXPECT_EQ((Mask{1000, longest, true}.visible(999).end), longest);
}

TEST(VisibleWord, MatchesColumnByColumn) {
  std::mt19937 random(2);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < 20000; ++i) {
    const Interval keys{draw(-300, 300), draw(-300, 300)};
    const int column = 2 * draw(0, 3);
    std::uint32_t expected = 0;
    for (int j = 0; j < 16; ++j)
      for (int e = 0; e < 2; ++e) {
        const int key = 8 * j + column + e;
        if (keys.first <= key && key < keys.end) expected |= std::uint32_t(1) << (2 * j + e);
      }
    ASSERT_EQ(visible_word(keys, column), expected) << keys.first << " " << keys.end << " " << column;
  }
}

}  // namespace
}  // namespace fa3::attention
