// THE table of kernels. One line per row; CMake makes one source file of each, and dispatch, tests, benchmarks and `fa3
// info` read it. A new head dim is a new line. Plain C++.
#pragma once

#include <iterator>

#include "attention/config.hpp"
#include "problem.hpp"

namespace fa3::kernels {

using attention::ForwardConfig;
using attention::Output;
using attention::Turns;
using hopper::Element;

struct ForwardRow {
  const char* name;
  ForwardConfig config;
};

// Rows of one type stand in the order of their head dims: dispatch takes the first that is large enough.
// Why 80 keys at d = 256: S and O take 40 + 128 registers of the 232, and two stages of K and V fit beside Q.
// clang-format off
inline constexpr ForwardRow forward_rows[] = {
    // name       element          d    d_v  tile_q tile_kv stages q_buffers output                turns        cluster
    {"f16_d64",   {Element::f16,   64,  64,  192,   128,    4,     2,        Output::own_buffer,   Turns::gemm, 1}},
    {"f16_d128",  {Element::f16,   128, 128, 128,   128,    2,     2,        Output::own_buffer,   Turns::gemm, 1}},
    {"f16_d256",  {Element::f16,   256, 256, 128,   80,     2,     1,        Output::by_registers, Turns::gemm, 1}},
    {"bf16_d64",  {Element::bf16,  64,  64,  192,   128,    4,     2,        Output::own_buffer,   Turns::gemm, 1}},
    {"bf16_d128", {Element::bf16,  128, 128, 128,   128,    2,     2,        Output::own_buffer,   Turns::gemm, 1}},
    {"bf16_d256", {Element::bf16,  256, 256, 128,   80,     2,     1,        Output::by_registers, Turns::gemm, 1}},
};
// clang-format on
inline constexpr int forward_row_count = static_cast<int>(std::size(forward_rows));

constexpr bool all_valid() {
  for (const ForwardRow& row : forward_rows)
    if (!row.config.valid()) return false;
  return true;
}
static_assert(all_valid());

/// Whether a row takes this type and these head dims; TMA pads features up to the row's with zeros.
constexpr bool fits(const ForwardConfig& row, fa3_dtype dtype, std::int64_t d, std::int64_t d_v) {
  return (row.element == Element::f16 ? FA3_F16 : FA3_BF16) == dtype && d <= row.d && d_v <= row.d_v;
}

/// Index of the first row that fits. -1: none.
constexpr int select_forward_row(fa3_dtype dtype, std::int64_t d, std::int64_t d_v) {
  for (int i = 0; i < forward_row_count; ++i)
    if (fits(forward_rows[i].config, dtype, d, d_v)) return i;
  return -1;
}

/// Bytes of the tiles in shared memory; barriers add less than a kilobyte (checked in simulate/row.hpp).
constexpr int shared_tile_bytes(const ForwardConfig& c) {
  return 2 *
         (c.q_buffers * c.tile_q * c.d + c.stages * c.tile_kv * (c.d + c.d_v) + (c.output == Output::own_buffer ? c.tile_q * c.d_v : 0));
}

}  // namespace fa3::kernels
