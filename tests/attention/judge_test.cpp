// The judge must object to everything it is there to find: each test puts one fault into a right forward pass.
#include "check/judge.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "check/run.hpp"
#include "dtype.hpp"

namespace fa3::check {
namespace {

using Fault = std::function<void(const Tensor& o, const RowTensor& lse)>;

Case small_case(fa3_dtype dtype) {
  Case c;
  c.name = "judge/small";
  c.dtype = dtype;
  c.batch = 2, c.heads = 4, c.kv_heads = 2, c.seqlen_q = 20, c.seqlen_k = 33;
  c.causal = true;
  c.o.layout = Layout::gapped;
  return c;
}

/// The verdict on the library's result after `fault` was done to it.
Verdict verdict_after(const Case& c, const Fault& fault) {
  return run_case(
      c, Device::cpu,
      [&](const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
          const std::optional<RowTensor>& lse, const ForwardOptions& options, Workspace workspace, fa3_stream stream) {
        const Status status = forward(q, k, v, o, lse, options, workspace, stream);
        fault(o, *lse);
        return status;
      });
}

template <class T = std::byte>
T* at(const Tensor& o, std::int64_t batch, std::int64_t row, std::int64_t head, std::int64_t feature) {
  const std::int64_t offset = batch * o.stride[0] + row * o.stride[1] + head * o.stride[2] + feature;
  return static_cast<T*>(o.data) + offset;
}

float& at(const RowTensor& lse, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return static_cast<float*>(lse.data)[batch * lse.stride[0] + head * lse.stride[1] + row * lse.stride[2]];
}

template <class T>
void add(T* element, double what) {
  *element = from_float<T>(float(to_float(*element) + what));
}

class Judge : public testing::TestWithParam<fa3_dtype> {
 protected:
  const Case c = small_case(GetParam());

  /// Does `change` to one element of O, whatever its type.
  template <class Change>
  Fault on_element(Change change) const {
    return [this, change](const Tensor& o, const RowTensor&) {
      with_dtype(c.dtype, [&]<class T>(T) { change(at<T>(o, 1, 7, 2, 5)); });
    };
  }
};

TEST_P(Judge, PassesWhatIsRight) {
  const Verdict verdict = verdict_after(c, [](const Tensor&, const RowTensor&) {});
  EXPECT_TRUE(verdict.passed) << verdict.message;
  EXPECT_EQ(verdict.rows, 2 * 20 * 4);
  EXPECT_GT(verdict.o.allowed, 0);
}

TEST_P(Judge, FindsOneElementOffByThreeTolerances) {
  const double allowed = verdict_after(c, [](const Tensor&, const RowTensor&) {}).o.allowed;
  const Verdict verdict = verdict_after(c, on_element([&](auto* x) { add(x, 3 * allowed); }));
  EXPECT_FALSE(verdict.passed);
  EXPECT_NE(verdict.message.find("at batch 1, row 7, head 2, feature 5"), std::string::npos) << verdict.message;
}

TEST_P(Judge, FindsAnUnwrittenElement) {
  const Verdict verdict = verdict_after(c, on_element([&](auto* x) { fill_poison(x, c.dtype, 1); }));
  EXPECT_EQ(verdict.message, "O: 1 elements were not written, the first at batch 1, row 7, head 2, feature 5");
}

TEST_P(Judge, FindsANaN) {
  const Verdict verdict =
      verdict_after(c, on_element([](auto* x) { *x = from_float<std::decay_t<decltype(*x)>>(NAN); }));
  EXPECT_NE(verdict.message.find("the inputs of this row are finite"), std::string::npos) << verdict.message;
}

TEST_P(Judge, FindsWritesInFrontBehindAndBetween) {
  for (const char* where : {"in front", "between", "behind"}) {
    const Verdict verdict = verdict_after(c, [&](const Tensor& o, const RowTensor&) {
      const std::int64_t offset = where == std::string("in front")  ? -1
                                  : where == std::string("between") ? c.d_v
                                                                    : c.batch * o.stride[0];
      with_dtype(c.dtype, [&]<class T>(T) { *at<T>(o, 0, 0, 0, offset) = from_float<T>(1); });
    });
    EXPECT_EQ(verdict.message, "memory outside the elements of O was written") << where;
  }
  const Verdict verdict = verdict_after(c, [](const Tensor&, const RowTensor& lse) { at(lse, 0, 0, 2 * 4 * 20) = 1; });
  EXPECT_EQ(verdict.message, "memory outside the elements of LSE was written");
}

TEST_P(Judge, FindsAWrongLse) {
  const Verdict off = verdict_after(c, [](const Tensor&, const RowTensor& lse) { at(lse, 1, 3, 19) += 1e-3f; });
  EXPECT_NE(off.message.find("LSE is "), std::string::npos) << off.message;
  EXPECT_NE(off.message.find("batch 1, row 19, head 3"), std::string::npos) << off.message;
  const Verdict unwritten =
      verdict_after(c, [](const Tensor&, const RowTensor& lse) { fill_poison(&at(lse, 1, 3, 19), FA3_F32, 1); });
  EXPECT_EQ(unwritten.message, "LSE: 1 elements were not written, the first at batch 1, row 19, head 3");
  const Verdict infinite = verdict_after(c, [](const Tensor&, const RowTensor& lse) { at(lse, 1, 3, 19) = -INFINITY; });
  EXPECT_NE(infinite.message.find("the inputs of this row are finite"), std::string::npos) << infinite.message;
}

INSTANTIATE_TEST_SUITE_P(All, Judge, testing::Values(FA3_F16, FA3_BF16, FA3_F32),
                         [](const testing::TestParamInfo<fa3_dtype>& info) { return dtype_name(info.param); });

/// Faults that a kernel of e4m3 can have, put in by giving the library other inputs than the judge.
class JudgeOfE4m3 : public testing::Test {
 protected:
  Case c = [] {
    Case small = small_case(FA3_E4M3);
    small.seqlen_q = 150, small.seqlen_k = 400, small.d = small.d_v = 128;
    small.q.scales = small.k.scales = small.v.scales = Scales::block;
    return small;
  }();

