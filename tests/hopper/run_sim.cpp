// The tests of the hopper layer on the simulator.
#include "cluster_test.hpp"
#include "grid_test.hpp"
#include "math_test.hpp"
#include "matrix_move_test.hpp"
#include "thread_test.hpp"
#include "tma_test.hpp"
#include "transpose_test.hpp"
#include "wgmma_test.hpp"
