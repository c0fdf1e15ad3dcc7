// The fa3 command from end to end: results, messages, exit codes, and that nothing is left behind on errors.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "fa3/fa3.hpp"
#include "files.hpp"
#include "npy.hpp"

namespace fa3::cli {
namespace {

using Shape4 = std::array<std::int64_t, 4>;

struct Outcome {
  int code;
  std::string out, err;
};

class Command : public testing::Test {
 protected:
  /// What a shell makes of `command`.
  Outcome shell(const std::string& command) const {
    const int status =
        std::system(("{ " + command + "\n} >" + logs_.file("out") + " 2>" + logs_.file("err") + " </dev/null").c_str());
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return {code, read_file(logs_.file("out")), read_file(logs_.file("err"))};
  }
  /// `before` is of the shell: fa3 runs after it.
  Outcome fa3(const std::string& arguments, const std::string& before = "") const {
    return shell(before + " '" FA3_COMMAND "' " + arguments);
  }
  std::string path(const std::string& name) const { return directory_.file(name); }
  std::vector<std::string> contents() const { return directory_.contents(); }

  static std::string ramp(const std::string& descr, const std::vector<int>& shape) {
    std::string text;
    std::size_t elements = 1;
    for (const int extent : shape) {
      text += std::to_string(extent) + ", ";
      elements *= std::size_t(extent);
    }
    std::vector<float> values(elements);
    for (std::size_t i = 0; i < elements; ++i) values[i] = float(int(i * 7919 % 201) - 100) / 50;
    std::string data;
    if (descr == "<f4") data = raw(values);
    if (descr == "<f8") data = raw(std::vector<double>(values.begin(), values.end()));
    if (descr == "|V2")
      for (const float x : values) data += raw<std::uint16_t>({std::uint16_t(std::bit_cast<std::uint32_t>(x) >> 16)});
    return npy_bytes(npy_dict(descr, "(" + text + ")"), data);
  }
  void write_inputs(const std::string& descr, const std::vector<int>& q, const std::vector<int>& k,
                    const std::vector<int>& v) const {
    write_file(path("q.npy"), ramp(descr, q));
    write_file(path("k.npy"), ramp(descr, k));
    write_file(path("v.npy"), ramp(descr, v));
  }
  /// fa3 run on the cpu with q.npy, k.npy, v.npy to o.npy.
  Outcome run(const std::string& more = "", const std::string& before = "") const {
    return fa3("run --device cpu" + inputs() + " --out " + path("o.npy") + " " + more, before);
  }
  std::string inputs() const { return " --q " + path("q.npy") + " --k " + path("k.npy") + " --v " + path("v.npy"); }
  /// That `outcome` is an error of bad input that says `what`, and that no output was left.
  void expect_refused(const Outcome& outcome, const std::string& what) const {
    EXPECT_EQ(outcome.code, 2);
    EXPECT_TRUE(outcome.err.starts_with("fa3: error: ")) << outcome.err;
    EXPECT_NE(outcome.err.find(what), std::string::npos) << outcome.err;
    for (const std::string& name : contents())
      EXPECT_FALSE(name.starts_with("o.npy") || name.starts_with("lse.npy")) << name;
  }

 private:
  const TemporaryDirectory directory_, logs_;
};

TEST_F(Command, HasHelpEverywhere) {
  for (const char* command : {"", "run ", "info ", "check ", "accuracy ", "bench ", "ablate ", "trace "}) {
    const Outcome outcome = fa3(std::string(command) + "--help");
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_NE(outcome.out.find("--help"), std::string::npos) << command;
    EXPECT_TRUE(outcome.err.empty()) << outcome.err;
  }
}

TEST_F(Command, PrintsItsVersion) {
  const Outcome outcome = fa3("--version");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "fa3 0.1.0\n");
}

TEST_F(Command, RunsOnTheSimulator) {
  write_inputs("<f4", {1, 70, 2, 64}, {1, 90, 1, 64}, {1, 90, 1, 64});
  const std::string run = "run --device sim --causal" + inputs() + " --out " + path("o.npy");
  expect_refused(fa3(run + " --sm-margin 2"), "sm_margin is 2; it must be below the device's number of SMs, 2");
  const Outcome outcome = fa3(run + " --sm-margin 1");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("kernel: f16_d64"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("this will take about"), std::string::npos) << outcome.out;
}

TEST_F(Command, TraceShowsTheOverlapOfSoftmaxAndGemms) {
  const Outcome outcome = fa3("trace --seqlen 512 --out " + path("t.json") + " --svg " + path("t.svg"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("0 bank conflicts"), std::string::npos) << outcome.out;
  EXPECT_TRUE(read_file(path("t.svg")).starts_with("<svg"));
  // By name of the track: [begin, end) of its events.
  std::map<int, std::string> tracks;
  std::map<std::string, std::vector<std::array<double, 2>>> spans;
  const nlohmann::json trace = nlohmann::json::parse(read_file(path("t.json")));
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "M") tracks[event["tid"]] = event["args"]["name"];
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "X" && (tracks[event["tid"]] == "tensor core" || event["name"] == "softmax"))
      spans[tracks[event["tid"]]].push_back({event["ts"], double(event["ts"]) + double(event["dur"])});
  // The softmax of each warpgroup runs for the larger part under GEMMs, its own P V or the other's.
  for (const char* warpgroup : {"warpgroup 1", "warpgroup 2"}) {
    double all = 0, covered = 0;
    ASSERT_GE(spans[warpgroup].size(), 8u) << warpgroup;
    for (const auto& [begin, end] : spans[warpgroup]) {
      all += end - begin;
      for (const auto& [from, to] : spans["tensor core"])
        covered += std::max(0.0, std::min(end, to) - std::max(begin, from));
    }
    EXPECT_GT(covered / all, 0.7) << warpgroup;
  }
}

