// The table of backward kernels, as configs.hpp for the forward pass. Plain C++.
#pragma once

#include <iterator>

#include "attention/backward_config.hpp"
#include "kernels/configs.hpp"

namespace fa3::kernels {

using attention::BackwardConfig;

struct BackwardRow {
  const char* name;
  BackwardConfig config;
};

// Why 128 query rows at d = 64: dK and dV leave the registers for it, and a block of 64 would read K and V twice as
// often from shared memory.
// Why 64 keys from d = 192 on: dK and dV of 128 would be the 512 registers of two warpgroups' threads.
// Why clusters at d = 256: the L2 binds there. At d = 192 half of the columns are not whole panels.
// clang-format off
inline constexpr BackwardRow backward_rows[] = {
    // name                           element        d    d_v  tile_q tile_kv stages cluster deterministic
    {"f16_d64",                     {Element::f16,  64,  64,  128,   128,    2,     1,      false}},
    {"f16_d96",                     {Element::f16,  96,  96,  64,    128,    2,     1,      false}},
    {"f16_d128",                    {Element::f16,  128, 128, 64,    128,    2,     1,      false}},
    {"f16_d192v128",                {Element::f16,  192, 128, 64,    64,     2,     1,      false}},
    {"f16_d192",                    {Element::f16,  192, 192, 64,    64,     2,     1,      false}},
    {"f16_d256",                    {Element::f16,  256, 256, 64,    64,     2,     2,      false}},
    {"f16_d64_deterministic",       {Element::f16,  64,  64,  128,   128,    2,     1,      true}},
    {"f16_d96_deterministic",       {Element::f16,  96,  96,  64,    128,    2,     1,      true}},
    {"f16_d128_deterministic",      {Element::f16,  128, 128, 64,    128,    2,     1,      true}},
    {"f16_d192v128_deterministic",  {Element::f16,  192, 128, 64,    64,     2,     1,      true}},
    {"f16_d192_deterministic",      {Element::f16,  192, 192, 64,    64,     2,     1,      true}},
    {"f16_d256_deterministic",      {Element::f16,  256, 256, 64,    64,     2,     2,      true}},
    {"bf16_d64",                    {Element::bf16, 64,  64,  128,   128,    2,     1,      false}},
    {"bf16_d96",                    {Element::bf16, 96,  96,  64,    128,    2,     1,      false}},
    {"bf16_d128",                   {Element::bf16, 128, 128, 64,    128,    2,     1,      false}},
    {"bf16_d192v128",               {Element::bf16, 192, 128, 64,    64,     2,     1,      false}},
    {"bf16_d192",                   {Element::bf16, 192, 192, 64,    64,     2,     1,      false}},
    {"bf16_d256",                   {Element::bf16, 256, 256, 64,    64,     2,     2,      false}},
    {"bf16_d64_deterministic",      {Element::bf16, 64,  64,  128,   128,    2,     1,      true}},
    {"bf16_d96_deterministic",      {Element::bf16, 96,  96,  64,    128,    2,     1,      true}},
    {"bf16_d128_deterministic",     {Element::bf16, 128, 128, 64,    128,    2,     1,      true}},
    {"bf16_d192v128_deterministic", {Element::bf16, 192, 128, 64,    64,     2,     1,      true}},
    {"bf16_d192_deterministic",     {Element::bf16, 192, 192, 64,    64,     2,     1,      true}},
    {"bf16_d256_deterministic",     {Element::bf16, 256, 256, 64,    64,     2,     2,      true}},
};
// clang-format on
inline constexpr int backward_row_count = static_cast<int>(std::size(backward_rows));

constexpr bool all_backward_rows_valid() {
  for (const BackwardRow& row : backward_rows)
    if (!row.config.valid()) return false;
  return true;
}
static_assert(all_backward_rows_valid());

/// Index of the row with the least work on padding for these head dims; -1: none fits.
constexpr int select_backward_row(fa3_dtype dtype, std::int64_t d, std::int64_t d_v, bool deterministic) {
  const auto features = [](int row) { return backward_rows[row].config.d + backward_rows[row].config.d_v; };
  int best = -1;
  for (int i = 0; i < backward_row_count; ++i) {
    const BackwardConfig& config = backward_rows[i].config;
    if (fits(config, dtype, d, d_v) && config.deterministic == deterministic &&
        (best < 0 || features(i) < features(best)))
      best = i;
  }
  return best;
}

}  // namespace fa3::kernels
