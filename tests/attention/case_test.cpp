// The format of the case files: what it expands to, and that slips are errors.
#include "check/case.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

namespace fa3::check {
namespace {

std::vector<Case> parse(const std::string& cases) { return parse_cases({"file", "{\"cases\": [" + cases + "]}"}); }

std::string error_of(const std::string& cases) {
  try {
    parse(cases);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CaseFiles, AllParseWithUniqueNames) { EXPECT_GT(all_cases().size(), 1000u); }

TEST(CaseFiles, DefaultsFollowTheOtherKeys) {
  const Case c = parse(R"({"name": "a", "dtype": "bf16", "heads": 6, "seqlen_q": 5, "d": 40})").at(0);
  EXPECT_EQ(c.name, "file/a");
  EXPECT_EQ(c.dtype, FA3_BF16);
  EXPECT_EQ(c.kv_heads, 6);
  EXPECT_EQ(c.seqlen_k, 5);
  EXPECT_EQ(c.d_v, 40);
  EXPECT_FALSE(c.softmax_scale.has_value());
}

TEST(CaseFiles, ListsAreCrossed) {
  const auto cases = parse(R"({"name": "a", "dtype": ["f16", "f32"], "seqlen_q": [1, 2, 3]})");
  ASSERT_EQ(cases.size(), 6u);
  EXPECT_EQ(cases[0].name, "file/a/dtype=f16/seqlen_q=1");
  EXPECT_EQ(cases[5].name, "file/a/dtype=f32/seqlen_q=3");
  EXPECT_EQ(cases[5].dtype, FA3_F32);
  EXPECT_EQ(cases[5].seqlen_q, 3);
}

TEST(CaseFiles, VariationsAreNotCrossed) {
  const auto cases = parse(R"({"name": "a", "dtype": "f16", "seqlen_q": 1,
                               "each": [{"heads": 4, "kv_heads": 2}, {"name": "b", "heads": [1, 3]}]})");
  ASSERT_EQ(cases.size(), 3u);
  EXPECT_EQ(cases[0].name, "file/a/heads=4/kv_heads=2");
  EXPECT_EQ(cases[1].name, "file/a/b/heads=1");
  EXPECT_EQ(cases[2].heads, 3);
}

TEST(CaseFiles, ANarrowLayoutWinsOverTheCommonOne) {
  const Case c = parse(R"({"name": "a", "dtype": "f16", "seqlen_q": 1, "k_layout": "padded", "layout": "bhsd"})").at(0);
  EXPECT_EQ(c.q.layout, Layout::bhsd);
  EXPECT_EQ(c.k.layout, Layout::padded);
  EXPECT_EQ(c.o.layout, Layout::dense);
}

TEST(CaseFiles, PatchesHoldNumbersThatJsonHasNot) {
  const Case c = parse(R"({"name": "a", "dtype": "f16", "seqlen_q": 9,
                           "patches": [{"tensor": "v", "row": -1, "value": "nan"}, {"tensor": "k", "times": 3},
                                       {"tensor": "k", "feature": 0, "value": 1, "slope": -0.5}]})")
                     .at(0);
  ASSERT_EQ(c.patches.size(), 3u);
  EXPECT_EQ(c.patches[0].tensor, 2);
  EXPECT_EQ(c.patches[0].row, -1);
  EXPECT_TRUE(std::isnan(*c.patches[0].value));
  EXPECT_EQ(c.patches[1].times, 3);
  EXPECT_EQ(c.patches[2].value, 1);
  EXPECT_EQ(c.patches[2].slope, -0.5);
}

TEST(CaseFiles, SlipsAreErrorsThatNameThem) {
  EXPECT_NE(error_of(R"({"name": "a", "dtype": "f16", "seqlen_q": 1, "casual": true})")
                .find("file.json: file/a: unknown key \"casual\""),
            std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "dtype": "f8", "seqlen_q": 1})").find("allowed are f16, bf16, f32, e4m3"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "seqlen_q": 1})").find("needs the key \"dtype\""), std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "dtype": "f16", "seqlen_q": "7"})").find("seqlen_q is \"7\""), std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "dtype": "f16", "seqlen_q": -1})").find("must not be negative"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "dtype": "f16", "seqlen_q": []})").find("empty list"), std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "dtype": "f16", "seqlen_q": 1, "o_layout": "repeat_rows"})").find("o_layout"),
            std::string::npos);
  EXPECT_NE(
      error_of(R"({"name": "a", "dtype": "f16", "seqlen_q": 1, "patches": [{"tensor": "k", "times": 2, "slope": 1}]})")
          .find("\"slope\" needs \"value\""),
      std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "dtype": "f16", "seqlen_q": 1, "patches": [{"tensor": "k"}]})")
                .find("\"value\" and \"times\""),
            std::string::npos);
  EXPECT_NE(error_of(R"({"dtype": "f16", "seqlen_q": 1})").find("\"name\""), std::string::npos);
  EXPECT_NE(error_of("7").find("file.json"), std::string::npos);
}