TEST_F(Command, TraceDrawsTheFirstCtaOfACluster) {
  const Outcome outcome = fa3("trace --row f16_d128_cluster --causal --seqlen 400 --out " + path("t.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("the first CTA of one cluster"), std::string::npos) << outcome.out;
  // Rows 256.. of the first item see three key blocks, rows 0.. of the second see one of the two that its CTAs load.
  int products = 0;
  const nlohmann::json trace = nlohmann::json::parse(read_file(path("t.json")));
  std::map<int, std::string> tracks;
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "M") tracks[event["tid"]] = event["args"]["name"];
  for (const auto& event : trace["traceEvents"])
    products += event["ph"] == "X" && tracks[event["tid"]] == "tensor core";
  EXPECT_EQ(products, 16);
}

TEST_F(Command, RefusesBadUsage) {
  for (const char* arguments : {"",
                                "nonsense",
                                "run",
                                "run --out o.npy",
                                "run --nonsense",
                                "check --device gpu",
                                "bench --d 0",
                                "bench --mode quick",
                                "bench --plot x.json --d 64",
                                "bench --plot x.json --peers",
                                "bench --sm-margin -1",
                                "run --out o.npy --sm-margin x",
                                "run --q q --k k --v v",
                                "run --out o.npy --do do.npy",
                                "run --out o.npy --deterministic",
                                "run --backward",
                                "run --backward --do do.npy --o o.npy",
                                "run --backward --do do.npy --lse lse.npy",
                                "run --backward --do do.npy --expected dq.npy",
                                "bench --op sideways",
                                "bench --deterministic",
                                "bench --deterministic --peers",
                                "bench --op quantize --peers",
                                "bench --op quantize --causal",
                                "bench --op quantize --dtype e4m3",
                                "bench --op backward --dtype f16,e4m3",
                                "bench --op backward --dtype e4m3 --peers",
                                "bench --dtype e5m2",
                                "check --device sim --sm-margin 2",
                                "bench --causal --full",
                                "bench --lib x.so",
                                "run --out o.npy --fp8 --expected o.npy",
                                "run --out o.npy --fp8 --dtype f32",
                                "run --backward --do do.npy --fp8",
                                "accuracy --d 8",
                                "accuracy --out /nonexistent/a.json",
                                "accuracy --seeds 0",
                                "accuracy --device sim",
                                "accuracy --context --seqlen 512",
                                "ablate --device cpu",
                                "ablate --seqlen 0",
                                "ablate --rows nonsense",
                                "ablate --device sim --out x.json",
                                "info extra",
                                "trace --row nonsense",
                                "trace --seqlen 0",
                                "trace --window 5 5",
                                "trace --out /nonexistent/t.json"}) {
    const Outcome outcome = fa3(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_TRUE(outcome.err.starts_with("fa3: error: ")) << arguments << ": " << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << arguments << ": " << outcome.out;
  }
}

TEST_F(Command, InfoPrintsVersionDevicesAndKernels) {
  const Outcome outcome = fa3("info");
  EXPECT_EQ(outcome.code, 0);
  for (const char* what : {"fa3 0.1.0, sources ", "cpu: ", "cuda: ", "f16_d64", "bf16_d256"})
    EXPECT_NE(outcome.out.find(what), std::string::npos) << what << " in:\n" << outcome.out;
}

TEST_F(Command, RunComputesAttention) {
  write_inputs("<f4", {2, 5, 4, 16}, {2, 7, 2, 16}, {2, 7, 2, 8});
  const Outcome outcome = run("--causal --scale 0.5 --lse " + path("lse.npy"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* what : {"q: [2, 5, 4, 16] f32 from ", "device: cpu", "kernel: cpu_", "time: ", "TFLOP/s",
                           "error against fp64, 40 of 40 rows"})
    EXPECT_NE(outcome.out.find(what), std::string::npos) << what << " in:\n" << outcome.out;

  const Array o = load_npy(path("o.npy")), lse = load_npy(path("lse.npy"));
  EXPECT_EQ(o.dtype, FileDtype::f32);
  EXPECT_EQ(o.shape, (std::vector<std::int64_t>{2, 5, 4, 8}));
  EXPECT_EQ(lse.shape, (std::vector<std::int64_t>{2, 4, 5}));
  // The same through the library.
  const Array q = load_npy(path("q.npy")), k = load_npy(path("k.npy")), v = load_npy(path("v.npy"));
  std::vector<std::byte> o_wanted(o.data.size()), lse_wanted(lse.data.size());
  ForwardOptions options;
  options.causal = true;
  options.softmax_scale = 0.5f;
  const Status status = forward(ConstTensor(q.data.data(), {2, 5, 4, 16}, Dtype::f32, Device::cpu),
                                ConstTensor(k.data.data(), {2, 7, 2, 16}, Dtype::f32, Device::cpu),
                                ConstTensor(v.data.data(), {2, 7, 2, 8}, Dtype::f32, Device::cpu),
                                Tensor(o_wanted.data(), {2, 5, 4, 8}, Dtype::f32, Device::cpu),
                                RowTensor(lse_wanted.data(), {2, 4, 5}, Dtype::f32, Device::cpu), options);
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(o.data, o_wanted);
  EXPECT_EQ(lse.data, lse_wanted);
}

/// The gradients through the library, for what is in the files.
class BackwardCommand : public Command {
 protected:
  void write_all(const std::string& descr, const std::vector<int>& q, const std::vector<int>& k,
                 const std::vector<int>& v, const std::vector<int>& d_o) const {
    write_inputs(descr, q, k, v);
    write_file(path("do.npy"), ramp(descr, d_o));
  }
  Outcome run_backward(const std::string& more = "") const {
    return fa3("run --backward --device cpu" + inputs() + " --do " + path("do.npy") + " --out " + path("") + " " +
               more);
  }
  /// That `outcome` is an error of bad input that says `what`, and that no gradient was left.
  void expect_no_gradients(const Outcome& outcome, const std::string& what) const {
    expect_refused(outcome, what);
    for (const char* name : {"dq.npy", "dk.npy", "dv.npy"}) EXPECT_FALSE(std::filesystem::exists(path(name))) << name;
  }
};

TEST_F(BackwardCommand, RunComputesGradients) {
  write_all("<f4", {2, 5, 4, 16}, {2, 7, 2, 16}, {2, 7, 2, 8}, {2, 5, 4, 8});
  const Outcome outcome = run_backward("--causal --scale 0.5");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* what :
       {"dO: [2, 5, 4, 8] f32 from ", "device: cpu", "kernel: cpu_", "O and LSE are those of the forward", "TFLOP/s",
        "against fp64: dQ off by ", "dv.npy: dv [2, 7, 2, 8] f32"})
    EXPECT_NE(outcome.out.find(what), std::string::npos) << what << " in:\n" << outcome.out;

  // The same through the library.
  const Array q = load_npy(path("q.npy")), k = load_npy(path("k.npy")), v = load_npy(path("v.npy")),
              d_o = load_npy(path("do.npy")), dq = load_npy(path("dq.npy")), dk = load_npy(path("dk.npy")),
              dv = load_npy(path("dv.npy"));
  EXPECT_EQ(dq.shape, q.shape);
  EXPECT_EQ(dk.shape, k.shape);
  EXPECT_EQ(dv.shape, v.shape);
  const auto view = [](const auto& memory, std::array<std::int64_t, 4> shape) {
    return ConstTensor(memory.data(), shape, Dtype::f32, Device::cpu);
  };
  const auto out = [](auto& memory, std::array<std::int64_t, 4> shape) {
    return Tensor(memory.data(), shape, Dtype::f32, Device::cpu);
  };
  std::vector<std::byte> o(2 * 5 * 4 * 8 * 4), lse(2 * 4 * 5 * 4), dq_wanted(dq.data.size()), dk_wanted(dk.data.size()),
      dv_wanted(dv.data.size());
  const RowTensor lse_view(lse.data(), {2, 4, 5}, Dtype::f32, Device::cpu);
  const Shape4 of_q{2, 5, 4, 16}, of_k{2, 7, 2, 16}, of_v{2, 7, 2, 8}, of_o{2, 5, 4, 8};
  ASSERT_TRUE(forward(view(q.data, of_q), view(k.data, of_k), view(v.data, of_v), out(o, of_o), lse_view,
                      {.causal = true, .softmax_scale = 0.5f})
                  .ok());
  ASSERT_TRUE(backward(view(d_o.data, of_o), view(q.data, of_q), view(k.data, of_k), view(v.data, of_v), view(o, of_o),
                       lse_view, out(dq_wanted, of_q), out(dk_wanted, of_k), out(dv_wanted, of_v),
                       {.causal = true, .softmax_scale = 0.5f})
                  .ok());
  EXPECT_EQ(dq.data, dq_wanted);
  EXPECT_EQ(dk.data, dk_wanted);
  EXPECT_EQ(dv.data, dv_wanted);
}

TEST_F(BackwardCommand, RunTakesOAndLseFromFiles) {
  write_all("<f4", {5, 4, 16}, {7, 2, 16}, {7, 2, 8}, {5, 4, 8});
  ASSERT_EQ(run("--lse " + path("lse.npy")).code, 0);
  ASSERT_EQ(run_backward().code, 0);
  const std::string dq = read_file(path("dq.npy"));
  const std::string files = "--o " + path("o.npy") + " --lse " + path("lse.npy");
  const Outcome outcome = run_backward(files);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("LSE: [4, 5] f32 from "), std::string::npos) << outcome.out;
  EXPECT_EQ(read_file(path("dq.npy")), dq);

  // LSE of more keys than these: all weights are smaller, and so is dV.
  const auto largest = [&] {
    const Array dv = load_npy(path("dv.npy"));
    float most = 0;
    for (std::size_t i = 0; i < dv.data.size(); i += 4) {
      float x;
      std::memcpy(&x, dv.data.data() + i, 4);
      most = std::max(most, std::abs(x));
    }
    return most;
  };
  const float before = largest();
  Array lse = load_npy(path("lse.npy"));
  std::vector<float> values(4 * 5);
  std::memcpy(values.data(), lse.data.data(), lse.data.size());
  for (float& x : values) x += 3;
  write_file(path("lse.npy"), npy_bytes(npy_dict("<f4", "(4, 5)"), raw(values)));
  const Outcome merged = run_backward(files);
  ASSERT_EQ(merged.code, 0) << merged.err;
  EXPECT_NEAR(largest(), before * std::exp(-3.0f), 1e-5 * before);
}

TEST_F(BackwardCommand, RunWritesBf16AsF32AndF16AsItIs) {
  write_all("|V2", {1, 3, 1, 8}, {1, 3, 1, 8}, {1, 3, 1, 8}, {1, 3, 1, 8});
  const Outcome outcome = run_backward();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("holds the bf16 result exactly"), std::string::npos) << outcome.out;
  EXPECT_EQ(load_npy(path("dk.npy")).dtype, FileDtype::f32);
  ASSERT_EQ(run_backward("--dtype f16").code, 0);
  EXPECT_EQ(load_npy(path("dk.npy")).dtype, FileDtype::f16);
}

