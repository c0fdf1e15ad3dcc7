// Matrix products for every operand form and width that rows of the kernel table use.
#pragma once

#include <limits>
#include <utility>

#include "kernels/backward_configs.hpp"
#include "values.hpp"

namespace fa3::hopper_test {

class Wgmma : public MachineTest {};
INSTANTIATE_TEST_SUITE_P(, Wgmma, modes(), ModeName());

/// test(index) for every row of the kernel table, a compile-time constant.
template <class Test>
void for_each_row(Test test) {
  [&]<int... row>(std::integer_sequence<int, row...>) { (test(std::integral_constant<int, row>{}), ...); }
  (std::make_integer_sequence<int, kernels::rows_of_16_bits>{});
}

/// This thread's part of rows [0, 64) of a row-major 64 x columns matrix; columns and order as documented at
/// hopper::Accumulator.
template <int columns, class Visit>
HOPPER_FUNCTION void for_each_value(Visit visit) {
  const int row = 16 * hopper::warp_of_warpgroup() + hopper::lane() / 4, column = 2 * (hopper::lane() % 4);
  HOPPER_UNROLL
  for (int j = 0; j < columns / 8; ++j) {
    HOPPER_UNROLL
    for (int r = 0; r < 2; ++r) {
      HOPPER_UNROLL
      for (int e = 0; e < 2; ++e) visit(4 * j + 2 * r + e, (row + 8 * r) * columns + column + 8 * j + e);
    }
  }
}
template <int columns>
HOPPER_FUNCTION void read(hopper::Accumulator<columns>& acc, const float* from) {
  for_each_value<columns>([&](int i, int at) { acc.value[i] = from[at]; });
}
template <int columns>
HOPPER_FUNCTION void write(float* to, const hopper::Accumulator<columns>& acc) {
  for_each_value<columns>([&](int i, int at) { to[at] = acc.value[i]; });
}

/// The same of sums in f16.
template <int columns>
HOPPER_FUNCTION void read(hopper::HalfAccumulator<columns>& acc, const float* from) {
  for_each_value<columns>([&](int i, int at) {
    const std::uint32_t x = hopper::pack2<Element::f16>(from[at], 0.0f) & 0xffffu;
    acc.value[i / 2] = i % 2 == 0 ? x : acc.value[i / 2] | x << 16;
  });
}
template <int columns>
HOPPER_FUNCTION void write(float* to, const hopper::HalfAccumulator<columns>& acc) {
  for_each_value<columns>([&](int i, int at) {
    float x[2];
    hopper::unpack2<Element::f16>(acc.value[i / 2], x[0], x[1]);
    to[at] = x[i % 2];
  });
}
template <int columns, bool f16>
using SumOf = std::conditional_t<f16, hopper::HalfAccumulator<columns>, hopper::Accumulator<columns>>;

/// The A operand of 64 x depth in registers, thread by thread, of 16 bits.
inline std::vector<std::uint32_t> fragments(Element element, const Matrix& a) {
  std::vector<std::uint32_t> fragment;
  for (int t = 0; t < 128; ++t)
    for (int k = 0; k < a.columns; k += 16)
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i % 2), column = k + 2 * (t % 4) + 8 * (i / 2);
        fragment.push_back(to_bits(element, a(row, column)) | std::uint32_t(to_bits(element, a(row, column + 1)))
                                                                  << 16);
      }
  return fragment;
}

/// The same of e4m3.
inline std::vector<std::uint32_t> fragments_e4m3(const Matrix& a) {
  std::vector<std::uint32_t> fragment;
  for (int t = 0; t < 128; ++t)
    for (int k = 0; k < a.columns; k += 32)
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i % 2), column = k + 16 * (i / 2) + 4 * (t % 4);
        std::uint32_t four = 0;
        for (int e = 0; e < 4; ++e) four |= std::uint32_t(to_bits(Element::e4m3, a(row, column + e))) << 8 * e;
        fragment.push_back(four);
      }
  return fragment;
}

/// c + A B^T, or c + A B.
inline Matrix product(const Matrix& a, const Matrix& b, bool transposed, const Matrix& c) {
  Matrix d = c;
  for (int i = 0; i < d.rows; ++i)
    for (int k = 0; k < a.columns; ++k)
      for (int j = 0; j < d.columns; ++j) d(i, j) += a(i, k) * (transposed ? b(j, k) : b(k, j));
  return d;
}
inline std::vector<float> floats(const Matrix& matrix) { return {matrix.value.begin(), matrix.value.end()}; }