TEST(CaseNames, MatchAsPartOrAsGlob) {
  EXPECT_TRUE(name_matches("lengths/d64/dtype=f16", "d64"));
  EXPECT_FALSE(name_matches("lengths/d64/dtype=f16", "d128"));
  EXPECT_TRUE(name_matches("lengths/d64/dtype=f16", "lengths/*=f16"));
  EXPECT_FALSE(name_matches("lengths/d64/dtype=f16", "d64*"));
  EXPECT_TRUE(name_matches("anything", ""));
}

TEST(CaseFiles, BackwardCases) {
  const Case c = parse(R"({"name": "a", "pass": "backward", "dtype": "f16", "seqlen_q": 5, "d_o_layout": "spread",
                           "d_o_scale": 3, "dk_layout": "bhsd", "deterministic": true, "repeats": 2,
                           "keys_elsewhere": 7, "patches": [{"tensor": "d_o", "times": 2}]})")
                     .at(0);
  EXPECT_TRUE(c.backward);
  EXPECT_TRUE(c.deterministic);
  EXPECT_EQ(c.d_o.layout, Layout::spread);
  EXPECT_EQ(c.d_o.scale, 3);
  EXPECT_EQ(c.dk.layout, Layout::bhsd);
  EXPECT_EQ(c.keys_elsewhere, 7);
  EXPECT_EQ(c.patches.at(0).tensor, 3);
  EXPECT_TRUE(runs_on(c, FA3_DEVICE_CUDA));
  EXPECT_TRUE(runs_on(c, FA3_DEVICE_CPU));
  EXPECT_FALSE(parse(R"({"name": "a", "dtype": "f16", "seqlen_q": 5})").at(0).backward);
}

TEST(CaseFiles, ScalesOfE4m3) {
  const Case c = parse(R"({"name": "a", "dtype": "e4m3", "o_dtype": "bf16", "seqlen_q": 5, "k_descale": "wild",
                           "descale": "block"})")
                     .at(0);
  EXPECT_EQ(c.dtype_of_o(), FA3_BF16);
  EXPECT_EQ(c.q.scales, Scales::block);
  EXPECT_EQ(c.k.scales, Scales::wild);
  EXPECT_EQ(c.v.scales, Scales::block);
  EXPECT_EQ(parse(R"({"name": "a", "dtype": "e4m3", "seqlen_q": 5})").at(0).dtype_of_o(), FA3_F16);
  EXPECT_EQ(parse(R"({"name": "a", "dtype": "f32", "seqlen_q": 5})").at(0).dtype_of_o(), FA3_F32);
  for (const char* key : {"\"o_dtype\": \"f16\"", "\"descale\": \"head\"", "\"v_descale\": \"none\""}) {
    const std::string error = error_of(std::string(R"({"name": "a", "dtype": "f16", "seqlen_q": 5, )") + key + "}");
    EXPECT_NE(error.find("is for dtype e4m3"), std::string::npos) << error;
  }
  EXPECT_NE(error_of(R"({"name": "a", "dtype": "e4m3", "o_dtype": "f32", "seqlen_q": 5})").find("o_dtype is"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"name": "a", "dtype": "e4m3", "seqlen_q": 5, "pass": "backward"})").find("has no e4m3"),
            std::string::npos);
}

TEST(CaseFiles, SlipsInBackwardCasesAreErrors) {
  const auto error = [](const std::string& more) {
    return error_of(R"({"name": "a", "dtype": "f16", "seqlen_q": 5, )" + more + "}");
  };
  for (const char* key : {"\"d_o\": 1", "\"d_o_scale\": 2", "\"d_o_layout\": \"bhsd\"", "\"dq_layout\": \"bhsd\"",
                          "\"deterministic\": true", "\"keys_elsewhere\": 1"})
    EXPECT_NE(error(key).find("is for pass backward"), std::string::npos) << error(key);
  EXPECT_NE(error(R"("patches": [{"tensor": "d_o", "times": 2}])").find("is for pass backward"), std::string::npos);
  EXPECT_NE(error(R"("pass": "sideways")").find("allowed are forward, backward"), std::string::npos);
  const auto backward_error = [&](const std::string& more) { return error("\"pass\": \"backward\", " + more); };
  EXPECT_NE(backward_error(R"("lse": "none")").find("pass backward needs it"), std::string::npos);
  EXPECT_NE(backward_error(R"("repeats": 2)").find("need deterministic"), std::string::npos);
  EXPECT_NE(backward_error(R"("dq_layout": "packed")").find("dq, dk and dv together"), std::string::npos);
  EXPECT_NE(backward_error(R"("dv_layout": "repeat_rows")").find("dv_layout must be"), std::string::npos);
  EXPECT_NE(backward_error(R"("k_layout": "repeat_all")").find("k_layout must be"), std::string::npos);
  EXPECT_NE(backward_error(R"("d_o_layout": "packed")").find("d_o_layout must not be packed"), std::string::npos);
}

}  // namespace
}  // namespace fa3::check
