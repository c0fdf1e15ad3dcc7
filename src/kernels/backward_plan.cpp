#include "kernels/backward_plan.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "error.hpp"

namespace fa3::kernels {
namespace {

attention::Rows rows_of(const TensorRef& tensor) {
  const auto whole = [&](int i) { return tensor.stride[std::size_t(i)] % 8 == 0; };
  return {static_cast<std::uint16_t*>(tensor.data),
          {tensor.stride[0], tensor.stride[2], tensor.stride[1]},
          reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && whole(0) && whole(1) && whole(2)};
}

/// The tensor without its first rows.
TensorRef from_row(TensorRef tensor, int row) {
  if (tensor.empty()) return tensor;
  tensor.data = static_cast<std::uint16_t*>(tensor.data) + row * tensor.stride[1];
  tensor.shape[1] -= row;
  return tensor;
}

/// How many sequences' Q, dO and dQ stay in L2 together; not all of its 50 MB are theirs.
std::int64_t sequences_in_l2(const BackwardProblem& problem) {
  const std::int64_t bytes = problem.group() * problem.seqlen_q * (2 * (problem.d + problem.d_v) + 4 * problem.d);
  return (std::int64_t(32) << 20) / std::max<std::int64_t>(bytes, 1);
}

/// `most` of make_tile_order: what stays in L2, but two rounds of items, so that short ones fill the end.
int most_in_last_section(const BackwardProblem& problem, int row_items, int resident) {
  const std::int64_t balanced = (2 * resident + row_items - 1) / row_items;
  return int(std::min<std::int64_t>(std::max(sequences_in_l2(problem), balanced), std::numeric_limits<int>::max()));
}

/// The order of a deterministic run. Tiles of one head add to dQ in turn, so when all begin at once each starts behind
/// the one before by the time that one addition takes. With about 32 of a head running at once, or as many heads as
/// fit into L2, that is little beside a tile.
attention::TileOrder deterministic(attention::TileOrder order, const BackwardProblem& problem, int resident) {
  constexpr std::int64_t tiles_of_head = 32;
  const int wanted =
      int(std::clamp<std::int64_t>(std::max(resident / tiles_of_head, sequences_in_l2(problem)), 1, resident));
  // Sections of so many heads, and a last one of no fewer.
  const int last = order.last > 0 ? std::max(order.last, wanted) : 0;
  int before = std::max(order.sequences - last, 0) / wanted * wanted;
  if (before != order.sequences && order.sequences - before < wanted) before = std::max(before - wanted, 0);
  order.section = wanted;
  order.last = order.sequences - before;
  return order;
}

/// BackwardArguments::ahead: as many sequences as are worked on at once, so that nobody waits, and no more, so that the
/// zeros stay in L2. Not for the last section, whose items come in another order. All if little would be saved.
int zeroed_ahead(const attention::TileOrder& order, int resident) {
  const std::int64_t items_of_section = std::int64_t(order.section) * order.row_items;
  const std::int64_t ahead = order.section * ((resident + items_of_section - 1) / items_of_section + 1);
  return ahead + order.last < order.sequences - order.sequences / 4 ? int(ahead) : order.sequences;
}

}  // namespace

BackwardPlan plan_backward(const BackwardProblem& problem, int row) {
  BackwardPlan plan;
  plan.row = row < 0 ? select_backward_row(problem.dtype, problem.d, problem.d_v, problem.deterministic) : row;
  const std::string dims = "d = " + std::to_string(problem.d) + ", d_v = " + std::to_string(problem.d_v);
  if (plan.row < 0) throw Error(FA3_NOT_SUPPORTED, "no backward kernel for this dtype with " + dims);
  plan.config = backward_rows[plan.row].config;
  if (!fits(plan.config, problem.dtype, problem.d, problem.d_v))
    throw Error(FA3_INVALID_ARGUMENT,
                std::string("row ") + backward_rows[plan.row].name + " does not fit " + dims + " and this dtype");
  if (plan.config.deterministic != problem.deterministic)
    throw Error(FA3_INVALID_ARGUMENT, std::string("row ") + backward_rows[plan.row].name +
                                          (problem.deterministic ? " is not" : " is") + " deterministic");
  check_lengths(problem);
  const std::int64_t sequences = problem.heads * problem.batch;
  // The kernel before the main one has a CTA for every 64 rows.
  check_tiles("heads * ceil(seqlen_q", problem.seqlen_q, attention::rows_of_cta, sequences);
  check_tiles("kv_heads * ceil(seqlen_k", problem.seqlen_k, plan.config.tile_kv, problem.kv_heads * problem.batch);
  plan.zero_rows = problem.causal ? int(std::max<std::int64_t>(problem.seqlen_q - problem.seqlen_k, 0)) : 0;
  plan.blocks = int((problem.seqlen_q - plan.zero_rows + plan.config.tile_q - 1) / plan.config.tile_q);
  plan.key_items = int((problem.seqlen_k + plan.config.item_keys() - 1) / plan.config.item_keys());

  const attention::DqLayout layout = attention::dq_layout(plan.config);
  const std::int64_t blocks = sequences * plan.blocks;
  const auto reserve = [&](std::int64_t bytes) {
    const std::size_t offset = plan.workspace_bytes;
    plan.workspace_bytes += align(std::size_t(bytes));
    return offset;
  };
  plan.statistics = reserve(blocks * 2 * plan.config.tile_q * std::int64_t(sizeof(float)));
  plan.dq = reserve(blocks * layout.block_floats() * std::int64_t(sizeof(float)));
  plan.turn_count = problem.deterministic ? blocks * layout.parts : 0;
  plan.count_count = 1 + plan.turn_count + problem.kv_heads * problem.batch;
  plan.counts = reserve(plan.count_count * std::int64_t(sizeof(unsigned)));
  plan.d_o = stage("d_o", problem.d_o, plan.workspace_bytes);
  plan.q = stage("q", problem.q, plan.workspace_bytes);
  plan.k = stage("k", problem.k, plan.workspace_bytes);
  plan.v = stage("v", problem.v, plan.workspace_bytes);
  plan.dk = stage("dk", problem.dk, plan.workspace_bytes);
  plan.dv = stage("dv", problem.dv, plan.workspace_bytes);
  return plan;
}

BackwardLaunch backward_launch(const BackwardProblem& problem, BackwardPlan& plan, void* workspace, int sm_count,
                               TensorMapEncoder encode) {
  const auto place = [&](std::size_t offset) { return static_cast<unsigned char*>(workspace) + offset; };
  for (StagedTensor* staged : {&plan.d_o, &plan.q, &plan.k, &plan.v, &plan.dk, &plan.dv})
    if (staged->copied) staged->tensor.data = place(staged->offset);
  const BackwardConfig& config = plan.config;
  const attention::DqLayout layout = attention::dq_layout(config);
  float* const statistics = reinterpret_cast<float*>(place(plan.statistics));
  float* const dq = reinterpret_cast<float*>(place(plan.dq));
  unsigned* const counts = reinterpret_cast<unsigned*>(place(plan.counts));
  const int heads = int(problem.heads), sequences = int(problem.heads * problem.batch);
  const int seqlen_q = int(problem.seqlen_q) - plan.zero_rows;
  const int kv_sequences = int(problem.kv_heads * problem.batch);
  const double log2_e = 1.4426950408889634;
  const float scale = problem.softmax_scale, scale_log2 = float(scale * log2_e);
  // LSE in base 2 is LSE * scale_log2 / scale: as S * scale_log2 is off by the rounding of scale_log2, so is it.
  const double ratio = scale == 0 ? -log2_e : -double(scale_log2) / scale;

  BackwardLaunch launch{};
  attention::BeforeBackwardArguments& before = launch.before;
  before.d_o = rows_of(from_row(plan.d_o.tensor, plan.zero_rows));
  before.o = rows_of(from_row(problem.o, plan.zero_rows));
  before.lse = problem.lse == nullptr ? nullptr : problem.lse + plan.zero_rows * problem.lse_stride[2];
  std::copy(problem.lse_stride.begin(), problem.lse_stride.end(), before.lse_stride);
  before.ratio_high = float(ratio);
  before.ratio_low = float(ratio - double(before.ratio_high));
  before.log2_p_size = config.log2_p_size();
  before.d_size = config.d_size();
  before.heads = heads;
  before.seqlen_q = seqlen_q;
  before.d_v = int(problem.d_v);
  before.blocks = plan.blocks;
  before.layout = layout;
  before.statistics = statistics;
  before.dq = dq;
  before.dq_floats = before.kept_begin = before.kept_end =
      std::int64_t(sequences) * plan.blocks * layout.block_floats();
  before.counts = counts;
  before.count_count = plan.count_count;

  attention::BackwardArguments& main = launch.main;
  const int box_rows = config.tile_q / config.cluster;
  main.q = tensor_map("Q", from_row(plan.q.tensor, plan.zero_rows), config.element, box_rows, encode);
  main.d_o = tensor_map("dO", from_row(plan.d_o.tensor, plan.zero_rows), config.element, box_rows, encode);
  main.k = tensor_map("K", plan.k.tensor, config.element, config.tile_kv, encode);
  main.v = tensor_map("V", plan.v.tensor, config.element, config.tile_kv, encode);
  main.dk = tensor_map("dK", plan.dk.tensor, config.element, 16, encode);
  main.dv = tensor_map("dV", plan.dv.tensor, config.element, 16, encode);
  main.statistics = statistics;
  main.dq = dq;
  main.blocks = plan.blocks;
  main.heads = heads;
  main.group = int(problem.group());
  main.mask = {seqlen_q, int(problem.seqlen_k), problem.causal};
  // Head by head, whose Q, dO and dQ then stay in L2; with a causal mask the last heads together, longest tiles first.
  const int resident = std::max((sm_count - problem.sm_margin) / config.cluster, 1);
  if (plan.key_items > 0) {
    main.order = attention::make_tile_order(config.item_keys(), plan.key_items, int(problem.kv_heads), kv_sequences, 1,
                                            problem.causal ? resident : 0,
                                            most_in_last_section(problem, plan.key_items, resident));
    if (problem.deterministic) main.order = deterministic(main.order, problem, resident);
  }
  main.ahead = main.zeroed_end = kv_sequences;
  main.scale = scale;
  main.scale_log2 = scale_log2;

  attention::AfterBackwardArguments& after = launch.after;
  after = {dq, rows_of(problem.dq), heads, plan.zero_rows};
  after.zero_blocks = (plan.zero_rows + layout.rows - 1) / layout.rows;
  after.seqlen_q = int(problem.seqlen_q);
  after.d = int(problem.d);
  after.blocks = plan.blocks;
  after.layout = layout;
  after.scale = scale;

  launch.before_ctas = int(std::int64_t(sequences) * plan.blocks * config.tile_q / attention::rows_of_cta);
  const int items = plan.key_items * kv_sequences;
  launch.main_ctas = cta_count(items, config.cluster, sm_count, problem.sm_margin);
  if (launch.before_ctas > 0) {
    main.next_item = counts;
    main.turns = counts + 1;
    main.zeroed = main.turns + plan.turn_count;
    if (items > 0) main.ahead = zeroed_ahead(main.order, resident);
    if (main.ahead < kv_sequences) {
      main.zeroed_end = kv_sequences - main.order.last;
      before.kept_begin = before.dq_floats / kv_sequences * main.ahead;
      before.kept_end = before.dq_floats / kv_sequences * main.zeroed_end;
    }
    before.first_count = main.unasked =
        problem.deterministic || main.ahead < kv_sequences ? 0 : launch.main_ctas / config.cluster;
  } else {
    launch.main_ctas = config.cluster * items;  // nobody resets the counter
  }
  launch.after_ctas = sequences * (after.zero_blocks + plan.blocks);
  return launch;
}

}  // namespace fa3::kernels