inline void expect_equal(const std::vector<float>& got, const Matrix& expected) {
  for (int i = 0; i < expected.rows; ++i)
    for (int j = 0; j < expected.columns; ++j)
      ASSERT_TRUE(same(got[std::size_t(i) * expected.columns + j], expected(i, j)))
          << "row " << i << ", column " << j << ": " << got[std::size_t(i) * expected.columns + j] << ", expected "
          << expected(i, j);
}

/// Integers, and in some rows of the result what must stay in those rows.
inline Matrix operand_a(int rows, int depth, unsigned seed) {
  Matrix a = integers(rows, depth, 8, seed);
  a(rows - 3, depth - 5) = std::numeric_limits<double>::quiet_NaN();
  a(5, 2) = std::numeric_limits<double>::infinity();
  return a;
}

/// The same of e4m3, which has no infinity, and whose sums the tensor core keeps in few bits: they stay below 2^12.
inline Matrix operand_a_e4m3(int rows, int depth, unsigned seed) {
  Matrix a = integers(rows, depth, 3, seed);
  a(rows - 3, depth - 5) = std::numeric_limits<double>::quiet_NaN();
  return a;
}

constexpr int ss_rows = 192;

/// D = A B^T by issue_abt: three warpgroups, 64 rows each; what D held before must not matter. `depth` counts columns
/// of the tiles, which are pairs of e4m3.
template <Element element_, int columns_, int depth_, bool f16_sums = false>
struct ProductSS {
  static constexpr Element element = element_;
  static constexpr int threads = 384, columns = columns_, depth = depth_;
  using A = hopper::SharedTile<ss_rows, depth>;
  using B = hopper::SharedTile<columns, depth>;
  struct Arguments {
    const Chunk *a, *b;
    const float* c;
    float* d;
  };
  struct Shared {
    A a;
    B b;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    copy_in(&shared.a, args.a, A::bytes, threads);
    copy_in(&shared.b, args.b, B::bytes, threads);
    hopper::fence_async_shared();
    hopper::cta_sync();
    const int first_row = 64 * hopper::warpgroup();
    SumOf<columns, f16_sums> acc;
    read(acc, args.c + first_row * columns);
    hopper::issue_abt<element>(acc, shared.a, first_row, shared.b);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>(acc);
    write(args.d + first_row * columns, acc);
  }
};

TEST_P(Wgmma, ProductsOfSharedOperands) {
  const auto test = [&]<class Kernel>(Kernel) {
    SCOPED_TRACE(testing::Message() << name(Kernel::element) << ", " << Kernel::columns << " columns, depth "
                                    << Kernel::depth);
    constexpr bool e4m3 = Kernel::element == Element::e4m3;
    const Matrix a = e4m3 ? operand_a_e4m3(ss_rows, 2 * Kernel::depth, 1) : operand_a(ss_rows, Kernel::depth, 1);
    const Matrix b = integers(Kernel::columns, a.columns, e4m3 ? 3 : 8, 2);
    Buffer<Chunk> a_image(tile_image(Kernel::element, a)), b_image(tile_image(Kernel::element, b));
    Buffer<float> c(std::size_t(ss_rows) * Kernel::columns, std::numeric_limits<float>::quiet_NaN());
    Buffer<float> d(std::size_t(ss_rows) * Kernel::columns, 0.0f);
    launch<Kernel>({a_image.data(), b_image.data(), c.data(), d.data()});
    expect_equal(d.read(), product(a, b, true, Matrix(ss_rows, Kernel::columns)));
  };
  for_each_row([&]<int row>(std::integral_constant<int, row>) {
    constexpr kernels::ForwardConfig config = kernels::forward_rows[row].config;
    test(ProductSS<config.element, config.tile_kv, config.d>{});
  });
  test(ProductSS<Element::e4m3, 128, 16>{});
  test(ProductSS<Element::e4m3, 128, 32>{});
  test(ProductSS<Element::e4m3, 128, 64>{});
  test(ProductSS<Element::e4m3, 128, 96>{});
  test(ProductSS<Element::e4m3, 128, 128>{});
  test(ProductSS<Element::e4m3, 128, 32, true>{});
  test(ProductSS<Element::e4m3, 128, 128, true>{});
}

