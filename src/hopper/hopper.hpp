// The machine: everything the algorithm in src/attention may use. docs/hopper.md has the overview.
#pragma once

#include "hopper/address.hpp"
#include "hopper/backend.hpp"
#include "hopper/cluster.hpp"
#include "hopper/element.hpp"
#include "hopper/fence.hpp"
#include "hopper/math.hpp"
#include "hopper/matrix_move.hpp"
#include "hopper/mbarrier.hpp"
#include "hopper/memory.hpp"
#include "hopper/named_barrier.hpp"
#include "hopper/registers.hpp"
#include "hopper/shared_tile.hpp"
#include "hopper/tensor_map.hpp"
#include "hopper/thread.hpp"
#include "hopper/tma.hpp"
#include "hopper/wgmma.hpp"
