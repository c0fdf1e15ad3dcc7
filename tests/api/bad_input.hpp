// A call that is refused: its status, a message that names the argument, the value and what is allowed, the same from
// every function that takes the parameters, and nothing written.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "fa3/fa3.h"

namespace fa3::test {

/// How a valid call, `Data`, is spoiled.
template <class Data>
struct BadInput {
  const char* name;
  std::function<void(Data&)> spoil;
  std::vector<std::string> words;  // all of them must be in the message
  fa3_status status = FA3_INVALID_ARGUMENT;
};

template <class Data>
void PrintTo(const BadInput<Data>& bad, std::ostream* out) {
  *out << bad.name;
}

/// The functions that take `Params`.
template <class Params>
struct Calls {
  fa3_status (*run)(const Params*, void*, std::size_t, fa3_stream);
  fa3_status (*supported)(const Params*);
  fa3_status (*workspace_size)(const Params*, std::size_t*);
  fa3_status (*kernel)(const Params*, const char**) = nullptr;
};

template <class Data, class Params>
void expect_refused(const BadInput<Data>& bad, const Calls<Params>& calls) {
  Data data;
  ASSERT_EQ(calls.supported(&data.params), FA3_OK) << fa3_last_error();
  bad.spoil(data);

  ASSERT_EQ(calls.run(&data.params, nullptr, 0, nullptr), bad.status) << fa3_last_error();
  const std::string message = fa3_last_error();
  for (const std::string& word : bad.words)
    EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
  EXPECT_TRUE(data.outputs_untouched());
  EXPECT_TRUE(data.inputs_untouched());

  EXPECT_EQ(calls.supported(&data.params), bad.status);
  EXPECT_EQ(fa3_last_error(), message);
  std::size_t bytes = 77;
  EXPECT_EQ(calls.workspace_size(&data.params, &bytes), bad.status);
  EXPECT_EQ(fa3_last_error(), message);
  EXPECT_EQ(bytes, 77u);
  if (calls.kernel == nullptr) return;
  const char* name = "untouched";
  EXPECT_EQ(calls.kernel(&data.params, &name), bad.status);
  EXPECT_EQ(fa3_last_error(), message);
  EXPECT_STREQ(name, "untouched");
}

}  // namespace fa3::test
