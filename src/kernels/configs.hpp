// THE table of kernels. One line per row; CMake makes one source file of each, and dispatch, tests, benchmarks and `fa3
// info` read it. A new head dim is a new line. Plain C++.
#pragma once

#include <climits>
#include <iterator>

#include "attention/config.hpp"
#include "hopper/shared_tile.hpp"
#include "problem.hpp"

namespace fa3::kernels {

using attention::Edges;
using attention::ForwardConfig;
using attention::Maximum;
using attention::Output;
using attention::Pipeline;
using attention::Turns;
using hopper::Element;

struct ForwardRow {
  const char* name;
  ForwardConfig config;
  // Dispatch takes the row for sequences at least this long (queries and keys), without and with a causal mask.
  int full_from, causal_from;
};

inline constexpr int always = 0, never = INT_MAX;

/// What all e4m3 rows have in common. Edges, pipeline and maximum say what forward_fp8.hpp does, which has no other
/// way.
constexpr ForwardConfig fp8(int d, int d_v, int tile_q, int stages, int q_buffers, Output output, int pv_columns,
                            Turns turns, bool v_is_transposed, bool f16_sums, bool look_after = false) {
  ForwardConfig config{Element::e4m3, d, d_v, tile_q, 128, stages, q_buffers, output, Edges::branch, turns, 1};
  config.pipeline = Pipeline::none;
  config.maximum = Maximum::before;
  config.pv_columns = pv_columns;
  config.v_is_transposed = v_is_transposed;
  config.f16_sums = f16_sums;
  config.look_after = look_after;
  return config;
}

// Why clusters only for long sequences: they halve the reads from L2, but two CTAs in step lose where tiles are short
// (docs/lab_book.md, 17).
// Why no turns for short sequences with a causal mask at d = 64: warpgroups that need fewer blocks than the others would
// wait for turns that they do not use (docs/lab_book.md, 48).
// Why V^T only for long sequences: the kernel that makes it takes 19 us for 16k tokens of hidden size 2048, and what it
// saves is mostly power (docs/lab_book.md, 44).
// Why P is looked at first (look_after) without a mask and at d <= 128 only: with one rows see their first keys late, and
// compute exponentials twice; at d = 256 it gains nothing (docs/lab_book.md, 52).
// Why 64 keys at d = 256: 80 would fit, but leave padding at common lengths (docs/lab_book.md, 22 and 23).
// clang-format off
inline constexpr ForwardRow forward_rows[] = {
    // name               element        d    d_v  tile_q tile_kv stages q_buffers output                edges            turns        cluster
    {"f16_d64",             {Element::f16,  64,  64,  192,   128,    4,     2,        Output::own_buffer,   Edges::own_loop, Turns::gemm, 1}, always, always},
    {"f16_d96",             {Element::f16,  96,  96,  192,   112,    2,     2,        Output::over_q,       Edges::own_loop, Turns::gemm, 1}, always, always},
    {"f16_d128",            {Element::f16,  128, 128, 128,   128,    2,     2,        Output::own_buffer,   Edges::own_loop, Turns::gemm, 1}, always, always},
    {"f16_d128_cluster",    {Element::f16,  128, 128, 128,   128,    2,     2,        Output::own_buffer,   Edges::own_loop, Turns::gemm, 2}, 4096, 4096},
    {"f16_d192v128",        {Element::f16,  192, 128, 128,   128,    2,     1,        Output::by_registers, Edges::branch,   Turns::gemm, 1}, always, always},
    {"f16_d192",            {Element::f16,  192, 192, 128,   112,    2,     1,        Output::by_registers, Edges::branch,   Turns::gemm, 1}, always, always},
    {"f16_d256",            {Element::f16,  256, 256, 128,   64,     2,     1,        Output::by_registers, Edges::branch,   Turns::gemm, 1}, always, always},
    {"f16_d256_cluster",    {Element::f16,  256, 256, 128,   64,     2,     1,        Output::by_registers, Edges::branch,   Turns::gemm, 2}, 4096, 4096},
    {"bf16_d64",            {Element::bf16, 64,  64,  192,   128,    4,     2,        Output::own_buffer,   Edges::own_loop, Turns::gemm, 1}, always, always},
    {"bf16_d96",            {Element::bf16, 96,  96,  192,   112,    2,     2,        Output::over_q,       Edges::own_loop, Turns::gemm, 1}, always, always},
    {"bf16_d128",           {Element::bf16, 128, 128, 128,   128,    2,     2,        Output::own_buffer,   Edges::own_loop, Turns::gemm, 1}, always, always},
    {"bf16_d128_cluster",   {Element::bf16, 128, 128, 128,   128,    2,     2,        Output::own_buffer,   Edges::own_loop, Turns::gemm, 2}, 4096, 4096},
    {"bf16_d192v128",       {Element::bf16, 192, 128, 128,   128,    2,     1,        Output::by_registers, Edges::branch,   Turns::gemm, 1}, always, always},
    {"bf16_d192",           {Element::bf16, 192, 192, 128,   112,    2,     1,        Output::by_registers, Edges::branch,   Turns::gemm, 1}, always, always},
    {"bf16_d256",           {Element::bf16, 256, 256, 128,   64,     2,     1,        Output::by_registers, Edges::branch,   Turns::gemm, 1}, always, always},
    {"bf16_d256_cluster",   {Element::bf16, 256, 256, 128,   64,     2,     1,        Output::by_registers, Edges::branch,   Turns::gemm, 2}, 4096, 4096},
    //                           fp8(d,   d_v, tile_q,stages,q_buf, output,               pv_columns,turns,               v_is_transposed, f16_sums, look_after)
    {"e4m3_d64_short",          {fp8(64,  64,  256,   3,     2,     Output::by_registers, 64,        Turns::free_running, false,           false)}, never, always},
    {"e4m3_d64",                {fp8(64,  64,  256,   3,     2,     Output::by_registers, 64,        Turns::gemm,         false,           false)}, always, 4096},
    {"e4m3_d96",                {fp8(96,  96,  192,   3,     2,     Output::in_v_ring,    32,        Turns::gemm,         false,           false)}, always, always},
    {"e4m3_d128",               {fp8(128, 128, 192,   3,     2,     Output::in_v_ring,    64,        Turns::gemm,         false,           false)}, always, always},
    {"e4m3_d192v128",           {fp8(192, 128, 192,   2,     1,     Output::by_registers, 64,        Turns::gemm,         false,           false)}, always, always},
    {"e4m3_d192",               {fp8(192, 192, 128,   2,     1,     Output::in_v_ring,    64,        Turns::gemm,         false,           false)}, always, always},
    {"e4m3_d256",               {fp8(256, 256, 128,   2,     1,     Output::in_v_ring,    64,        Turns::gemm,         false,           false)}, always, always},
    {"e4m3_d64_vt",             {fp8(64,  64,  256,   4,     2,     Output::by_registers, 64,        Turns::gemm,         true,            false)}, 16384, 16384},
    {"e4m3_d128_vt",            {fp8(128, 128, 192,   4,     2,     Output::in_v_ring,    64,        Turns::gemm,         true,            false)}, 16384, 16384},
    {"e4m3_d256_vt",            {fp8(256, 256, 128,   3,     1,     Output::in_v_ring,    64,        Turns::gemm,         true,            false)}, 4096, 8192},
    {"e4m3_narrow_d64_short",   {fp8(64,  64,  256,   3,     2,     Output::by_registers, 64,        Turns::free_running, false,           true)}, never, always},
    {"e4m3_narrow_d64",         {fp8(64,  64,  256,   3,     2,     Output::by_registers, 64,        Turns::gemm,         false,           true)}, always, 4096},
    {"e4m3_narrow_d96",         {fp8(96,  96,  192,   3,     2,     Output::in_v_ring,    48,        Turns::gemm,         false,           true)}, always, always},
    {"e4m3_narrow_d128",        {fp8(128, 128, 192,   3,     2,     Output::in_v_ring,    64,        Turns::gemm,         false,           true)}, always, always},
    {"e4m3_narrow_d192v128",    {fp8(192, 128, 192,   2,     1,     Output::by_registers, 64,        Turns::gemm,         false,           true)}, always, always},
    {"e4m3_narrow_d192",        {fp8(192, 192, 128,   2,     1,     Output::in_v_ring,    96,        Turns::gemm,         false,           true)}, always, always},
    {"e4m3_narrow_d256",        {fp8(256, 256, 128,   2,     1,     Output::in_v_ring,    128,       Turns::gemm,         false,           true)}, always, always},
    {"e4m3_narrow_d64_vt",      {fp8(64,  64,  256,   4,     2,     Output::by_registers, 64,        Turns::gemm,         true,            true, true)}, 16384, never},
    {"e4m3_narrow_d128_vt",     {fp8(128, 128, 192,   4,     2,     Output::in_v_ring,    64,        Turns::gemm,         true,            true, true)}, 16384, never},
    {"e4m3_narrow_d256_vt",     {fp8(256, 256, 128,   3,     1,     Output::in_v_ring,    128,       Turns::gemm,         true,            true)}, 4096, 8192},
};
// clang-format on
inline constexpr int forward_row_count = static_cast<int>(std::size(forward_rows));
/// The rows of 16-bit types come first.
inline constexpr int rows_of_16_bits = [] {
  int count = 0;
  for (const ForwardRow& row : forward_rows) count += !row.config.fp8();
  return count;
}();

constexpr bool all_valid() {
  for (const ForwardRow& row : forward_rows)
    if (!row.config.valid()) return false;
  return true;
}
static_assert(all_valid());

constexpr fa3_dtype dtype_of(Element element) {
  return element == Element::f16 ? FA3_F16 : element == Element::bf16 ? FA3_BF16 : FA3_E4M3;
}

/// Whether a row takes this type and these head dims; TMA pads features up to the row's with zeros.
template <class Config>
constexpr bool fits(const Config& row, fa3_dtype dtype, std::int64_t d, std::int64_t d_v) {
  return dtype_of(row.element) == dtype && d <= row.d && d_v <= row.d_v;
}

/// Index of the row for a problem: of those that take it, the ones with the least work on padding, of these the last
/// that is for sequences of this length, `seqlen` being the shorter of queries and keys. For a d-major V, which only
/// some take, the length does not count. `narrow`: q, k and v are (fa3.h), so that rows with sums in f16 take them.
/// -1: none.
constexpr int select_forward_row(fa3_dtype dtype, std::int64_t d, std::int64_t d_v, std::int64_t seqlen = 0,
                                 bool causal = false, bool v_is_d_major = false, bool narrow = false) {
  const auto features = [](int row) { return forward_rows[row].config.d + forward_rows[row].config.d_v; };
  int best = -1;
  for (int i = 0; i < forward_row_count; ++i) {
    const ForwardRow& row = forward_rows[i];
    if (fits(row.config, dtype, d, d_v) && (narrow || !row.config.f16_sums) &&
        (v_is_d_major ? row.config.v_is_transposed : seqlen >= (causal ? row.causal_from : row.full_from)) &&
        (best < 0 || features(i) <= features(best)))
      best = i;
  }
  return best;
}

/// Bytes of the tiles in shared memory; barriers add less than a kilobyte (checked in simulate/row.hpp).
constexpr int shared_tile_bytes(const ForwardConfig& c) {
  const int d = hopper::stored_columns(c.stored_d()), d_v = hopper::stored_columns(c.stored_d_v());
  const int vt = hopper::stored_columns(c.d_v) * hopper::stored_columns(c.tile_kv / 2);
  return 2 * (c.q_buffers * c.tile_q * d +
              c.stages * (c.tile_kv * d + (c.v_is_transposed ? vt : c.tile_kv * d_v) + (c.transposes_v() ? vt : 0)) +
              (c.output == Output::own_buffer ? c.tile_q * d_v : 0));
}

}  // namespace fa3::kernels
