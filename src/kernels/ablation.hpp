// What each choice of the kernel is worth: the row that dispatch takes for head dim 128, and rows that differ from it.
// `fa3 ablate` runs them; they are no part of the library. CMake makes one source file of each line. Plain C++.
#pragma once

#include "kernels/configs.hpp"

namespace fa3::kernels {

using attention::Loads;
using attention::Maximum;
using attention::Pipeline;

// Why the tiles: two scores in flight fit into registers with blocks of 80 keys (so tile_80 is three_stage's measure),
// and a third stage fits into shared memory beside one Q and no O.
// clang-format off
inline constexpr ForwardRow ablation_rows[] = {
    // name                element       d    d_v  tile_q tile_kv stages q_buffers output            edges            turns                cluster pipeline               maximum           loads
    {"product",           {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::gemm,         1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"cluster",           {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::gemm,         2, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"no_pipeline",       {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::gemm,         1, Pipeline::none,        Maximum::lagging, Loads::producer}, always, always},
    {"no_specialisation", {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::gemm,         1, Pipeline::two_stage,   Maximum::lagging, Loads::consumer}, always, always},
    {"neither",           {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::gemm,         1, Pipeline::none,        Maximum::lagging, Loads::consumer}, always, always},
    {"max_before",        {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::gemm,         1, Pipeline::two_stage,   Maximum::before,  Loads::producer}, always, always},
    {"max_before_alone",  {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::gemm,         1, Pipeline::none,        Maximum::before,  Loads::producer}, always, always},
    {"max_before_unspec", {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::gemm,         1, Pipeline::two_stage,   Maximum::before,  Loads::consumer}, always, always},
    {"free_running",      {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::free_running, 1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"softmax_turns",     {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::own_loop, Turns::softmax,      1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"edges_branch",      {Element::f16, 128, 128, 128,   128,    2,     2, Output::own_buffer,   Edges::branch,   Turns::gemm,         1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"one_q",             {Element::f16, 128, 128, 128,   128,    2,     1, Output::own_buffer,   Edges::own_loop, Turns::gemm,         1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"o_over_q",          {Element::f16, 128, 128, 128,   128,    2,     2, Output::over_q,       Edges::own_loop, Turns::gemm,         1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"o_by_registers",    {Element::f16, 128, 128, 128,   128,    2,     2, Output::by_registers, Edges::own_loop, Turns::gemm,         1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"ring_3",            {Element::f16, 128, 128, 128,   128,    3,     1, Output::by_registers, Edges::own_loop, Turns::gemm,         1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"tile_80",           {Element::f16, 128, 128, 128,   80,     2,     2, Output::own_buffer,   Edges::branch,   Turns::gemm,         1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
    {"three_stage",       {Element::f16, 128, 128, 128,   80,     2,     2, Output::own_buffer,   Edges::branch,   Turns::gemm,         1, Pipeline::three_stage, Maximum::lagging, Loads::producer}, always, always},
    {"three_warpgroups",  {Element::f16, 128, 128, 192,   80,     2,     2, Output::own_buffer,   Edges::own_loop, Turns::gemm,         1, Pipeline::two_stage,   Maximum::lagging, Loads::producer}, always, always},
};
// clang-format on
inline constexpr int ablation_row_count = static_cast<int>(std::size(ablation_rows));

constexpr bool all_ablation_rows_valid() {
  for (const ForwardRow& row : ablation_rows)
    if (!row.config.valid()) return false;
  return true;
}
static_assert(all_ablation_rows_valid());
static_assert(ablation_rows[0].config == forward_rows[select_forward_row(FA3_F16, 128, 128)].config,
              "the ablation's first row is the product's");

/// TFLOP/s of FlashAttention-3 in table 2 of its paper that correspond to a row: on an H100, batch 4, seqlen 8448, 16
/// heads of 128, f16, no mask. 0: none does. The paper's kernel raises m in every block.
constexpr double paper_tflops(const ForwardConfig& config) {
  ForwardConfig paper = ablation_rows[0].config;
  paper.maximum = Maximum::before;
  ForwardConfig one_stage = paper, unspecialised = paper;
  one_stage.pipeline = Pipeline::none;
  unspecialised.loads = Loads::consumer;
  return config == paper ? 661 : config == one_stage ? 582 : config == unspecialised ? 570 : 0;
}

}  // namespace fa3::kernels