/// D = A B by issue_ab, both operands in shared memory: two warpgroups, each 64 rows of A, or some columns of B. For
/// rows that are not wide.
template <kernels::BackwardConfig config>
struct ProductSSAlongColumns {
  static constexpr Element element = config.element;
  static constexpr attention::DqLayout layout = attention::dq_layout(config);
  static constexpr int threads = 256, depth = config.tile_kv, rows = config.tile_q, columns = layout.part_columns;
  using A = hopper::SharedTile<rows, depth>;
  using B = hopper::SharedTile<depth, config.d>;
  struct Arguments {
    const Chunk *a, *b;
    float* d;  // by warpgroup
  };
  struct Shared {
    A a;
    B b;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    copy_in(&shared.a, args.a, A::bytes, threads);
    copy_in(&shared.b, args.b, B::bytes, threads);
    hopper::fence_async_shared();
    hopper::cta_sync();
    const int part = hopper::warpgroup();
    hopper::Accumulator<columns> acc;
    hopper::issue_ab<element>(acc, shared.a, layout.split_rows ? 64 * part : 0, shared.b,
                              layout.split_rows ? 0 : columns * part);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>(acc);
    write(args.d + part * 64 * columns, acc);
  }
};

TEST_P(Wgmma, ProductsOfSharedOperandsAlongColumns) {
  const auto test = [&]<class Kernel>(Kernel, int d) {
    SCOPED_TRACE(testing::Message() << name(Kernel::element) << ", d = " << d);
    const Matrix a = operand_a(Kernel::rows, Kernel::depth, 1), b = integers(Kernel::depth, d, 8, 2);
    Buffer<Chunk> a_image(tile_image(Kernel::element, a)), b_image(tile_image(Kernel::element, b));
    Buffer<float> got(std::size_t(2 * 64 * Kernel::columns), 0.0f);
    launch<Kernel>({a_image.data(), b_image.data(), got.data()});
    const Matrix expected = product(a, b, false, Matrix(Kernel::rows, d));
    const std::vector<float> parts = got.read();
    for (int part = 0; part < 2; ++part)
      for (int i = 0; i < 64; ++i)
        for (int j = 0; j < Kernel::columns; ++j) {
          const int row = i + (Kernel::layout.split_rows ? 64 * part : 0);
          const int column = j + (Kernel::layout.split_rows ? 0 : Kernel::columns * part);
          if (column >= d) continue;  // padding
          ASSERT_TRUE(same(parts[std::size_t((part * 64 + i) * Kernel::columns + j)], expected(row, column)))
              << "row " << row << ", column " << column;
        }
  };
  [&]<int... row>(std::integer_sequence<int, row...>) {
    const auto of_row = [&]<int index>() {
      constexpr kernels::BackwardConfig config = kernels::backward_rows[index].config;
      if constexpr (!config.wide()) test(ProductSSAlongColumns<config>{}, config.d);
    };
    (of_row.template operator()<row>(), ...);
  }
  (std::make_integer_sequence<int, kernels::backward_row_count>{});
}

/// What wide rows of the backward pass do with a tile A [64 x 64] in shared memory: C + A B by issue_ab, and A^T B by
/// issue_atb, with the columns of B [64 x 256] from `first` on; in clusters A^T B + C^T D in one product, here with the
/// second panel of B as C, and B as D.
template <Element element_, int columns_, int first_>
struct ProductsOfATile {
  static constexpr Element element = element_;
  static constexpr int threads = 128, columns = columns_, first = first_;
  using A = hopper::SharedTile<64, 64>;
  using B = hopper::SharedTile<64, 256>;
  struct Arguments {
    const Chunk *a, *b;
    const float* c;
    float *sum, *transposed, *both;
  };
  struct Shared {
    A a;
    B b;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    copy_in(&shared.a, args.a, A::bytes, threads);
    copy_in(&shared.b, args.b, B::bytes, threads);
    hopper::fence_async_shared();
    hopper::cta_sync();
    hopper::Accumulator<columns> sum, transposed, both;
    read(sum, args.c);
    hopper::issue_ab<element, true>(sum, shared.a, 0, shared.b, first);
    hopper::wgmma_commit();
    hopper::issue_atb<element>(transposed, shared.a, shared.b, first);
    hopper::wgmma_commit();
    hopper::issue_atb<element>(both, shared.a, shared.b, first, hopper::panels_of<64>(shared.b, 64), shared.b, 0);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>(sum, transposed, both);
    write(args.sum, sum);
    write(args.transposed, transposed);
    write(args.both, both);
  }
};

