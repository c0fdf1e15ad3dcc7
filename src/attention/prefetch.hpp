// Loads without a producer (Loads::consumer): a way not taken by the product (kernels/ablation.hpp).
#pragma once

#include "attention/item_queue.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// The producer's loads in the same order by a thread of the first consumer warpgroup, which must never wait for a
/// buffer that waits for itself. When its warpgroup has released K(n), it loads K(n + stages - 1) and V(n + stages - 2)
/// into the buffers of K(n - 1) and V(n - 2): with these its warpgroup is done, and the others will be without its
/// help. Likewise a tile is opened only into a buffer of Q whose tile this warpgroup has ended.
template <ForwardConfig config, bool used = config.loads == Loads::consumer>
class Prefetch {
 public:
  HOPPER_FUNCTION Prefetch(Shared<config>& shared, const ForwardArguments& args, int warpgroup)
      : shared_(shared),
        args_(args),
        queue_(shared, args),
        mine_(warpgroup == 0 && hopper::warp_of_warpgroup() == 0 && hopper::elect_one()) {}

  /// Before a tile is waited for.
  HOPPER_FUNCTION void begin_tile() { fill(); }
  HOPPER_FUNCTION void end_tile() { --open_; }
  HOPPER_FUNCTION void k_released() {
    ++room_;
    fill();
  }

 private:
  HOPPER_FUNCTION void fill() {
    if (mine_) {
      do {
        const Tile v_tile = v_tile_;
        const int v_block = v_block_;
        v_block_ = -1;
        if (room_ > 0 && find_block()) {
          --room_;
          load(shared_.k[k_.stage], args_.k, tile_, block_, shared_.k_empty[k_.stage], k_.phase,
               shared_.k_full[k_.stage]);
          ++k_;
          v_tile_ = tile_;
          v_block_ = block_--;
        }
        if (v_block >= 0) {
          load(shared_.v[v_.stage], args_.v, v_tile, v_block, shared_.v_empty[v_.stage], v_.phase,
               shared_.v_full[v_.stage]);
          ++v_;
        }
      } while (room_ > 0 && v_block_ >= 0);
    }
    hopper::warp_sync();
  }
  /// Opens tiles until there is a block to load. False if it may not or there is none.
  HOPPER_FUNCTION bool find_block() {
    while (block_ < first_block_) {
      if (stopped_ || open_ == config.q_buffers) return false;
      ++open_;
      open();
      if (stopped_) return false;
      const BlockWalk walk = walk_item<config>(args_, tile_);
      block_ = walk.end - 1;
      first_block_ = walk.begin;
    }
    return true;
  }
  template <class SharedTile>
  HOPPER_FUNCTION void load(SharedTile& to, const hopper::TensorMap& map, const Tile& tile, int block,
                            hopper::Mbarrier& empty, int phase, hopper::Mbarrier& full) {
    empty.wait(phase ^ 1);
    full.arrive_expect_bytes(SharedTile::bytes);
    hopper::load_tile(to, map, {0, block * config.tile_kv, tile.head / args_.group, tile.batch}, full);
  }
  HOPPER_FUNCTION void open() {
    stopped_ = queue_.item() >= args_.order.count();
    tile_ = stopped_ ? Tile{-1, 0, 0} : args_.order.item(queue_.item());
    shared_.q_empty[q_.stage].wait(q_.phase ^ 1);
    hopper::store_shared(shared_.tile[q_.stage], tile_);
    auto& full = shared_.q_full[q_.stage];
    if (stopped_) {
      full.arrive();
      return;
    }
    full.arrive_expect_bytes(Shared<config>::QTile::bytes);
    hopper::load_tile(shared_.q[q_.stage], args_.q, {0, tile_.first_row, tile_.head, tile_.batch}, full);
    ++q_;
    queue_.ask();
  }

  Shared<config>& shared_;
  const ForwardArguments& args_;
  ItemQueue<config> queue_;
  Cursor<config.q_buffers> q_;
  Cursor<config.stages> k_, v_;
  const bool mine_;
  bool stopped_ = false;
  int open_ = 0;                  // tiles begun and not ended
  int room_ = config.stages - 1;  // blocks of K that may be loaded
  Tile tile_;                     // of the next K
  int block_ = -1, first_block_ = 0;
  Tile v_tile_;       // of the next V
  int v_block_ = -1;  // -1: V has caught up with K
};

template <ForwardConfig config>
class Prefetch<config, false> {
 public:
  HOPPER_FUNCTION Prefetch(Shared<config>&, const ForwardArguments&, int) {}
  HOPPER_FUNCTION void begin_tile() {}
  HOPPER_FUNCTION void end_tile() {}
  HOPPER_FUNCTION void k_released() {}
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
