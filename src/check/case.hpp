// What tests/cases/*.json describe: one pass, forward or backward, with made-up data. docs/cases.md documents the
// format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fa3/fa3.h"

namespace fa3::check {

/// How a [batch, seqlen, heads, d] tensor lies in memory.
enum class Layout {
  dense,         // [batch, seqlen, heads, d]
  bhsd,          // [batch, heads, seqlen, d]
  gapped,        // dense, each row followed by a gap of 16 bytes: TMA can still encode it
  padded,        // dense, each row followed by a gap of 8 bytes: 16-bit rows are no longer 16-byte aligned
  offset,        // dense, starting one element after a 16-byte boundary
  repeat_batch,  // one batch entry for all (stride 0); inputs only
  repeat_rows,   // one row for all (stride 0); inputs only
  repeat_heads,  // one head for all (stride 0); inputs only
  repeat_all,    // one element for all (stride 0, of the features too); dO only
  spread,        // dense, but features two elements apart; dO only
  d_major,       // [batch, heads, d, seqlen], each row of keys followed by a gap up to 16 bytes; V of e4m3 only
  packed         // q, k, v interleaved as [batch, seqlen, heads + 2 kv_heads, d]; all three together; so dq, dk, dv
};

/// The scales of an e4m3 tensor. Those of heads and blocks are seeded powers of 2 with any exponent in a range.
enum class Scales {
  none,         // no pointer: 1
  head,         // one for each key/value head, exponents -1..1
  block,        // one for each block, exponents -1..1
  transposed,   // the same, in memory [block, head, batch]
  wild,         // the same, exponents -4..2
  tiny,         // the same, exponents -85..-83: the product of two is 0 in f32
  huge,         // the same, exponents 8..10: the product of two is infinite in f16
  repeat,       // one for all, of each head (stride 0)
  repeat_block  // the same, of each block
};

enum class LseLayout { none, dense, transposed };  // [batch, heads, seqlen_q] or, in memory, [batch, seqlen_q, heads]

struct TensorSpec {
  Layout layout = Layout::dense;
  std::optional<double> constant;  // every element; absent: standard normal
  double scale = 1;                // factor on every element
  double quantum = 0;              // not 0: every element is rounded to a multiple of it
  Scales scales = Scales::none;    // e4m3 only
};

/// Changes elements of an input after it was filled; an absent index means all. Negative indices count from the end.
struct Patch {
  int tensor = 0;  // 0 q, 1 k, 2 v, 3 dO
  std::optional<std::int64_t> batch, row, head, feature;
  std::optional<double> value;  // set to this (may be NaN or Inf) ...
  double slope = 0;             // ... plus this times the row's index
  double times = 1;             // ... or else multiplied by this
};

struct Case {
  std::string name;  // unique; seeds derive from it
  fa3_dtype dtype = FA3_F16;
  fa3_dtype o_dtype = FA3_F16;  // of o with e4m3; else it has `dtype`
  std::int64_t batch = 1, heads = 1, kv_heads = 1, seqlen_q = 0, seqlen_k = 0, d = 64, d_v = 64;
  bool causal = false;
  int sm_margin = 0;
  std::optional<float> softmax_scale;
  TensorSpec q, k, v, o;
  bool narrow = false;  // e4m3: q, k and v are no larger than what rows with sums in f16 take, and their scales say so
  LseLayout lse = LseLayout::dense;
  std::vector<Patch> patches;
  bool null_if_empty = false;  // tensors without elements are passed as null pointers
  int repeats = 1;             // runs; each must give the same bits
  bool graph = false;          // on cuda: captured into a graph, replayed twice
  bool big = false;            // gigabytes, or minutes on a CPU: on cuda only

  bool backward = false;  // the backward pass, with O and LSE of a forward pass on the same device
  TensorSpec d_o, dq, dk, dv;
  bool deterministic = false;
  std::int64_t keys_elsewhere = 0;  // O and LSE are of so many keys more, in front of those the backward pass has

  fa3_dtype dtype_of_o() const { return dtype == FA3_E4M3 ? o_dtype : dtype; }
};

struct CaseFile {
  std::string_view name;  // of the file, without .json
  std::string_view text;
};

/// The files of tests/cases, as they were when this was built.
const std::vector<CaseFile>& embedded_case_files();

/// The cases of one file, lists expanded. Throws std::runtime_error that names file, case and key.
std::vector<Case> parse_cases(const CaseFile& file);

/// The cases of all embedded files. Throws like parse_cases, and if two cases have one name.
std::vector<Case> all_cases();

/// Whether `case_` can run on `device` (fa3_device): f32 and a dO without contiguous features are for the cpu, `big`
/// for cuda.
bool runs_on(const Case& case_, fa3_device device);

/// Whether `name` matches: a glob (*, ?, [..]) over the whole name, or without such characters a part of it.
bool name_matches(const std::string& name, const std::string& filter);

}  // namespace fa3::check