TEST_P(Wgmma, ProductsOfATileAndItsTranspose) {
  const auto test = [&]<class Kernel>(Kernel) {
    SCOPED_TRACE(testing::Message() << name(Kernel::element) << ", columns " << Kernel::first << " to "
                                    << Kernel::first + Kernel::columns);
    const Matrix a = integers(64, 64, 8, 1), b = integers(64, 256, 8, 2), c = integers(64, Kernel::columns, 1000, 3);
    Buffer<Chunk> a_image(tile_image(Kernel::element, a)), b_image(tile_image(Kernel::element, b));
    Buffer<float> c_values(floats(c)), sum(c.value.size(), 0.0f), transposed(c.value.size(), 0.0f),
        both(c.value.size(), 0.0f);
    launch<Kernel>({a_image.data(), b_image.data(), c_values.data(), sum.data(), transposed.data(), both.data()});
    Matrix b_part(64, Kernel::columns), a_transposed(64, 64), panel_transposed(64, 64);
    for (int k = 0; k < 64; ++k) {
      for (int j = 0; j < Kernel::columns; ++j) b_part(k, j) = b(k, Kernel::first + j);
      for (int i = 0; i < 64; ++i) a_transposed(i, k) = a(k, i), panel_transposed(i, k) = b(k, 64 + i);
    }
    expect_equal(sum.read(), product(a, b_part, false, c));
    const Matrix of_a = product(a_transposed, b_part, false, Matrix(64, Kernel::columns));
    expect_equal(transposed.read(), of_a);
    expect_equal(both.read(), product(panel_transposed, b, false, of_a));
  };
  test(ProductsOfATile<Element::f16, 64, 192>{});
  test(ProductsOfATile<Element::bf16, 64, 0>{});
  test(ProductsOfATile<Element::f16, 128, 0>{});
  test(ProductsOfATile<Element::bf16, 128, 128>{});
}

/// Single instructions D = C + A B^T over 16 columns of the operands each: every k16 step of two panels, for one
/// warpgroup.
template <Element element_, int columns_>
struct StepSS {
  static constexpr Element element = element_;
  static constexpr int threads = 128, columns = columns_, depth = 128;
  using A = hopper::SharedTile<64, depth>;
  using B = hopper::SharedTile<columns, depth>;
  struct Arguments {
    const Chunk *a, *b;
    const float* c;
    float* d;  // a matrix per step
  };
  struct Shared {
    A a;
    B b;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    copy_in(&shared.a, args.a, A::bytes, threads);
    copy_in(&shared.b, args.b, B::bytes, threads);
    hopper::fence_async_shared();
    hopper::cta_sync();
    HOPPER_NO_UNROLL
    for (int step = 0; step < depth / 16; ++step) {
      const int panel = step / 4, within = 32 * (step % 4);
      hopper::Accumulator<columns> acc;
      read(acc, args.c);
      hopper::wgmma_fence();
      hopper::WgmmaSS<element, columns>::template issue<1>(
          acc.value, hopper::descriptor(hopper::shared_address(&shared.a) + panel * A::panel_bytes + within, 16, 1024),
          hopper::descriptor(hopper::shared_address(&shared.b) + panel * B::panel_bytes + within, 16, 1024));
      hopper::wgmma_commit();
      hopper::wgmma_wait<0>(acc);
      write(args.d + step * 64 * columns, acc);
    }
  }
};