TEST_F(BackwardCommand, RunTakesEmptyArrays) {
  write_all("<f4", {1, 3, 2, 8}, {1, 0, 2, 8}, {1, 0, 2, 8}, {1, 3, 2, 8});
  ASSERT_EQ(run_backward().code, 0);
  EXPECT_EQ(load_npy(path("dq.npy")).data, std::vector<std::byte>(3 * 2 * 8 * 4));
  write_all("<f4", {1, 0, 2, 8}, {1, 3, 2, 8}, {1, 3, 2, 8}, {1, 0, 2, 8});
  ASSERT_EQ(run_backward().code, 0);
  EXPECT_EQ(load_npy(path("dv.npy")).data, std::vector<std::byte>(3 * 2 * 8 * 4));
}

TEST_F(BackwardCommand, RunRefusesWhatDisagrees) {
  write_all("<f4", {1, 4, 2, 8}, {1, 5, 2, 8}, {1, 5, 2, 16}, {1, 4, 2, 16});
  ASSERT_EQ(run("--lse " + path("lse.npy")).code, 0);
  const std::string o = read_file(path("o.npy")), lse = read_file(path("lse.npy"));
  std::filesystem::remove(path("o.npy"));
  std::filesystem::remove(path("lse.npy"));
  write_file(path("of_o"), o);
  const auto with = [&](const std::string& lse_bytes) {
    write_file(path("of_lse"), lse_bytes);
    return run_backward("--o " + path("of_o") + " --lse " + path("of_lse"));
  };
  expect_no_gradients(with(ramp("<f8", {1, 2, 4})), path("of_lse") + ": element type of LSE is f64; it must be f32");
  expect_no_gradients(with(ramp("<f4", {2, 4})), "LSE has shape [2, 4]; it must be [batch, heads, seqlen_q]");
  expect_no_gradients(with(ramp("<f4", {1, 4, 2})),
                      "lse: shape is [1, 4, 2], expected [batch, heads, seqlen_q] = [1, 2, 4]");
  write_file(path("of_o"), ramp("<f4", {1, 4, 2, 8}));
  expect_no_gradients(with(lse), "o: shape is [1, 4, 2, 8], expected [batch, seqlen_q, heads, d_v] = [1, 4, 2, 16]");
  write_file(path("of_o"), ramp("<f4", {4, 2, 16}));
  expect_no_gradients(with(lse), "O has shape [4, 2, 16], but q has [1, 4, 2, 8]; all have a batch dimension or none");
  write_file(path("do.npy"), ramp("<f4", {1, 4, 2, 8}));
  expect_no_gradients(run_backward(),
                      "d_o: shape is [1, 4, 2, 8], expected [batch, seqlen_q, heads, d_v] = [1, 4, 2, 16]");
  write_file(path("do.npy"), ramp("<f4", {1, 5, 2, 16}));
  expect_no_gradients(run_backward(), "d_o: shape is [1, 5, 2, 16], expected");
  write_file(path("do.npy"), npy_bytes(npy_dict("<i4", "(1, 4, 2, 16)"), std::string(512, '\0')));
  expect_no_gradients(run_backward(), path("do.npy") + ": element type is <i4");
  std::filesystem::remove(path("do.npy"));
  expect_no_gradients(run_backward(), path("do.npy") + ": cannot be opened");
  write_all("<f4", {1, 4, 2, 12}, {1, 5, 2, 12}, {1, 5, 2, 16}, {1, 4, 2, 16});
  expect_no_gradients(run_backward(), "d is 12; it must be a multiple of 8");
  expect_no_gradients(
      fa3("run --backward --device cpu" + inputs() + " --do " + path("do.npy") + " --out " + path("none")),
      path("none/dq.npy") + ": cannot be written");
}

