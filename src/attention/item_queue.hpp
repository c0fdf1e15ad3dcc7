// Which item of work comes next. In a cluster with a dynamic schedule, rank 0 takes the item and tells rank 1.
#pragma once

#include "attention/arguments.hpp"
#include "attention/config.hpp"
#include "attention/shared.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// The blocks loaded for a CTA's tile: those that any tile of its cluster needs.
template <ForwardConfig config>
HOPPER_FUNCTION BlockWalk walk_item(const ForwardArguments& args, const Tile& tile) {
  int first_row = tile.first_row;
  if constexpr (config.cluster > 1) first_row -= hopper::cluster_rank() * config.tile_q;
  return BlockWalk::of(args.mask, first_row, config.cluster * config.tile_q, config.tile_kv, args.scale.sign != 1.0f);
}

template <ForwardConfig config>
class ItemQueue {
 public:
  HOPPER_FUNCTION ItemQueue(Shared<config>& shared, const ForwardArguments& args)
      : shared_(shared), args_(args), item_(first()) {}

  HOPPER_FUNCTION int item() const { return item_; }

  /// Asks for the next item. The answer is needed when this one is loaded: asking before hides the latency.
  HOPPER_FUNCTION void ask() {
    if (args_.next_item == nullptr) {
      ++round_;
      item_ = round_ * clusters() + static_place(first(), round_, clusters(), args_.mask.causal);
    } else if (takes()) {
      item_ = clusters() + static_cast<int>(hopper::atomic_add(args_.next_item, 1u));
    }
  }
  /// Makes it this CTA's item.
  HOPPER_FUNCTION void receive() {
    if constexpr (config.cluster > 1) {
      if (args_.next_item == nullptr) return;
      if (takes()) {
        shared_.handover.send(item_, slot_);
      } else {
        item_ = shared_.handover.receive(slot_);
      }
      ++slot_;
    }
  }

 private:
  HOPPER_FUNCTION static int first() {
    if constexpr (config.cluster > 1) return hopper::cluster();
    return hopper::cta();
  }
  HOPPER_FUNCTION static int clusters() {
    if constexpr (config.cluster > 1) return hopper::cluster_count();
    return hopper::cta_count();
  }
  HOPPER_FUNCTION static bool takes() {
    if constexpr (config.cluster > 1) return hopper::cluster_rank() == 0;
    return true;
  }

  Shared<config>& shared_;
  const ForwardArguments& args_;
  int item_;
  int round_ = 0;  // of a static schedule
  Cursor<2> slot_;
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