TEST_P(Wgmma, EveryStepOfTheDepthAccumulates) {
  const auto test = [&]<class Kernel>(Kernel) {
    SCOPED_TRACE(testing::Message() << name(Kernel::element) << ", " << Kernel::columns << " columns");
    const Matrix a = operand_a(64, Kernel::depth, 3), b = integers(Kernel::columns, Kernel::depth, 8, 4);
    const Matrix c = integers(64, Kernel::columns, 1000, 5);
    Buffer<Chunk> a_image(tile_image(Kernel::element, a)), b_image(tile_image(Kernel::element, b));
    Buffer<float> c_values(floats(c)), d(std::size_t(64 * Kernel::columns * Kernel::depth / 16), 0.0f);
    launch<Kernel>({a_image.data(), b_image.data(), c_values.data(), d.data()});
    const std::vector<float> got = d.read();
    for (int step = 0; step < Kernel::depth / 16; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      Matrix a_step(64, 16), b_step(Kernel::columns, 16);
      for (int k = 0; k < 16; ++k) {
        for (int i = 0; i < 64; ++i) a_step(i, k) = a(i, 16 * step + k);
        for (int j = 0; j < Kernel::columns; ++j) b_step(j, k) = b(j, 16 * step + k);
      }
      const auto begin = got.begin() + step * 64 * Kernel::columns;
      expect_equal(std::vector<float>(begin, begin + 64 * Kernel::columns), product(a_step, b_step, true, c));
    }
  };
  test(StepSS<Element::f16, 80>{});
  test(StepSS<Element::bf16, 128>{});
}

struct RegisterArguments {
  const std::uint32_t* a;  // fragments() or fragments_e4m3()
  const Chunk* b;
  const float* c;
  float* d;
};

/// D by `issue`(D, A, B), A in registers; D begins as C. 128 threads.
template <int depth, int columns, bool f16_sums = false, class B>
HOPPER_FUNCTION void multiply_registers(B& b, const RegisterArguments& args, const auto& issue) {
  copy_in(&b, args.b, B::bytes, 128);
  hopper::fence_async_shared();
  hopper::cta_sync();
  hopper::OperandA<depth> a;
  const std::uint32_t* mine = args.a + rank() * (depth / 4);
  HOPPER_UNROLL
  for (int i = 0; i < depth / 4; ++i) a.value[i] = mine[i];
  SumOf<columns, f16_sums> acc;
  read(acc, args.c);
  issue(acc, a, b);
  hopper::wgmma_commit();
  hopper::wgmma_wait<0>(acc);
  write(args.d, acc);
}

/// D = C + A B by issue_ab, A in registers.
template <Element element_, int depth_, int columns_>
struct ProductRS {
  static constexpr Element element = element_;
  static constexpr int threads = 128, depth = depth_, columns = columns_;
  using B = hopper::SharedTile<depth, columns>;
  using Arguments = RegisterArguments;
  struct Shared {
    B b;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    multiply_registers<depth, columns>(shared.b, args,
                                       [](auto& d, const auto& a, const B& b) { hopper::issue_ab<element>(d, a, b); });
  }
};

TEST_P(Wgmma, ProductsOfARegisterOperand) {
  const auto test = [&]<class Kernel>(Kernel) {
    SCOPED_TRACE(testing::Message() << name(Kernel::element) << ", depth " << Kernel::depth << ", " << Kernel::columns
                                    << " columns");
    const Matrix a = operand_a(64, Kernel::depth, 6), b = integers(Kernel::depth, Kernel::columns, 8, 7);
    const Matrix c = integers(64, Kernel::columns, 1000, 8);
    Buffer<std::uint32_t> a_fragments(fragments(Kernel::element, a));
    Buffer<Chunk> b_image(tile_image(Kernel::element, b));
    Buffer<float> c_values(floats(c)), d(c.value.size(), 0.0f);
    launch<Kernel>({a_fragments.data(), b_image.data(), c_values.data(), d.data()});
    expect_equal(d.read(), product(a, b, false, c));
  };
  for_each_row([&]<int row>(std::integral_constant<int, row>) {
    constexpr kernels::ForwardConfig config = kernels::forward_rows[row].config;
    test(ProductRS<config.element, config.tile_kv, config.d_v>{});
  });
}

