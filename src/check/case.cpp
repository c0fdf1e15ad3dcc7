#include "check/case.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace fa3::check {
namespace {

using Json = nlohmann::ordered_json;  // names list the keys in the order of the file

constexpr std::pair<const char*, fa3_dtype> dtypes[] = {
    {"f16", FA3_F16}, {"bf16", FA3_BF16}, {"f32", FA3_F32}, {"e4m3", FA3_E4M3}};
constexpr std::pair<const char*, fa3_dtype> o_dtypes[] = {{"f16", FA3_F16}, {"bf16", FA3_BF16}};
constexpr std::pair<const char*, Scales> scales[] = {{"none", Scales::none},
                                                     {"head", Scales::head},
                                                     {"block", Scales::block},
                                                     {"transposed", Scales::transposed},
                                                     {"wild", Scales::wild},
                                                     {"tiny", Scales::tiny},
                                                     {"huge", Scales::huge},
                                                     {"repeat", Scales::repeat},
                                                     {"repeat_block", Scales::repeat_block}};
constexpr const char* e4m3_keys[] = {"o_dtype", "narrow", "descale", "q_descale", "k_descale", "v_descale"};
constexpr std::pair<const char*, LseLayout> lse_layouts[] = {
    {"none", LseLayout::none}, {"dense", LseLayout::dense}, {"transposed", LseLayout::transposed}};
constexpr std::pair<const char*, Layout> layouts[] = {{"dense", Layout::dense},
                                                      {"bhsd", Layout::bhsd},
                                                      {"gapped", Layout::gapped},
                                                      {"padded", Layout::padded},
                                                      {"offset", Layout::offset},
                                                      {"repeat_batch", Layout::repeat_batch},
                                                      {"repeat_rows", Layout::repeat_rows},
                                                      {"repeat_heads", Layout::repeat_heads},
                                                      {"repeat_all", Layout::repeat_all},
                                                      {"spread", Layout::spread},
                                                      {"d_major", Layout::d_major},
                                                      {"packed", Layout::packed}};
constexpr std::pair<const char*, bool> passes[] = {{"forward", false}, {"backward", true}};
constexpr const char* backward_keys[] = {"d_o",       "d_o_scale", "d_o_layout",    "dq_layout",
                                         "dk_layout", "dv_layout", "deterministic", "keys_elsewhere"};

template <class T, std::size_t n>
T choice(const Json& value, const char* key, const std::pair<const char*, T> (&allowed)[n]) {
  std::string names;
  for (const auto& [name, result] : allowed) {
    if (value == name) return result;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw std::runtime_error(fmt::format("{} is {}; allowed are {}", key, value.dump(), names));
}

double number(const Json& value, const char* key) {
  if (value.is_number()) return value.get<double>();
  // JSON has no words for these.
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::runtime_error(
      fmt::format("{} is {}; it must be a number, \"nan\", \"inf\" or \"-inf\"", key, value.dump()));
}

std::int64_t integer(const Json& value, const char* key) {
  if (!value.is_number_integer())
    throw std::runtime_error(fmt::format("{} is {}; it must be an integer", key, value.dump()));
  return value.get<std::int64_t>();
}

bool boolean(const Json& value, const char* key) {
  if (!value.is_boolean())
    throw std::runtime_error(fmt::format("{} is {}; it must be true or false", key, value.dump()));
  return value.get<bool>();
}

/// Hands each value to the reader of its key; a key without one is an error, so that a slip never weakens a case.
using Readers = std::map<std::string, std::function<void(const Json&)>>;
void read_object(const Json& object, const char* what, const Readers& readers) {
  if (!object.is_object()) throw std::runtime_error(fmt::format("{} is {}; it must be an object", what, object.dump()));
  for (const auto& [key, value] : object.items()) {
    const auto reader = readers.find(key);
    if (reader == readers.end()) {
      std::string names;
      for (const auto& [name, _] : readers) names += (names.empty() ? "" : ", ") + name;
      throw std::runtime_error(fmt::format("unknown key \"{}\" in {}; allowed are {}", key, what, names));
    }
    reader->second(value);
  }
}

Patch parse_patch(const Json& object) {
  Patch patch;
  bool has_tensor = false, has_times = false;
  constexpr std::pair<const char*, int> inputs[] = {{"q", 0}, {"k", 1}, {"v", 2}, {"d_o", 3}};
  read_object(object, "a patch",
              {{"tensor", [&](const Json& x) { patch.tensor = choice(x, "tensor", inputs), has_tensor = true; }},
               {"batch", [&](const Json& x) { patch.batch = integer(x, "batch"); }},
               {"row", [&](const Json& x) { patch.row = integer(x, "row"); }},
               {"head", [&](const Json& x) { patch.head = integer(x, "head"); }},
               {"feature", [&](const Json& x) { patch.feature = integer(x, "feature"); }},
               {"value", [&](const Json& x) { patch.value = number(x, "value"); }},
               {"slope", [&](const Json& x) { patch.slope = number(x, "slope"); }},
               {"times", [&](const Json& x) { patch.times = number(x, "times"), has_times = true; }}});
  if (!has_tensor) throw std::runtime_error("a patch needs the key \"tensor\"");
  if (patch.value.has_value() == has_times) throw std::runtime_error("a patch needs one of \"value\" and \"times\"");
  if (patch.slope != 0 && !patch.value) throw std::runtime_error("a patch with \"slope\" needs \"value\"");
  return patch;
}

/// Layout packed is for three tensors together.
void check_packed(const Case& c, const TensorSpec& q, const TensorSpec& k, const TensorSpec& v, const char* names) {
  const bool packed[] = {q.layout == Layout::packed, k.layout == Layout::packed, v.layout == Layout::packed};
  if (packed[0] != packed[1] || packed[0] != packed[2])
    throw std::runtime_error(fmt::format("layout packed is for {} together", names));
  if (packed[0] && (c.seqlen_q != c.seqlen_k || c.d != c.d_v || c.keys_elsewhere != 0))
    throw std::runtime_error("layout packed needs seqlen_q = seqlen_k, d = d_v and no keys_elsewhere");
}

void check_layouts(const Case& c) {
  check_packed(c, c.q, c.k, c.v, "q, k and v");
  check_packed(c, c.dq, c.dk, c.dv, "dq, dk and dv");
  const auto in = [](const TensorSpec& tensor, std::initializer_list<Layout> list) {
    return std::find(list.begin(), list.end(), tensor.layout) != list.end();
  };
  for (const auto& [tensor, name] : {std::pair{&c.q, "q"}, {&c.k, "k"}, {&c.v, "v"}})
    if (in(*tensor, {Layout::repeat_all, Layout::spread}))
      throw std::runtime_error(fmt::format("{}_layout must be one in which features are contiguous", name));
  for (const auto& [tensor, name] : {std::pair{&c.o, "o"}, {&c.dq, "dq"}, {&c.dk, "dk"}, {&c.dv, "dv"}})
    if (in(*tensor,
           {Layout::repeat_batch, Layout::repeat_rows, Layout::repeat_heads, Layout::repeat_all, Layout::spread}) ||
        (tensor == &c.o && c.o.layout == Layout::packed))
      throw std::runtime_error(
          fmt::format("{}_layout must be one in which elements do not share memory with each other or an input", name));
  if (c.d_o.layout == Layout::packed) throw std::runtime_error("d_o_layout must not be packed");
  for (const TensorSpec* tensor : {&c.q, &c.k, &c.v, &c.o, &c.dq, &c.dk, &c.dv, &c.d_o})
    if (tensor->layout == Layout::d_major && (tensor != &c.v || c.dtype != FA3_E4M3))
      throw std::runtime_error("layout d_major is for v of e4m3");
}

void check_e4m3(const Case& c, const Json& object) {
  if (c.dtype == FA3_E4M3) {
    if (c.backward) throw std::runtime_error("pass backward has no e4m3");
    return;
  }
  for (const char* key : e4m3_keys)
    if (object.contains(key)) throw std::runtime_error(fmt::format("{} is for dtype e4m3", key));
}

/// What the passes ask of a case beside layouts.
void check_pass(const Case& c, const Json& object) {
  if (!c.backward) {
    for (const char* key : backward_keys)
      if (object.contains(key)) throw std::runtime_error(fmt::format("{} is for pass backward", key));
    for (const Patch& patch : c.patches)
      if (patch.tensor == 3) throw std::runtime_error("a patch of d_o is for pass backward");
    return;
  }
  if (c.lse == LseLayout::none) throw std::runtime_error("lse is none; pass backward needs it");
  if (c.repeats > 1 && !c.deterministic) throw std::runtime_error("repeats of pass backward need deterministic");
}

/// One case; `object` holds no lists but the patches.
Case parse_case(const Json& object) {
  Case c;
  std::optional<std::int64_t> seqlen_q, kv_heads, seqlen_k, d_v;
  bool has_dtype = false;
  const auto fill = [](TensorSpec& tensor, const char* key) {
    return [&tensor, key](const Json& x) {
      if (x != "normal") tensor.constant = number(x, key);
    };
  };
  const auto scale = [](TensorSpec& tensor, const char* key) {
    return [&tensor, key](const Json& x) { tensor.scale = number(x, key); };
  };
  const auto layout = [](TensorSpec& tensor, const char* key) {
    return [&tensor, key](const Json& x) { tensor.layout = choice(x, key, layouts); };
  };
  const auto positive = [](std::int64_t& target, const char* key) {
    return [&target, key](const Json& x) {
      target = integer(x, key);
      if (target < 1) throw std::runtime_error(fmt::format("{} is {}; it must be at least 1", key, target));
    };
  };
  const auto size = [](auto& target, const char* key) {
    return [&target, key](const Json& x) {
      const std::int64_t value = integer(x, key);
      if (value < 0) throw std::runtime_error(fmt::format("{} is {}; it must not be negative", key, value));
      target = value;
    };
  };
  std::int64_t repeats = 1, sm_margin = 0;
  // "layout" is for q, k and v, and gives way to "q_layout" and so on wherever in the object it stands.
  if (object.contains("layout")) c.q.layout = c.k.layout = c.v.layout = choice(object["layout"], "layout", layouts);
  // And so is "descale".
  if (object.contains("descale")) c.q.scales = c.k.scales = c.v.scales = choice(object["descale"], "descale", scales);
  const auto descale = [](TensorSpec& tensor, const char* key) {
    return [&tensor, key](const Json& x) { tensor.scales = choice(x, key, scales); };
  };
  read_object(object, "a case",
              {{"name", [&](const Json& x) { c.name = x.get<std::string>(); }},
               {"dtype", [&](const Json& x) { c.dtype = choice(x, "dtype", dtypes), has_dtype = true; }},
               {"o_dtype", [&](const Json& x) { c.o_dtype = choice(x, "o_dtype", o_dtypes); }},
               {"narrow", [&](const Json& x) { c.narrow = boolean(x, "narrow"); }},
               {"descale", [](const Json&) {}},
               {"q_descale", descale(c.q, "q_descale")},
               {"k_descale", descale(c.k, "k_descale")},
               {"v_descale", descale(c.v, "v_descale")},
               {"batch", size(c.batch, "batch")},
               {"heads", positive(c.heads, "heads")},
               {"kv_heads", size(kv_heads, "kv_heads")},
               {"seqlen_q", size(seqlen_q, "seqlen_q")},
               {"seqlen_k", size(seqlen_k, "seqlen_k")},
               {"d", positive(c.d, "d")},
               {"d_v", size(d_v, "d_v")},
               {"causal", [&](const Json& x) { c.causal = boolean(x, "causal"); }},
               {"softmax_scale", [&](const Json& x) { c.softmax_scale = float(number(x, "softmax_scale")); }},
               {"sm_margin", size(sm_margin, "sm_margin")},
               {"layout", [](const Json&) {}},
               {"q_layout", layout(c.q, "q_layout")},
               {"k_layout", layout(c.k, "k_layout")},
               {"v_layout", layout(c.v, "v_layout")},
               {"o_layout", layout(c.o, "o_layout")},
               {"d_o_layout", layout(c.d_o, "d_o_layout")},
               {"dq_layout", layout(c.dq, "dq_layout")},
               {"dk_layout", layout(c.dk, "dk_layout")},
               {"dv_layout", layout(c.dv, "dv_layout")},
               {"q", fill(c.q, "q")},
               {"k", fill(c.k, "k")},
               {"v", fill(c.v, "v")},
               {"d_o", fill(c.d_o, "d_o")},
               {"q_scale", scale(c.q, "q_scale")},
               {"k_scale", scale(c.k, "k_scale")},
               {"v_scale", scale(c.v, "v_scale")},
               {"d_o_scale", scale(c.d_o, "d_o_scale")},
               {"quantum", [&](const Json& x) { c.q.quantum = c.k.quantum = number(x, "quantum"); }},
               {"lse", [&](const Json& x) { c.lse = choice(x, "lse", lse_layouts); }},
               {"patches",
                [&](const Json& x) {
                  for (const Json& patch : x) c.patches.push_back(parse_patch(patch));
                }},
               {"null", [&](const Json& x) { c.null_if_empty = boolean(x, "null"); }},
               {"repeats", positive(repeats, "repeats")},
               {"graph", [&](const Json& x) { c.graph = boolean(x, "graph"); }},
               {"big", [&](const Json& x) { c.big = boolean(x, "big"); }},
               {"pass", [&](const Json& x) { c.backward = choice(x, "pass", passes); }},
               {"deterministic", [&](const Json& x) { c.deterministic = boolean(x, "deterministic"); }},
               {"keys_elsewhere", size(c.keys_elsewhere, "keys_elsewhere")}});
  if (!has_dtype) throw std::runtime_error("a case needs the key \"dtype\"");
  if (!seqlen_q) throw std::runtime_error("a case needs the key \"seqlen_q\"");
  c.seqlen_q = *seqlen_q;
  c.seqlen_k = seqlen_k.value_or(c.seqlen_q);
  c.kv_heads = kv_heads.value_or(c.heads);
  c.d_v = d_v.value_or(c.d);
  c.repeats = int(repeats);
  c.sm_margin = int(sm_margin);
  check_layouts(c);
  check_pass(c, object);
  check_e4m3(c, object);
  return c;
}

std::string name_part(const std::string& key, const Json& value) {
  return fmt::format("/{}={}", key, value.is_string() ? value.get<std::string>() : value.dump());
}

/// Appends to `out` every choice of one value per list in `object`; each adds "/key=value" to the name.
void expand(const Json& object, std::vector<Json>& out) {
  for (const auto& [key, value] : object.items()) {
    if (!value.is_array() || key == "patches") continue;
    if (value.empty()) throw std::runtime_error(fmt::format("{} is an empty list", key));
    for (const Json& element : value) {
      Json one = object;
      one[key] = element;
      one["name"] = object.at("name").get<std::string>() + name_part(key, element);
      expand(one, out);
    }
    return;
  }
  out.push_back(object);
}

/// The variations under "each": objects whose keys are added to the case, and to its name.
std::vector<Json> variations(Json object) {
  if (!object.contains("each")) return {object};
  const Json each = object["each"];
  object.erase("each");
  if (!each.is_array() || each.empty()) throw std::runtime_error("each must be a list of objects, not empty");
  std::vector<Json> result;
  for (const Json& variation : each) {
    Json one = object;
    std::string name = object.at("name").get<std::string>();
    for (const auto& [key, value] : variation.items()) {
      if (key == "name") {
        name.append("/").append(value.get<std::string>());
      } else {
        one[key] = value;
        if (!value.is_array()) name += name_part(key, value);
      }
    }
    one["name"] = name;
    result.push_back(one);
  }
  return result;
}

}  // namespace

std::vector<Case> parse_cases(const CaseFile& file) {
  std::string where = std::string(file.name) + ".json";
  try {
    std::vector<Case> cases;
    const Json document = Json::parse(file.text);
    const Json* list = nullptr;
    read_object(document, "the file", {{"about", [](const Json&) {}}, {"cases", [&](const Json& x) { list = &x; }}});
    if (!list || !list->is_array()) throw std::runtime_error("the file needs a list \"cases\"");
    for (const Json& entry : *list) {
      where = fmt::format("{}.json", file.name);
      if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string())
        throw std::runtime_error("every case needs a string \"name\"");
      Json object = entry;
      object["name"] = fmt::format("{}/{}", file.name, entry["name"].get<std::string>());
      where += ": " + object["name"].get<std::string>();
      std::vector<Json> expanded;
      for (const Json& variation : variations(object)) expand(variation, expanded);
      for (const Json& one : expanded) cases.push_back(parse_case(one));
    }
    return cases;
  } catch (const std::exception& error) {
    throw std::runtime_error(where + ": " + error.what());
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  std::set<std::string> names;
  for (const CaseFile& file : embedded_case_files()) {
    for (Case& c : parse_cases(file)) {
      if (!names.insert(c.name).second) throw std::runtime_error(fmt::format("two cases are named {}", c.name));
      all.push_back(std::move(c));
    }
  }
  return all;
}

bool runs_on(const Case& case_, fa3_device device) {
  return device == FA3_DEVICE_CUDA ? case_.dtype != FA3_F32 : !case_.big;
}

bool name_matches(const std::string& name, const std::string& filter) {
  if (filter.find_first_of("*?[") == std::string::npos) return name.find(filter) != std::string::npos;
  return fnmatch(filter.c_str(), name.c_str(), 0) == 0;
}

}  // namespace fa3::check
