// One entry for each row of a table of kernels, whose functions are templates over the row's index. Plain C++.
#pragma once

#include <array>
#include <utility>

namespace fa3 {

/// {entry<0>(), .., entry<count - 1>()}
template <int count, class Entry>
constexpr auto of_rows(Entry entry) {
  return [&]<int... rows>(std::integer_sequence<int, rows...>) {
    return std::array{entry.template operator()<rows>()...};
  }
  (std::make_integer_sequence<int, count>());
}

}  // namespace fa3