/// D = A B^T by issue_abt, A in registers, of e4m3, B being rows [first_row, first_row + columns) of a larger tile, of
/// which the others are NaN; `depth` counts pairs. What D held before must not matter.
template <int depth_, int columns_, int first_row_, bool f16_sums = false>
struct ProductRSOfE4m3 {
  static constexpr int threads = 128, depth = depth_, columns = columns_, first_row = first_row_;
  static constexpr int b_rows = first_row + columns + 8;
  using B = hopper::SharedTile<b_rows, depth>;
  using Arguments = RegisterArguments;
  struct Shared {
    B b;
  };
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    multiply_registers<depth, columns, f16_sums>(shared.b, args, [](auto& d, const auto& a, const B& b) {
      hopper::issue_abt<Element::e4m3>(d, a, b, first_row);
    });
  }
};

TEST_P(Wgmma, ProductsOfARegisterOperandOfE4m3) {
  const auto test = [&]<class Kernel>(Kernel) {
    SCOPED_TRACE(testing::Message() << "depth " << 2 * Kernel::depth << ", rows from " << Kernel::first_row << ", "
                                    << Kernel::columns << " columns");
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    const Matrix a = operand_a_e4m3(64, 2 * Kernel::depth, 6), b = integers(Kernel::columns, a.columns, 3, 7);
    Matrix tile(Kernel::b_rows, a.columns);
    for (int row = 0; row < tile.rows; ++row)
      for (int k = 0; k < tile.columns; ++k) {
        const int mine = row - Kernel::first_row;
        tile(row, k) = mine >= 0 && mine < Kernel::columns ? b(mine, k) : nan;
      }
    Buffer<std::uint32_t> a_fragments(fragments_e4m3(a));
    Buffer<Chunk> b_image(tile_image(Element::e4m3, tile));
    Buffer<float> c(std::size_t(64 * Kernel::columns), std::numeric_limits<float>::quiet_NaN());
    Buffer<float> d(std::size_t(64 * Kernel::columns), 0.0f);
    launch<Kernel>({a_fragments.data(), b_image.data(), c.data(), d.data()});
    expect_equal(d.read(), product(a, b, true, Matrix(64, Kernel::columns)));
  };
  test(ProductRSOfE4m3<64, 16, 0>{});
  test(ProductRSOfE4m3<64, 16, 8>{});
  test(ProductRSOfE4m3<64, 32, 96>{});
  test(ProductRSOfE4m3<64, 64, 64>{});
  test(ProductRSOfE4m3<64, 128, 0>{});
  test(ProductRSOfE4m3<64, 128, 128>{});
  test(ProductRSOfE4m3<16, 64, 16>{});
  test(ProductRSOfE4m3<48, 32, 32>{});
  test(ProductRSOfE4m3<64, 48, 48, true>{});
  test(ProductRSOfE4m3<64, 96, 96, true>{});
  test(ProductRSOfE4m3<64, 64, 64, true>{});
  test(ProductRSOfE4m3<64, 128, 128, true>{});
}

