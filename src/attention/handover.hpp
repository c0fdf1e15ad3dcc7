// How rank 0 of a cluster, which takes the items of work, tells rank 1 which one is next. One thread of each.
#pragma once

#include <cstdint>

#include "attention/consumer.hpp"
#include "hopper/hopper.hpp"

namespace fa3::attention {
inline namespace HOPPER_BACKEND {

/// In shared memory.
///
///   barrier     arrivals per phase          waiter      meaning
///   item_full   1 + 4 bytes (rank 1)        rank 1      the number of the next item has come from rank 0
///   item_empty  1 (rank 1)                  rank 0      rank 1 has read it
struct Handover {
  hopper::Mbarrier full[2], empty[2];
  std::uint32_t item[2];

  HOPPER_FUNCTION void init_barriers() {
    for (int i = 0; i < 2; ++i) {
      full[i].init(1);
      empty[i].init(1);
    }
  }
  HOPPER_FUNCTION void send(int next, Cursor<2> slot) {
    empty[slot.stage].wait(slot.phase ^ 1);
    hopper::send_word(item[slot.stage], std::uint32_t(next), full[slot.stage], 1);
  }
  HOPPER_FUNCTION int receive(Cursor<2> slot) {
    full[slot.stage].arrive_expect_bytes(sizeof(item[0]));
    full[slot.stage].wait(slot.phase);
    const int next = int(hopper::load_shared(item[slot.stage]));
    empty[slot.stage].arrive_remote(0);
    return next;
  }
};

}  // namespace HOPPER_BACKEND
}  // namespace fa3::attention