TEST_F(Command, RunInFp8) {
  write_inputs("<f4", {2, 150, 4, 32}, {2, 200, 2, 32}, {2, 200, 2, 16});
  const Outcome outcome = run("--fp8 --causal --lse " + path("lse.npy"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* what :
       {"q: [2, 150, 4, 32] f32 from ", "converted to f16", "q, k, v: to e4m3 up to 15, 15, 1.125 with", "kernel: cpu_",
        "error against fp64 on the same e4m3, 1200 of 1200 rows", "O [2, 150, 4, 16] f16"})
    EXPECT_NE(outcome.out.find(what), std::string::npos) << what << " in:\n" << outcome.out;
  const std::string before = "relative ";
  const std::size_t at = outcome.out.find(before);
  ASSERT_NE(at, std::string::npos) << outcome.out;
  const double relative = std::stod(outcome.out.substr(at + before.size()));
  EXPECT_GT(relative, 1e-3);
  EXPECT_LT(relative, 0.2);

  std::filesystem::remove(path("o.npy"));
  std::filesystem::remove(path("lse.npy"));
  write_inputs("<f4", {1, 4, 2, 24}, {1, 4, 2, 24}, {1, 4, 2, 24});
  expect_refused(run("--fp8"), "d is 24; where q.dtype is FA3_E4M3 (3) it must be a multiple of 16");
}

TEST_F(Command, AccuracyPrintsTheErrorsOfF16AndFp8) {
  const Outcome outcome =
      fa3("accuracy --device cpu --heads 4 --seqlen 1024 --seeds 3 --rows 2000 --d 64,128 --out " + path("a.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("d 64, 4 heads, seqlen 1024; median of 3 seeds, 2000 rows"), std::string::npos)
      << outcome.out;
  const auto result = nlohmann::json::parse(read_file(path("a.json")));
  ASSERT_EQ(result["accuracy"].size(), 2u);
  for (const auto& of_d : result["accuracy"]) {
    std::map<std::string, double> rmse;
    for (const auto& row : of_d["rows"]) {
      rmse[row["row"]] = row["rmse"];
      EXPECT_GE(row["max"].get<double>(), row["rmse"].get<double>());
      EXPECT_EQ(row.contains("paper"), of_d["d"] == 128 && row["row"] != "fp8_wide");
    }
    ASSERT_EQ(rmse.size(), 7u);
    EXPECT_GT(rmse["fa3_f16"], 1e-5);
    EXPECT_LT(rmse["fa3_f16"], rmse["standard_f16"]);
    EXPECT_LT(rmse["standard_f16"], 2e-3);
    EXPECT_LT(rmse["fa3_fp8"], 0.8 * rmse["fp8_baseline"]);
    EXPECT_LT(rmse["fp8_without_blocks"], 0.8 * rmse["fp8_without_rotation"]);
    EXPECT_GT(rmse["fa3_fp8"], 10 * rmse["fa3_f16"]);
    EXPECT_NEAR(rmse["fp8_wide"], rmse["fa3_fp8"], 0.1 * rmse["fa3_fp8"]);
    EXPECT_NE(rmse["fp8_wide"], rmse["fa3_fp8"]);
  }
}

TEST_F(Command, AccuracyOfAFile) {
  const std::string array = ramp("<f4", {1, 130, 2, 32});
  write_zip(path("qkv.npz"), {{"q.npy", array}, {"k.npy", array}, {"v.npy", array}}, ZIP_CM_STORE);
  const Outcome outcome = fa3("accuracy --device cpu " + path("qkv.npz"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("q [1, 130, 2, 32], k [1, 130, 2, 32], v [1, 130, 2, 32]"), std::string::npos)
      << outcome.out;
  EXPECT_EQ(outcome.out.find("paper"), std::string::npos) << outcome.out;
}

TEST_F(Command, OptionsThatWouldBeIgnoredAreRefused) {
  const auto refused = [&](const std::string& mode, const std::string& words,
                           std::initializer_list<const char*> options) {
    for (const std::string option : options) {
      const std::string name = option == "x.npz" ? "FILE" : option.substr(0, option.find(' '));
      expect_refused(fa3(mode + " " + option), name + " is given; " + words);
    }
  };
  refused("accuracy --context", "--context allows only --d, --seqlen, --device, --out",
          {"--heads 2", "--seeds 2", "--rows 64", "x.npz"});
  refused("accuracy x.npz", "FILE allows only --rows, --device, --out",
          {"--d 64", "--heads 2", "--seqlen 64", "--seeds 2"});
  refused("accuracy --plot x.json", "--plot allows only --out",
          {"--d 64", "--heads 2", "--seqlen 64", "--seeds 2", "--rows 64", "--device cpu", "--context", "x.npz"});
  refused("bench --op quantize", "--op quantize allows only --d, ",
          {"--causal", "--full", "--peers", "--d-v 64", "--kv-heads 1", "--sm-margin 0"});
  expect_refused(fa3("accuracy --context --d 64,128"), "--d is 64,128; with --context it must be one head dim");
}

TEST_F(Command, AccuracyOverContext) {
  const Outcome outcome = fa3("accuracy --device cpu --context --seqlen 4096 --d 64 --out " + path("a.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(read_file(path("a.json")));
  EXPECT_EQ(result["d"], 64);
  const auto& context = result["context"];
  ASSERT_EQ(context.size(), 3u);
  EXPECT_EQ(context[0]["keys"], 1024);
  EXPECT_EQ(context[2]["keys"], 4096);
  for (const auto& row : context) {
    EXPECT_LT(row["f16_ones"].get<double>(), 1e-5);
    EXPECT_LT(row["f16_mean_one"].get<double>(), 1e-3);
    for (const char* fp8 : {"fp8_ones", "fp8_mean_one"}) {
      EXPECT_GT(row[fp8].get<double>(), 1e-4) << fp8;
      EXPECT_LT(row[fp8].get<double>(), 1e-2) << fp8;
    }
  }
}

TEST_F(Command, RunTakesAnNpzWithoutBatch) {
  const std::string array = ramp("<f8", {6, 2, 8});
  write_zip(path("qkv.npz"), {{"q.npy", array}, {"k.npy", array}, {"v.npy", array}}, ZIP_CM_DEFLATE);
  const Outcome outcome =
      fa3("run --device cpu --dtype f16 --out " + path("o.npy") + " --lse " + path("lse.npy") + " " + path("qkv.npz"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("k: [6, 2, 8] f64 from " + path("qkv.npz") + ": k, converted to f16"), std::string::npos)
      << outcome.out;
  EXPECT_EQ(load_npy(path("o.npy")).shape, (std::vector<std::int64_t>{6, 2, 8}));
  EXPECT_EQ(load_npy(path("o.npy")).dtype, FileDtype::f16);
  EXPECT_EQ(load_npy(path("lse.npy")).shape, (std::vector<std::int64_t>{2, 6}));
}

TEST_F(Command, RunWritesBf16AsF32) {
  write_inputs("|V2", {1, 3, 1, 8}, {1, 3, 1, 8}, {1, 3, 1, 8});
  const Outcome outcome = run();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("holds the bf16 result exactly"), std::string::npos) << outcome.out;
  const Array o = load_npy(path("o.npy"));
  EXPECT_EQ(o.dtype, FileDtype::f32);
  for (std::size_t i = 0; i < o.data.size(); i += 4)
    EXPECT_TRUE(o.data[i] == std::byte(0) && o.data[i + 1] == std::byte(0));
}

TEST_F(Command, RunComparesWithAnExpectedResult) {
  write_inputs("<f4", {1, 4, 1, 8}, {1, 4, 1, 8}, {1, 4, 1, 8});
  ASSERT_EQ(run().code, 0);
  std::filesystem::rename(path("o.npy"), path("expected.npy"));
  const Outcome same = run("--expected " + path("expected.npy"));
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_NE(same.out.find("difference from " + path("expected.npy") + ": 0\n"), std::string::npos) << same.out;
  std::filesystem::remove(path("o.npy"));
  const Outcome other = run("--scale 3 --expected " + path("expected.npy"));
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.err.find("O is off by "), std::string::npos) << other.err;
  EXPECT_FALSE(std::filesystem::exists(path("o.npy")));
}

TEST_F(Command, RunTakesEmptyArrays) {
  write_inputs("<f4", {1, 3, 2, 8}, {1, 0, 2, 8}, {1, 0, 2, 8});
  const Outcome outcome = run("--lse " + path("lse.npy"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(load_npy(path("o.npy")).data, std::vector<std::byte>(3 * 2 * 8 * 4));
}

TEST_F(Command, RunRefusesBadFiles) {
  const std::string good = ramp("<f4", {1, 4, 2, 8});
  const auto with_v = [&](const std::string& bytes) {
    write_file(path("q.npy"), good);
    write_file(path("k.npy"), good);
    write_file(path("v.npy"), bytes);
    return run("--lse " + path("lse.npy"));
  };
  expect_refused(with_v(good.substr(0, good.size() - 3)), path("v.npy") + ": is truncated");
  expect_refused(with_v(good + "x"), path("v.npy") + ": has 1 bytes after its data");
  expect_refused(with_v(""), path("v.npy") + ": is empty");
  expect_refused(with_v(npy_bytes(npy_dict("<i4", "(1, 4, 2, 8)"), std::string(256, '\0'))),
                 path("v.npy") + ": element type is <i4");
  expect_refused(with_v(ramp("<f4", {4, 16})),
                 "v has shape [4, 16]; it must be [batch, seqlen, heads, d] or [seqlen, heads, d]");
  expect_refused(with_v(ramp("<f4", {4, 2, 8})), "all three have a batch dimension or none");
  expect_refused(with_v(ramp("<f4", {1, 5, 2, 8})),
                 "v: shape is [1, 5, 2, 8], expected [batch, seqlen_k, kv_heads, d_v] = [1, 4, 2, 8]");
  std::filesystem::remove(path("v.npy"));
  expect_refused(run(), path("v.npy") + ": cannot be opened");
}

TEST_F(Command, RunRefusesWhatTheLibraryRefuses) {
  write_inputs("<f4", {1, 4, 2, 12}, {1, 4, 2, 12}, {1, 4, 2, 12});
  expect_refused(run(), "d is 12; it must be a multiple of 8");
  write_inputs("<f4", {1, 4, 3, 8}, {1, 4, 2, 8}, {1, 4, 2, 8});
  expect_refused(run(), "heads is 3; it must be a multiple of kv_heads = 2");
  write_inputs("<f4", {1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8});
  expect_refused(run("--scale inf"), "softmax_scale");
}

TEST_F(Command, RunRefusesWhatTheLibraryRefusesBeforeThereIsAnOutput) {
  // Arrays without elements may have any extents, and so would O.
  const auto with = [&](const std::string& q, const std::string& k, const std::string& v, const std::string& data) {
    write_file(path("q.npy"), npy_bytes(npy_dict("<f2", q), data));
    write_file(path("k.npy"), npy_bytes(npy_dict("<f2", k), ""));
    write_file(path("v.npy"), npy_bytes(npy_dict("<f2", v), ""));
  };
  const std::string head_dim = "; it must be a multiple of 8 from 8 to 256", row(16, '\0');
  for (const std::string device : {"cpu", "sim"}) {
    const std::string run = "run --device " + device + inputs() + " --out " + path("o.npy");
    for (const std::string d_v : {"1099511627776", "9223372036854775800"}) {
      with("(1, 1, 1, 8)", "(1, 0, 1, 8)", "(1, 0, 1, " + d_v + ")", row);
      expect_refused(fa3(run), "d_v is " + d_v + head_dim);
    }
    with("(1, 1099511627776, 1, 0)", "(1, 0, 1, 0)", "(1, 0, 1, 8)", "");
    expect_refused(fa3(run), "d is 0" + head_dim);
    with("(1, 1099511627776, 0, 8)", "(1, 0, 1, 8)", "(1, 0, 1, 8)", "");
    expect_refused(fa3(run), "heads is 0; it must be at least 1");
    with("(0, 4611686018427387904, 1, 8)", "(0, 0, 1, 8)", "(0, 0, 1, 8)", "");
    expect_refused(fa3(run), "seqlen_q is 4611686018427387904; it must be below 2^31");
  }
}

TEST_F(Command, RunRefusesWhatIsNoRegularFile) {
  write_inputs("<f4", {1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8});
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  for (const auto& [file, what] : {std::pair<std::string, std::string>{"/dev/zero", "a device or the like"},
                                   {path("pipe"), "a pipe"},
                                   {path("."), "a directory"}}) {
    const std::string message = file + ": is " + what + "; wanted is a regular file";
    expect_refused(run("--expected " + file), message);
    expect_refused(fa3("run --device cpu --out " + path("o.npy") + " " + file), message);  // as a .npz
  }
}

TEST_F(Command, RunSeesThatItsOutputsAreOneFile) {
  write_inputs("<f4", {1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8});
  std::filesystem::create_directory_symlink(".", path("here"));
  std::filesystem::create_symlink("o.npy", path("link.npy"));
  const std::string into = "cd " + path(".") + " &&";
  for (const std::string lse : {"./o.npy", "here/o.npy", "link.npy"})
    for (const std::string& out : {std::string("o.npy"), path("o.npy")})
      expect_refused(fa3("run --device cpu" + inputs() + " --out " + out + " --lse " + lse, into),
                     "--lse and --out are the same file");
}

TEST_F(Command, RunWritesThroughSymbolicLinks) {
  write_inputs("<f4", {1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8});
  std::filesystem::create_directory(path("elsewhere"));
  write_file(path("elsewhere/lse.npy"), "old");
  std::filesystem::create_symlink("elsewhere/o.npy", path("o.npy"));  // leads to nothing yet
  std::filesystem::create_symlink(path("elsewhere/lse.npy"), path("link"));
  std::filesystem::create_symlink("link", path("lse.npy"));
  const Outcome outcome = run("--lse " + path("lse.npy"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* name : {"o.npy", "lse.npy"}) {
    EXPECT_TRUE(std::filesystem::is_symlink(path(name))) << name;
    EXPECT_NO_THROW(load_npy(path(std::string("elsewhere/") + name)));
  }
  std::filesystem::create_symlink("round", path("round"));
  const Outcome round = fa3("run --device cpu" + inputs() + " --out " + path("round"));
  EXPECT_EQ(round.code, 2);
  EXPECT_NE(round.err.find(path("round") + ": cannot be written: "), std::string::npos) << round.err;
}

TEST_F(Command, RunLeavesNothingBehindOnASignal) {
  write_inputs("<f4", {1, 256, 1, 64}, {1, 4, 1, 64}, {1, 4, 1, 64});
  const Outcome outcome = run("", "ulimit -c 0; ulimit -f 64;");  // 32 KiB of the 64 of O, then SIGXFSZ
  EXPECT_EQ(outcome.code, 128 + SIGXFSZ) << outcome.err;
  std::vector<std::string> names = contents();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"k.npy", "q.npy", "v.npy"}));
}

TEST_F(Command, AnUnwritableStandardOutputIsExitCode1) {
  write_inputs("<f4", {1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8});
  for (const std::string& arguments :
       {std::string("--version"), std::string("info"), std::string("check --device cpu --cases reported/A02"),
        "run --device cpu" + inputs() + " --out " + path("o.npy"), std::string("trace --text --seqlen 128")}) {
    const Outcome outcome = fa3(arguments + " >/dev/full");
    EXPECT_EQ(outcome.code, 1) << arguments;
    EXPECT_TRUE(outcome.err.starts_with("fa3: error: ")) << arguments << ": " << outcome.err;
  }
}

TEST_F(Command, RunDoesWithoutFurtherThreads) {
  write_inputs("<f4", {1, 64, 2, 8}, {1, 64, 2, 8}, {1, 64, 2, 8});
  // No address space holds the stack of another thread.
  const Outcome outcome = run("", "ulimit -s 137438953472 || exit 77;");
  if (outcome.code == 77) GTEST_SKIP() << "the size of stacks is limited here";
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(Command, RunComparesWithFp64ForAboutASecond) {
  // Rows without keys cost little, but not nothing.
  write_file(path("q.npy"), npy_bytes(npy_dict("<f2", "(1, 150000, 1, 8)"), std::string(2400000, '\0')));
  write_file(path("k.npy"), npy_bytes(npy_dict("<f2", "(1, 0, 1, 8)"), ""));
  write_file(path("v.npy"), npy_bytes(npy_dict("<f2", "(1, 0, 1, 256)"), ""));
  const Outcome outcome = run();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string before = "error against fp64, ";
  const std::size_t at = outcome.out.find(before);
  ASSERT_NE(at, std::string::npos) << outcome.out;
  const int rows = std::stoi(outcome.out.substr(at + before.size()));
  EXPECT_GE(rows, 10000);
  EXPECT_LE(rows, 100000);
}

TEST_F(Command, RunRefusesBadOptions) {
  write_inputs("<f4", {1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8});
  expect_refused(run("--lse " + path("o.npy")), "--lse and --out are the same file");
  expect_refused(run("--dtype f8"), "--dtype");
  expect_refused(run("--expected " + path("q.npy") + " --lse " + path("missing/lse.npy")),
                 path("missing/lse.npy") + ": cannot be written");
  expect_refused(fa3("run --q " + path("q.npy") + " --k " + path("k.npy") + " --out " + path("o.npy")),
                 "--v is missing");
  expect_refused(fa3("run x.npz --q " + path("q.npy") + " --out " + path("o.npy")), "--q and a .npz file are given");
  const Outcome unwritable = fa3("run --q a --k b --v c --out " + path("missing/o.npy"));
  expect_refused(unwritable, path("missing/o.npy") + ": cannot be written");  // said before the inputs are read
}

TEST_F(Command, RunKeepsAnOldOutputOnErrors) {
  write_inputs("<f4", {1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 16});
  ASSERT_EQ(run().code, 0);
  const std::string before = read_file(path("o.npy"));
  write_file(path("v.npy"), "damage");
  EXPECT_EQ(run().code, 2);
  EXPECT_EQ(read_file(path("o.npy")), before);
}

TEST_F(Command, CudaWithoutAUsableGpuIsExitCode3) {
  if (fa3_device_available(FA3_DEVICE_CUDA) == FA3_OK) GTEST_SKIP() << "there is a usable GPU here";
  write_inputs("<f4", {1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8});
  const Outcome run = fa3("run --device cuda --q " + path("q.npy") + " --k " + path("k.npy") + " --v " + path("v.npy") +
                          " --out " + path("o.npy"));
  for (const Outcome& outcome :
       {run, fa3("check --device cuda"), fa3("bench --device cuda"), fa3("ablate"), fa3("accuracy --device cuda")}) {
    EXPECT_EQ(outcome.code, 3);
    EXPECT_TRUE(outcome.err.starts_with("fa3: error: ")) << outcome.err;
  }
  EXPECT_FALSE(std::filesystem::exists(path("o.npy")));
}

TEST_F(Command, CheckRunsTheCasesAFilterSelects) {
  const Outcome outcome = fa3("check --device cpu --cases reported/A02");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_NE(outcome.out.find("ok   cpu  reported/A02_one_key_many_rows/dtype=f16: "), std::string::npos) << outcome.out;
  EXPECT_TRUE(outcome.out.ends_with("2 passed, 0 failed\n")) << outcome.out;
  EXPECT_TRUE(fa3("check --device cpu --cases 'reported/A0[29]*=bf16'").out.ends_with("2 passed, 0 failed\n"));
  // One SM of the simulated chip's two; those cases that leave 100 are too much for it.
  EXPECT_TRUE(fa3("check --device sim --sm-margin 1 --cases reported/A02").out.ends_with("2 passed, 0 failed\n"));
  expect_refused(fa3("check --device cpu --cases nothing_like_it"), "--cases is nothing_like_it");
}

TEST_F(Command, AblateRunsItsRowsOnTheSimulator) {
  const Outcome outcome = fa3("ablate --device sim --causal --seqlen 200 --heads 1 --rows no_pipeline,three_stage");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("batch 1, seqlen 200, 1 heads of 128, causal"), std::string::npos) << outcome.out;
  std::vector<std::string> right;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);)
    if (line.ends_with(" right")) right.push_back(line.substr(0, line.find(' ')));
  EXPECT_EQ(right, (std::vector<std::string>{"product", "no_pipeline", "three_stage"})) << outcome.out;
  EXPECT_NE(outcome.out.find("three stages, tile 128 x 80, mask by branch"), std::string::npos) << outcome.out;
}

TEST_F(Command, AblateWritesWhatItTimed) {
  if (fa3_device_available(FA3_DEVICE_CUDA) != FA3_OK) GTEST_SKIP() << "there is no usable GPU here";
  const Outcome outcome = fa3("ablate --batch 1 --seqlen 1000 --heads 2 --causal --rounds 1 --rows no_pipeline --out " +
                              path("ablation.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(read_file(path("ablation.json")));
  EXPECT_EQ(result.at("source_hash"), fa3_source_hash());
  EXPECT_EQ(result.at("seqlen"), 1000);
  EXPECT_EQ(result.at("causal"), true);
  ASSERT_EQ(result.at("ablation").size(), 2u);
  EXPECT_EQ(result["ablation"][0].at("row"), "product");
  EXPECT_EQ(result["ablation"][0].at("ratio"), 1.0);
  EXPECT_EQ(result["ablation"][1].at("row"), "no_pipeline");
  EXPECT_GT(result["ablation"][1].at("tflops"), 0.0);
  EXPECT_FALSE(result["ablation"][1].contains("paper")) << "another shape than the paper's";
}

TEST_F(Command, CheckRunsBackwardCases) {
  const Outcome outcome = fa3("check --device cpu --cases backward/lengths128/dtype=bf16/causal=true/seqlen_q=65");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_NE(outcome.out.find(": dQ off by "), std::string::npos) << outcome.out;
  EXPECT_TRUE(outcome.out.ends_with("4 passed, 0 failed\n")) << outcome.out;
}

TEST_F(Command, BenchTimesTheBackwardPass) {
  const std::string bench =
      "bench --device cpu --d 64 --seqlen 128 --dtype f32 --batch 1 --heads 2 --kv-heads 1 --out " +
      path("bench.json") + " ";
  const auto row_of = [&](const std::string& more) {
    const Outcome outcome = fa3(bench + more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(read_file(path("bench.json"))).at("rows").at(0);
  };
  const auto row = row_of("--op backward --causal --deterministic");
  EXPECT_EQ(row.at("op"), "backward");
  EXPECT_EQ(row.at("deterministic"), true);
  EXPECT_EQ(row.at("kv_heads"), 1);
  EXPECT_TRUE(row.at("kernel").get<std::string>().starts_with("cpu_")) << row;
  EXPECT_GT(row.at("tflops").get<double>(), 0);
  EXPECT_FALSE(row_of("--op backward").contains("deterministic"));
  EXPECT_EQ(row_of("--op forward").at("op"), "forward");
}

TEST_F(Command, BenchTimesFp8) {
  const Outcome outcome =
      fa3("bench --device cpu --dtype e4m3,bf16 --d 64 --d-v 32 --seqlen 200 --batch 1 --heads 4 --kv-heads 2 --causal "
          "--out " +
          path("bench.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(read_file(path("bench.json")));
  ASSERT_EQ(result.at("rows").size(), 2u);
  const auto& row = result["rows"][0];
  EXPECT_EQ(row.at("op"), "forward");
  EXPECT_EQ(row.at("dtype"), "e4m3");
  EXPECT_EQ(row.at("d_v"), 32);
  EXPECT_EQ(row.at("kv_heads"), 2);
  EXPECT_TRUE(row.at("kernel").get<std::string>().starts_with("cpu_")) << row;
  EXPECT_GT(row.at("tflops").get<double>(), 0);
  EXPECT_EQ(result["rows"][1].at("dtype"), "bf16");

  // A head dim of 16 bits only: what was timed is no other type under that name.
  const Outcome narrow = fa3("bench --device cpu --dtype e4m3 --d 24 --seqlen 64");
  EXPECT_EQ(narrow.code, 2);
  EXPECT_NE(narrow.err.find("multiple of 16"), std::string::npos) << narrow.err;
}

TEST_F(Command, BenchTimesTheQuantiser) {
  const Outcome outcome =
      fa3("bench --op quantize --device cpu --d 64,96 --seqlen 200 --batch 1 --heads 2 --out " + path("bench.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(read_file(path("bench.json")));
  EXPECT_GT(result.at("ceilings").at("copy_tbps").get<double>(), 0);
  ASSERT_EQ(result.at("rows").size(), 8u);
  const auto& row = result["rows"][5];
  EXPECT_EQ(row.at("op"), "quantize");
  EXPECT_EQ(row.at("dtype"), "bf16");
  EXPECT_EQ(row.at("d"), 96);
  EXPECT_EQ(row.at("scaling"), "block");
  EXPECT_EQ(row.at("rotate"), true);
  EXPECT_GT(row.at("tbps").get<double>(), 0);
  EXPECT_GT(row.at("of_copy").get<double>(), 0);
}

TEST_F(Command, BenchWritesItsRows) {
  const Outcome outcome =
      fa3("bench --device cpu --d 64,128 --seqlen 64 --dtype f32 --batch 1 --heads 2 --kv-heads 1 --causal --out " +
          path("bench.json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(read_file(path("bench.json")));
  EXPECT_EQ(result.at("source_hash"), fa3_source_hash());
  ASSERT_EQ(result.at("rows").size(), 2u);
  const auto& row = result["rows"][1];
  EXPECT_EQ(row.at("op"), "forward");
  EXPECT_EQ(row.at("dtype"), "f32");
  EXPECT_EQ(row.at("d"), 128);
  EXPECT_EQ(row.at("causal"), true);
  EXPECT_EQ(row.at("kv_heads"), 1);
  EXPECT_TRUE(row.at("kernel").get<std::string>().starts_with("cpu_")) << row;
  EXPECT_NE(outcome.out.find(row.at("kernel").get<std::string>()), std::string::npos) << outcome.out;
  EXPECT_FALSE(row.contains("sm_margin"));
  EXPECT_FALSE(row.contains("d_v")) << "left out where it equals d";
  EXPECT_GT(row.at("tflops").get<double>(), 0);

  const Outcome narrow_v =
      fa3("bench --device cpu --d 64 --d-v 24 --seqlen 64 --dtype f32 --heads 1 --full --out " + path("bench.json"));
  ASSERT_EQ(narrow_v.code, 0) << narrow_v.err;
  EXPECT_EQ(nlohmann::json::parse(read_file(path("bench.json"))).at("rows").at(0).at("d_v"), 24);
  const Outcome unwritable = fa3("bench --device cpu --out " + path("missing/bench.json"));
  EXPECT_EQ(unwritable.code, 2);
  EXPECT_TRUE(unwritable.out.empty());
}

}  // namespace
}  // namespace fa3::cli