/// The dataflow of attention without its softmax: O = round(Q K0^T) V0 + round(Q K1^T) V1 for two warpgroups.
/// Everything comes and goes by TMA; S becomes P in registers; two groups are in flight at once.
template <Element element_>
struct Chain {
  static constexpr Element element = element_;
  static constexpr int threads = 256, rows = 128, keys = 80, d = 64, d_v = 128;
  using QTile = hopper::SharedTile<rows, d>;
  using KTile = hopper::SharedTile<keys, d>;
  using VTile = hopper::SharedTile<keys, d_v>;
  using OTile = hopper::SharedTile<rows, d_v>;
  struct Arguments {
    hopper::TensorMap q, k, v, o;
  };
  struct Shared {
    QTile q;
    KTile k[2];
    VTile v[2];
    OTile o;
    hopper::Mbarrier full;
  };
  HOPPER_FUNCTION static void pack(hopper::OperandA<keys>& p, const hopper::Accumulator<keys>& s) {
    HOPPER_UNROLL
    for (int i = 0; i < keys / 4; ++i) p.value[i] = hopper::pack2<element>(s.value[2 * i], s.value[2 * i + 1]);
  }
  HOPPER_FUNCTION static void run(Shared& shared, const Arguments& args) {
    const int first_row = 64 * hopper::warpgroup();
    if (rank() == 0) {
      shared.full.init(1);
      hopper::fence_barrier_init();
      shared.full.arrive_expect_bytes(QTile::bytes + 2 * KTile::bytes + 2 * VTile::bytes);
      hopper::load_tile(shared.q, args.q, {0, 0, 0, 0}, shared.full);
      for (int i = 0; i < 2; ++i) {
        hopper::load_tile(shared.k[i], args.k, {0, keys * i, 0, 0}, shared.full);
        hopper::load_tile(shared.v[i], args.v, {0, keys * i, 0, 0}, shared.full);
      }
    }
    hopper::cta_sync();
    shared.full.wait(0);

    hopper::Accumulator<keys> s;
    hopper::Accumulator<d_v> o{};
    hopper::OperandA<keys> p;
    hopper::issue_abt<element>(s, shared.q, first_row, shared.k[0]);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>(s);
    pack(p, s);
    hopper::issue_abt<element>(s, shared.q, first_row, shared.k[1]);
    hopper::wgmma_commit();
    hopper::issue_ab<element>(o, p, shared.v[0]);
    hopper::wgmma_commit();
    hopper::wgmma_wait<1>(s);
    hopper::wgmma_wait<0>(o);
    pack(p, s);
    hopper::issue_ab<element>(o, p, shared.v[1]);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>(o);

    const int warp_row = first_row + 16 * hopper::warp_of_warpgroup();
    HOPPER_UNROLL
    for (int column = 0; column < d_v; column += 16) {
      std::uint32_t fragment[4];
      HOPPER_UNROLL
      for (int i = 0; i < 4; ++i)
        fragment[i] = hopper::pack2<element>(o.value[column / 2 + 2 * i], o.value[column / 2 + 2 * i + 1]);
      hopper::store_matrix(shared.o, warp_row, column, fragment);
    }
    hopper::fence_async_shared();
    hopper::warp_sync();
    if (hopper::lane() == 0) {
      hopper::store_rows(args.o, {0, warp_row, 0, 0}, shared.o, warp_row);
      hopper::store_commit();
      hopper::store_wait_read<0>();
    }
  }
};

TEST_P(Wgmma, ProductsFeedEachOther) {
  const auto test = [&]<class Kernel>(Kernel) {
    SCOPED_TRACE(name(Kernel::element));
    // One row of Q, and one key, are outside: TMA fills with zero and clips.
    constexpr int rows = Kernel::rows - 1, all_keys = 2 * Kernel::keys - 1;
    const Matrix q = integers(rows, Kernel::d, 3, 9), k = integers(all_keys, Kernel::d, 3, 10),
                 v = integers(all_keys, Kernel::d_v, 2, 11);
    const auto bits = [](const Matrix& matrix) {
      std::vector<std::uint16_t> result;
      for (const double x : matrix.value) result.push_back(to_bits(Kernel::element, x));
      return result;
    };
    const auto map = [](std::uint16_t* memory, int map_rows, int features, int box_rows) {
      const std::uint64_t row_bytes = std::uint64_t(features) * 2;
      return encode({"T",
                     memory,
                     Kernel::element,
                     {std::uint64_t(features), std::uint64_t(map_rows), 1, 1},
                     {row_bytes, row_bytes, row_bytes},
                     64,
                     std::uint32_t(box_rows),
                     128});
    };
    Matrix s = product(q, k, true, Matrix(rows, all_keys));
    for (double& x : s.value) x = to_value(Kernel::element, to_bits(Kernel::element, x));
    const Matrix o = product(s, v, false, Matrix(rows, Kernel::d_v));

    Buffer<std::uint16_t> q_memory(bits(q)), k_memory(bits(k)), v_memory(bits(v));
    Buffer<std::uint16_t> o_memory(o.value.size() + 64, 0x7fff);  // a guard behind the last row
    launch<Kernel>(
        {map(q_memory.data(), rows, Kernel::d, Kernel::rows), map(k_memory.data(), all_keys, Kernel::d, Kernel::keys),
         map(v_memory.data(), all_keys, Kernel::d_v, Kernel::keys), map(o_memory.data(), rows, Kernel::d_v, 16)});
    std::vector<std::uint16_t> expected = bits(o);
    expected.insert(expected.end(), 64, 0x7fff);
    EXPECT_EQ(o_memory.read(), expected);
  };
  test(Chain<Element::f16>{});
  test(Chain<Element::bf16>{});
}

}  // namespace fa3::hopper_test