  using Change = std::function<void(ConstTensor& v, ForwardOptions& options)>;
  Verdict verdict_with(const Change& change) const {
    return run_case(
        c, Device::cpu,
        [&](const ConstTensor& q, const ConstTensor& k, ConstTensor v, const Tensor& o,
            const std::optional<RowTensor>& lse, ForwardOptions options, Workspace workspace, fa3_stream stream) {
          change(v, options);
          return forward(q, k, v, o, lse, options, workspace, stream);
        });
  }
  /// The view of the scales with the first block's for all: each block but the first has a wrong one.
  static void repeat_first(ScalesView& scales) { scales.stride[2] = 0; }
};

TEST_F(JudgeOfE4m3, PassesWhatIsRight) {
  const Verdict verdict = verdict_with([](auto&, auto&) {});
  EXPECT_TRUE(verdict.passed) << verdict.message;
  EXPECT_GT(verdict.o.allowed, 0);
}

TEST_F(JudgeOfE4m3, FindsScalesOfAnotherBlock) {
  EXPECT_FALSE(verdict_with([](auto&, ForwardOptions& options) { repeat_first(options.q_scale); }).passed);
  EXPECT_FALSE(verdict_with([](auto&, ForwardOptions& options) { repeat_first(options.k_scale); }).passed);
  EXPECT_FALSE(verdict_with([](auto&, ForwardOptions& options) { repeat_first(options.v_scale); }).passed);
}

TEST_F(JudgeOfE4m3, FindsValuesOfOtherKeysOfTheSameSixteen) {
  std::vector<std::byte> permuted;
  const Verdict verdict = verdict_with([&](ConstTensor& v, auto&) {
    const auto* from = static_cast<const std::byte*>(v.data);
    permuted.assign(from, from + v.shape[0] * v.stride[0]);
    for (std::int64_t b = 0; b < v.shape[0]; ++b)
      for (std::int64_t j = 0; j + 1 < v.shape[1]; j += 16)  // two neighbouring keys out of sixteen
        for (std::int64_t i = 0; i < v.stride[1]; ++i)
          std::swap(permuted[std::size_t(b * v.stride[0] + j * v.stride[1] + i)],
                    permuted[std::size_t(b * v.stride[0] + (j + 1) * v.stride[1] + i)]);
    void* aligned = permuted.data();
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % 16, 0u);
    v.data = aligned;
  });
  EXPECT_NE(verdict.message.find("O is off by"), std::string::npos) << verdict.message;
}

// LSE by sums in f16 has fewer digits, for which that of other inputs is not excused.
TEST_F(JudgeOfE4m3, AllowsLseOfNarrowInputsLessDigitsAndNoMore) {
  c.q.scale = 1e-3;  // the scores' own errors are none
  const auto off_by = [&](bool narrow, double times) {
    Case with = c;
    with.narrow = narrow;
    return verdict_after(with, [&](const Tensor&, const RowTensor& lse) {
      float& x = at(lse, 1, 3, 149);
      x += float(times * (0x1p-8 + 0x1p-10 * std::abs(x)));
    });
  };
  EXPECT_TRUE(off_by(true, 0.9).passed) << off_by(true, 0.9).message;
  EXPECT_NE(off_by(false, 0.9).message.find("LSE is "), std::string::npos);
  EXPECT_NE(off_by(true, 4).message.find("LSE is "), std::string::npos);
}

TEST(JudgeOfRowsWithoutKeys, WantsExactZeroAndMinusInfinity) {
  Case c = small_case(FA3_F16);
  c.seqlen_k = 10;  // rows 0 .. 9 see nothing
  EXPECT_TRUE(verdict_after(c, [](const Tensor&, const RowTensor&) {}).passed);
  const Verdict o = verdict_after(c, [](const Tensor& o, const RowTensor&) { at<Half>(o, 0, 9, 0, 0)->bits = 1; });
  EXPECT_NE(o.message.find("a row without keys must be 0"), std::string::npos) << o.message;
  const Verdict lse = verdict_after(c, [](const Tensor&, const RowTensor& lse) { at(lse, 0, 0, 9) = -1e30f; });
  EXPECT_NE(lse.message.find("a row without keys must be -inf"), std::string::npos) << lse.message;
}

TEST(JudgeOfNonFiniteInputs, FindsALeakAndALoss) {
  Case c = small_case(FA3_F16);
  Patch patch;
  patch.tensor = 2, patch.batch = 1, patch.head = 0, patch.value = NAN;  // query heads 0 and 1 of batch entry 1
  c.patches = {patch};
  EXPECT_TRUE(verdict_after(c, [](const Tensor&, const RowTensor&) {}).passed);
  const Verdict leak =
      verdict_after(c, [](const Tensor& o, const RowTensor&) { *at<Half>(o, 1, 3, 2, 0) = from_float<Half>(NAN); });
  EXPECT_NE(leak.message.find("batch 1, row 3, head 2"), std::string::npos) << leak.message;
  const Verdict loss =
      verdict_after(c, [](const Tensor& o, const RowTensor&) { *at<Half>(o, 1, 3, 1, 0) = from_float<Half>(0); });
  EXPECT_NE(loss.message.find("a NaN or Inf of the input was lost"), std::string::npos) << loss.message;
}

TEST(JudgeOfSamples, TakesFirstAndLastRow) {
  std::vector<Half> q(8 * 100, from_float<Half>(1)), o(8 * 100, from_float<Half>(2)), v(8 * 4, from_float<Half>(2));
  ForwardProblem p;
  p.batch = 1, p.heads = 1, p.kv_heads = 1, p.seqlen_q = 100, p.seqlen_k = 4, p.d = 8, p.d_v = 8;
  p.q = {q.data(), {1, 100, 1, 8}, {0, 8, 0, 1}};
  p.k = {q.data(), {1, 4, 1, 8}, {0, 8, 0, 1}};
  p.v = {v.data(), {1, 4, 1, 8}, {0, 8, 0, 1}};
  p.o = {o.data(), {1, 100, 1, 8}, {0, 8, 0, 1}};
  p.softmax_scale = 1;
  const Verdict right = judge(p, 10, 1);
  EXPECT_TRUE(right.passed) << right.message;
  EXPECT_EQ(right.rows, 10);
  for (const std::size_t row : {0, 99}) {
    o[row * 8] = from_float<Half>(2.5f);
    EXPECT_FALSE(judge(p, 10, 1).passed) << row;
    o[row * 8] = from_float<Half>(2);
  }
  fill_poison(&o[50 * 8 + 3], FA3_F16, 1);  // not in the sample, yet unwritten
  EXPECT_FALSE(judge(p, 2, 1).passed);
}

TEST(RunCase, ReportsARefusal) {
  const Verdict verdict =
      run_case(small_case(FA3_F16), Device::cpu, [](auto&&...) { return Status(FA3_INTERNAL, "no"); });
  EXPECT_EQ(verdict.message, "no");
  EXPECT_FALSE(verdict.passed);
}

TEST(RunCase, FindsAChangedInput) {
  Case c = small_case(FA3_F16);
  const Verdict verdict = run_case(
      c, Device::cpu,
      [](const ConstTensor& q, const ConstTensor& k, const ConstTensor& v, const Tensor& o,
         const std::optional<RowTensor>& lse, const ForwardOptions& options, Workspace workspace, fa3_stream stream) {
        const Status status = forward(q, k, v, o, lse, options, workspace, stream);
        ++*static_cast<unsigned char*>(const_cast<void*>(k.data));
        return status;
      });
  EXPECT_EQ(verdict.message, "the memory of k was changed");
}

TEST(RunCase, FindsARunWithOtherBits) {
  Case c = small_case(FA3_F16);
  c.repeats = 3;
  int calls = 0;
  const Verdict verdict = verdict_after(c, [&](const Tensor& o, const RowTensor&) {
    if (++calls == 3) at<Half>(o, 0, 0, 0, 0)->bits ^= 1;
  });
  EXPECT_EQ(verdict.message, "run 3 gave other bits than run 1");
}

using GradientFault = std::function<void(const Tensor& dq, const Tensor& dk, const Tensor& dv)>;

Case small_backward_case(fa3_dtype dtype) {
  Case c = small_case(dtype);
  c.name = "judge/backward";
  c.backward = true;
  c.dq.layout = c.dk.layout = c.dv.layout = Layout::gapped;
  c.deterministic = true;
  return c;
}

/// The verdict on the library's gradients after `fault` was done to them.
Verdict backward_verdict_after(const Case& c, const GradientFault& fault) {
  return run_backward_case(
      c, Device::cpu,
      [&](const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
          const ConstTensor& o, const ConstRowTensor& lse, const Tensor& dq, const Tensor& dk, const Tensor& dv,
          const BackwardOptions& options, Workspace workspace, fa3_stream stream) {
        const Status status = backward(d_o, q, k, v, o, lse, dq, dk, dv, options, workspace, stream);
        fault(dq, dk, dv);
        return status;
      });
}

class BackwardJudge : public testing::TestWithParam<fa3_dtype> {
 protected:
  const Case c = small_backward_case(GetParam());

