// Every case of tests/cases on every device; one test per file and device, failures name the case.
#include <gtest/gtest.h>

#include "check/case.hpp"
#include "check/run.hpp"

namespace fa3::check {
namespace {

using Parameter = std::tuple<Device, std::string>;

class Cases : public testing::TestWithParam<Parameter> {};

TEST_P(Cases, AreRight) {
  const auto [device, file_name] = GetParam();
  if (const Status available = Status::of(fa3_device_available(static_cast<std::int32_t>(device))); !available)
    GTEST_SKIP() << available.message();
  int ran = 0;
  for (const CaseFile& file : embedded_case_files()) {
    if (file.name != file_name) continue;
    for (const Case& c : parse_cases(file)) {
      if (!runs_on(c, static_cast<fa3_device>(device))) continue;
      const Verdict verdict = run_case(c, device);
      EXPECT_TRUE(verdict.passed) << c.name << ": " << verdict.message;
      ++ran;
    }
  }
  EXPECT_GT(ran, 0);
}

std::vector<std::string> file_names() {
  std::vector<std::string> names;
  for (const CaseFile& file : embedded_case_files()) names.emplace_back(file.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Cases,
                         testing::Combine(testing::Values(Device::cpu, Device::cuda), testing::ValuesIn(file_names())),
                         [](const testing::TestParamInfo<Parameter>& info) {
                           return (std::get<Device>(info.param) == Device::cpu ? "cpu_" : "cuda_") +
                                  std::get<std::string>(info.param);
                         });

}  // namespace
}  // namespace fa3::check