  /// Does `change` to one element of gradient `which` (0 dQ, 1 dK, 2 dV), whatever its type.
  template <class Change>
  Verdict after(int which, Change change) const {
    return backward_verdict_after(c, [&](const Tensor& dq, const Tensor& dk, const Tensor& dv) {
      const Tensor& x = which == 0 ? dq : which == 1 ? dk : dv;
      with_dtype(c.dtype, [&]<class T>(T) { change(at<T>(x, 1, 7, 1, 5)); });
    });
  }
  static constexpr const char* names[] = {"dQ", "dK", "dV"};
};

TEST_P(BackwardJudge, PassesWhatIsRight) {
  const Verdict verdict = backward_verdict_after(c, [](const Tensor&, const Tensor&, const Tensor&) {});
  EXPECT_TRUE(verdict.passed) << verdict.message;
  EXPECT_EQ(verdict.rows, 2 * 20 * 4 + 2 * 33 * 2);
  for (const Measure* m : {&verdict.dq, &verdict.dk, &verdict.dv}) EXPECT_GT(m->allowed, 0);
  EXPECT_TRUE(verdict.summary().starts_with("dQ off by ")) << verdict.summary();
}

TEST_P(BackwardJudge, FindsOneElementOffByThreeTolerances) {
  const Verdict right = backward_verdict_after(c, [](const Tensor&, const Tensor&, const Tensor&) {});
  const double allowed[] = {right.dq.allowed, right.dk.allowed, right.dv.allowed};
  for (int which = 0; which < 3; ++which) {
    const Verdict verdict = after(which, [&](auto* x) { add(x, 3 * allowed[which]); });
    EXPECT_FALSE(verdict.passed) << names[which];
    EXPECT_TRUE(verdict.message.starts_with(names[which])) << verdict.message;
    EXPECT_NE(verdict.message.find("at batch 1, row 7, head 1, feature 5"), std::string::npos) << verdict.message;
  }
}

TEST_P(BackwardJudge, FindsAnUnwrittenElementAndANaN) {
  for (int which = 0; which < 3; ++which) {
    const Verdict unwritten = after(which, [&](auto* x) { fill_poison(x, c.dtype, 1); });
    EXPECT_EQ(unwritten.message, std::string(names[which]) +
                                     ": 1 elements were not written, the first at batch 1, row 7, head 1, feature 5");
    const Verdict nan = after(which, [](auto* x) { *x = from_float<std::decay_t<decltype(*x)>>(NAN); });
    EXPECT_NE(nan.message.find("the inputs of this row are finite"), std::string::npos) << nan.message;
  }
}

TEST_P(BackwardJudge, FindsWritesBetweenTheRows) {
  for (int which = 0; which < 3; ++which) {
    const Verdict verdict = backward_verdict_after(c, [&](const Tensor& dq, const Tensor& dk, const Tensor& dv) {
      const Tensor& x = which == 0 ? dq : which == 1 ? dk : dv;
      with_dtype(c.dtype, [&]<class T>(T) { *at<T>(x, 0, 3, 0, x.shape[3]) = from_float<T>(1); });
    });
    EXPECT_EQ(verdict.message, std::string("memory outside the elements of ") + names[which] + " was written");
  }
}

INSTANTIATE_TEST_SUITE_P(All, BackwardJudge, testing::Values(FA3_F16, FA3_BF16, FA3_F32),
                         [](const testing::TestParamInfo<fa3_dtype>& info) { return dtype_name(info.param); });

TEST(BackwardJudgeOfRowsWithoutKeys, WantsExactZero) {
  Case c = small_backward_case(FA3_F16);
  c.seqlen_k = 10;  // rows 0 .. 9 see nothing
  const Verdict verdict = backward_verdict_after(
      c, [](const Tensor& dq, const Tensor&, const Tensor&) { at<Half>(dq, 0, 9, 0, 0)->bits = 1; });
  EXPECT_NE(verdict.message.find("dQ is "), std::string::npos) << verdict.message;
  EXPECT_NE(verdict.message.find("a row without keys must be 0"), std::string::npos) << verdict.message;
  Case no_rows = small_backward_case(FA3_F16);
  no_rows.seqlen_q = 0;
  const Verdict dv = backward_verdict_after(
      no_rows, [](const Tensor&, const Tensor&, const Tensor& x) { at<Half>(x, 1, 32, 1, 3)->bits = 1; });
  EXPECT_NE(dv.message.find("dV is "), std::string::npos) << dv.message;
}

TEST(BackwardJudgeOfNonFiniteInputs, FindsALeakAndALoss) {
  Case c = small_backward_case(FA3_F16);
  Patch patch;
  patch.tensor = 3, patch.batch = 1, patch.head = 2, patch.row = 5, patch.value = NAN;  // dO; key/value head 1
  c.patches = {patch};
  const Verdict right = backward_verdict_after(c, [](const Tensor&, const Tensor&, const Tensor&) {});
  EXPECT_TRUE(right.passed) << right.message;
  const auto nan = [](const Tensor& x, std::int64_t row, std::int64_t head) {
    *at<Half>(x, 1, row, head, 0) = from_float<Half>(NAN);
  };
  const Verdict other_row =
      backward_verdict_after(c, [&](const Tensor& dq, const Tensor&, const Tensor&) { nan(dq, 6, 2); });
  EXPECT_NE(other_row.message.find("dQ is nan at batch 1, row 6, head 2"), std::string::npos) << other_row.message;
  const Verdict other_head =
      backward_verdict_after(c, [&](const Tensor&, const Tensor& dk, const Tensor&) { nan(dk, 0, 0); });
  EXPECT_NE(other_head.message.find("dK is nan at batch 1, row 0, head 0"), std::string::npos) << other_head.message;
  const Verdict loss = backward_verdict_after(
      c, [](const Tensor&, const Tensor&, const Tensor& dv) { *at<Half>(dv, 1, 0, 1, 0) = from_float<Half>(0); });
  EXPECT_NE(loss.message.find("a NaN or Inf of the input was lost"), std::string::npos) << loss.message;
}

// Of a sequence too long for fp64 a sample of rows is judged, with O and LSE in f32.
TEST(BackwardJudgeOfSamples, FindsAFaultInTheLastRow) {
  Case c = small_backward_case(FA3_F16);
  c.batch = 1, c.heads = 2, c.kv_heads = 1, c.seqlen_q = c.seqlen_k = 2000;
  EXPECT_EQ(backward_verdict_after(c, [](const Tensor&, const Tensor&, const Tensor&) {}).message, "");
  for (int which = 0; which < 3; ++which) {
    const Verdict verdict = backward_verdict_after(c, [&](const Tensor& dq, const Tensor& dk, const Tensor& dv) {
      const Tensor& x = which == 0 ? dq : which == 1 ? dk : dv;
      add(at<Half>(x, 0, 1999, x.shape[2] - 1, 63), 1);
    });
    EXPECT_NE(verdict.message.find("row 1999"), std::string::npos) << verdict.message;
  }
}

TEST(RunBackwardCase, ReportsARefusalAndAChangedInput) {
  const Case c = small_backward_case(FA3_F16);
  EXPECT_EQ(run_backward_case(c, Device::cpu, [](auto&&...) { return Status(FA3_INTERNAL, "no"); }).message, "no");
  const Verdict changed =
      run_backward_case(c, Device::cpu,
                        [](const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                           const ConstTensor& o, const ConstRowTensor& lse, const Tensor& dq, const Tensor& dk,
                           const Tensor& dv, const BackwardOptions& options, Workspace workspace, fa3_stream stream) {
                          const Status status = backward(d_o, q, k, v, o, lse, dq, dk, dv, options, workspace, stream);
                          ++*static_cast<unsigned char*>(const_cast<void*>(lse.data));
                          return status;
                        });
  EXPECT_EQ(changed.message, "the memory of LSE was changed");
}

TEST(RunBackwardCase, WantsTheSameBitsOfDeterministicRunsOnly) {
  Case c = small_backward_case(FA3_F16);
  c.repeats = 3;
  for (const bool deterministic : {true, false}) {
    c.deterministic = deterministic;
    int calls = 0;
    const Verdict verdict = backward_verdict_after(c, [&](const Tensor& dq, const Tensor&, const Tensor&) {
      if (++calls == 3) at<Half>(dq, 0, 5, 0, 0)->bits ^= 1;
    });
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(verdict.message, deterministic ? "run 3 gave other bits than run 1" : "");
  }
}

// Packed gradients share a block of memory with each other, and none of it is anybody else's.
TEST(RunBackwardCase, PackedGradients) {
  Case c = small_backward_case(FA3_BF16);
  c.seqlen_k = c.seqlen_q;
  c.dq.layout = c.dk.layout = c.dv.layout = Layout::packed;
  EXPECT_EQ(backward_verdict_after(c, [](const Tensor&, const Tensor&, const Tensor&) {}).message, "");
  const Verdict outside = backward_verdict_after(
      c, [](const Tensor& dq, const Tensor&, const Tensor&) { --static_cast<Bfloat16*>(dq.data)[-1].bits; });
  EXPECT_EQ(outside.message, "memory outside the elements of dQ, dK, dV was written");
}

// O and LSE of 70 keys, gradients of the last 33.
TEST(RunBackwardCase, KeysElsewhere) {
  Case c = small_backward_case(FA3_F16);
  c.keys_elsewhere = 37;
  EXPECT_EQ(backward_verdict_after(c, [](const Tensor&, const Tensor&, const Tensor&) {}).message, "");
  // Without regard to them the weights would be too large.
  const Verdict alone =
      run_backward_case(c, Device::cpu,
                        [](const ConstTensor& d_o, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                           const ConstTensor&, const ConstRowTensor&, const Tensor& dq, const Tensor& dk,
                           const Tensor& dv, const BackwardOptions& options, Workspace workspace, fa3_stream stream) {
                          EXPECT_EQ(k.shape[1], 33);
                          std::vector<Half> own_o(2 * 20 * 4 * 64);
                          std::vector<float> own_lse(2 * 4 * 20);
                          const Tensor own(own_o.data(), {2, 20, 4, 64}, Dtype::f16, Device::cpu);
                          const RowTensor own_rows(own_lse.data(), {2, 4, 20}, Dtype::f32, Device::cpu);
                          EXPECT_TRUE(forward(q, k, v, own, own_rows, {.causal = options.causal}).ok());
                          return backward(d_o, q, k, v, own, own_rows, dq, dk, dv, options, workspace, stream);
                        });
  EXPECT_FALSE(alone.passed);
}

}  // namespace
}  // namespace fa3::check
