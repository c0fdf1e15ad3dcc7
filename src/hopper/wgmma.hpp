// Matrix products of a warpgroup on the tensor core, asynchronous. PTX ISA, "Asynchronous warpgroup level matrix
// instructions".
#pragma once

#include <cstdint>

#include "hopper/address.hpp"
#include "hopper/backend.hpp"
#include "hopper/element.hpp"
#include "hopper/registers.hpp"
#include "hopper/shared_tile.hpp"

namespace fa3::hopper {

/// f32 accumulator of 64 x columns, spread over the warpgroup's 128 threads. Thread t holds rows
/// 16 (t / 32) + (t % 32) / 4 + 8 r (r = 0, 1) and columns 8 j + 2 (t % 4) + e (e = 0, 1) as value[4 j + 2 r + e].
template <int columns_>
struct Accumulator {
  static constexpr int columns = columns_;
  float value[columns / 2];
};

/// The same in f16, in which products of e4m3 may be added, in half of the registers: the two columns of each j and r
/// as value[2 j + r], e = 0 in bits 0-15.
template <int columns_>
struct HalfAccumulator {
  static constexpr int columns = columns_;
  std::uint32_t value[columns / 4];
};

/// 16-bit A operand of 64 x columns in registers; four registers per k16 step in the order of store_matrix. Of e4m3 it
/// has 64 x 2 columns: four registers per k32 step, the four elements of thread t in register 2 h + r being row
/// 16 (t / 32) + (t % 32) / 4 + 8 r, columns 16 h + 4 (t % 4) + 0..3 of the step.
template <int columns_>
struct OperandA {
  static constexpr int columns = columns_;
  std::uint32_t value[columns / 4];
};

/// Along which dimension of a product an operand in shared memory is contiguous: along its depth, or across it, along
/// the rows (A) or columns (B) of the result; the instruction then transposes it.
enum class Major { depth = 0, across = 1 };

inline namespace HOPPER_BACKEND {

/// Shared-memory matrix descriptor, 128-byte swizzle. PTX ISA, "Matrix Descriptor Format": bits 0-13 address / 16,
/// 16-29 leading offset / 16, 32-45 stride offset / 16, 62-63 swizzle mode (1: 128 bytes).
/// `stride_bytes`: from one group of eight rows to the next. `leading_bytes`: from one panel of 64 columns to the next,
/// used only where the operand's contiguous dimension is not the product's depth (V).
HOPPER_FUNCTION std::uint64_t descriptor(std::uint32_t address, int leading_bytes, int stride_bytes) {
  return std::uint64_t((address & 0x3ffffu) >> 4) | std::uint64_t(leading_bytes >> 4) << 16 |
         std::uint64_t(stride_bytes >> 4) << 32 | std::uint64_t(1) << 62;
}

/// The descriptor of the same matrix, `bytes` further on. Addresses end below 2^18, so nothing carries out of the
/// field, and one 32-bit addition serves.
HOPPER_FUNCTION std::uint64_t advance(std::uint64_t descriptor, int bytes) {
  const std::uint32_t low = std::uint32_t(descriptor) + std::uint32_t(bytes >> 4);
  return (descriptor >> 32) << 32 | low;
}

/// One m64nNk16 instruction, of e4m3 m64nNk32, N = columns. WgmmaSS<element, columns>::issue<accumulate, b_major,
/// a_major>(d, a, b): D (+)= A B, both operands by descriptor. WgmmaRS<element, columns>::issue(d, a, b): D += A B, A
/// in four registers, B by descriptor, contiguous across the depth. e4m3: issue<accumulate>(d, a, b) in both forms, the
/// operands in shared memory contiguous along the depth, as they must be. `d` is an accumulator's value array, of e4m3
/// also a HalfAccumulator's.
template <Element element, int columns>
struct WgmmaSS;
template <Element element, int columns>
struct WgmmaRS;

/// Orders earlier register accesses before the products; needed before the first of a group.
HOPPER_FUNCTION void wgmma_fence();
/// Closes the group of products issued since the last commit.
HOPPER_FUNCTION void wgmma_commit();
/// Waits until at most `pending` groups are in flight; the accumulators named may then be read.
template <int pending, class... Accumulators>
HOPPER_FUNCTION void wgmma_wait(Accumulators&... readable);

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper

#include HOPPER_BODY(wgmma.hpp)

namespace fa3::hopper {
inline namespace HOPPER_BACKEND {

/// Where the descriptors of a product's steps are computed. Instructions take them from uniform registers. ptxas uses
/// those from the start if it sees that the tiles' addresses are the same in the whole warp; in a long loop it may not
/// see it, and copy each one over, which `uniform` prevents at the price of an instruction for each operand.
enum class Descriptors { as_ptxas_likes, uniform };

template <Descriptors where>
HOPPER_FUNCTION std::uint64_t descriptor_in(std::uint32_t address, int leading_bytes, int stride_bytes) {
  if constexpr (where == Descriptors::uniform) address = std::uint32_t(in_uniform_register(int(address)));
  return descriptor(address, leading_bytes, stride_bytes);
}

/// Issues acc = A B^T, or with `add` acc += A B^T, over rows [first_row, first_row + 64) of `a` [.. x depth] and all of
/// `b` [columns x depth]. Everything named is in use until a wgmma_wait that retires the group.
template <Element element, Descriptors where = Descriptors::as_ptxas_likes, bool add = false, int a_rows, int depth,
          int columns, template <int> class AccumulatorOf>
HOPPER_FUNCTION void issue_abt(AccumulatorOf<columns>& acc, const SharedTile<a_rows, depth>& a, int first_row,
                               const SharedTile<columns, depth>& b) {
  using A = SharedTile<a_rows, depth>;
  using B = SharedTile<columns, depth>;
  constexpr int eight_rows = 8 * A::row_bytes;
  const std::uint64_t a_begin = descriptor_in<where>(shared_address(&a) + first_row * A::row_bytes, 16, eight_rows);
  const std::uint64_t b_begin = descriptor_in<where>(shared_address(&b), 16, eight_rows);
  wgmma_fence();
  HOPPER_UNROLL
  for (int k = 0; k < depth; k += 16) {
    const int panel = k / A::panel_columns, within = 2 * (k % A::panel_columns);
    const std::uint64_t a_matrix = advance(a_begin, panel * A::panel_bytes + within);
    const std::uint64_t b_matrix = advance(b_begin, panel * B::panel_bytes + within);
    if (k == 0 && !add) {
      WgmmaSS<element, columns>::template issue<0>(acc.value, a_matrix, b_matrix);
    } else {
      WgmmaSS<element, columns>::template issue<1>(acc.value, a_matrix, b_matrix);
    }
  }
}

/// Issues acc = A B^T with A [64 x depth] in registers and rows [first_row, first_row + columns) of `b` [.. x depth];
/// of e4m3, `depth` counting pairs of elements.
template <Element element, int depth, int columns, int b_rows, template <int> class AccumulatorOf>
HOPPER_FUNCTION void issue_abt(AccumulatorOf<columns>& acc, const OperandA<depth>& a,
                               const SharedTile<b_rows, depth>& b, int first_row) {
  using B = SharedTile<b_rows, depth>;
  static_assert(element == Element::e4m3 && B::panels == 1);
  const std::uint64_t b_begin = descriptor(shared_address(&b) + first_row * B::row_bytes, 16, 8 * B::row_bytes);
  wgmma_fence();
  HOPPER_UNROLL
  for (int k = 0; k < depth; k += 16) {
    if (k == 0) {
      WgmmaRS<element, columns>::template issue<0>(acc.value, a.value, b_begin);
    } else {
      WgmmaRS<element, columns>::template issue<1>(acc.value, a.value + k / 4, advance(b_begin, 2 * k));
    }
  }
}

/// Issues acc += A B with A [64 x depth] in registers and `b` [depth x columns].
template <Element element, Descriptors where = Descriptors::as_ptxas_likes, int depth, int columns>
HOPPER_FUNCTION void issue_ab(Accumulator<columns>& acc, const OperandA<depth>& a,
                              const SharedTile<depth, columns>& b) {
  using B = SharedTile<depth, columns>;
  const std::uint64_t b_begin = descriptor_in<where>(shared_address(&b), B::panel_bytes, 8 * B::row_bytes);
  wgmma_fence();
  HOPPER_UNROLL
  for (int k = 0; k < depth; k += 16) {
    WgmmaRS<element, columns>::issue(acc.value, a.value + k / 4, advance(b_begin, k * B::row_bytes));
  }
}

/// Issues acc = A B, or acc += A B, with A [64 x depth] and B [depth x columns] by the descriptors of their first step;
/// a_step(k), b_step(k): how many bytes further that of depth k is.
template <Element element, bool add, Major a_major, int depth, int columns>
HOPPER_FUNCTION void issue_steps(Accumulator<columns>& acc, std::uint64_t a_begin, const auto& a_step,
                                 std::uint64_t b_begin, const auto& b_step) {
  wgmma_fence();
  HOPPER_UNROLL
  for (int k = 0; k < depth; k += 16) {
    const std::uint64_t a_matrix = advance(a_begin, a_step(k)), b_matrix = advance(b_begin, b_step(k));
    if (k == 0 && !add) {
      WgmmaSS<element, columns>::template issue<0, Major::across, a_major>(acc.value, a_matrix, b_matrix);
    } else {
      WgmmaSS<element, columns>::template issue<1, Major::across, a_major>(acc.value, a_matrix, b_matrix);
    }
  }
}

/// Issues acc = A B, or with `add` acc += A B, over rows [first_row, first_row + 64) of `a` [.. x depth] and columns
/// [first_column, first_column + columns) of `b` [depth x ..], both in shared memory. first_column: a multiple of 64,
/// the begin of a panel.
template <Element element, bool add = false, int a_rows, int depth, int b_columns, int columns>
HOPPER_FUNCTION void issue_ab(Accumulator<columns>& acc, const SharedTile<a_rows, depth>& a, int first_row,
                              const SharedTile<depth, b_columns>& b, int first_column) {
  using A = SharedTile<a_rows, depth>;
  using B = SharedTile<depth, b_columns>;
  issue_steps<element, add, Major::depth, depth>(
      acc, descriptor_in<Descriptors::uniform>(shared_address(&a) + first_row * A::row_bytes, 16, 8 * A::row_bytes),
      [](int k) { return k / A::panel_columns * A::panel_bytes + 2 * (k % A::panel_columns); },
      descriptor_in<Descriptors::uniform>(shared_address(&b) + first_column / B::panel_columns * B::panel_bytes,
                                          B::panel_bytes, 8 * B::row_bytes),
      [](int k) { return k * B::row_bytes; });
}

/// Issues acc = A^T B with `a` [depth x 64] and columns [first_column, first_column + columns) of `b` [depth x ..],
/// both in shared memory; first_column as in issue_ab.
template <Element element, int depth, int b_columns, int columns>
HOPPER_FUNCTION void issue_atb(Accumulator<columns>& acc, const SharedTile<depth, 64>& a,
                               const SharedTile<depth, b_columns>& b, int first_column) {
  using A = SharedTile<depth, 64>;
  using B = SharedTile<depth, b_columns>;
  issue_steps<element, false, Major::across, depth>(
      acc, descriptor_in<Descriptors::uniform>(shared_address(&a), A::panel_bytes, 8 * A::row_bytes),
      [](int k) { return k * A::row_bytes; },
      descriptor_in<Descriptors::uniform>(shared_address(&b) + first_column / B::panel_columns * B::panel_bytes,
                                          B::panel_bytes, 8 * B::row_bytes),
      [](int k) { return k * B::row_bytes; });
}

/// Issues acc = A^T B + C^T D as one product: both as in issue_atb, the depth of both together.
template <Element element, int depth, int b_columns, int d_columns, int columns>
HOPPER_FUNCTION void issue_atb(Accumulator<columns>& acc, const SharedTile<depth, 64>& a,
                               const SharedTile<depth, b_columns>& b, int first_column, const SharedTile<depth, 64>& c,
                               const SharedTile<depth, d_columns>& d, int first_column_of_d) {
  using A = SharedTile<depth, 64>;
  using B = SharedTile<depth, b_columns>;
  const auto begin = [](const auto& tile, int column) {
    return descriptor_in<Descriptors::uniform>(shared_address(&tile) + column / B::panel_columns * B::panel_bytes,
                                               B::panel_bytes, 8 * B::row_bytes);
  };
  const std::uint64_t a_begin = begin(a, 0), b_begin = begin(b, first_column), c_begin = begin(c, 0),
                      d_begin = begin(d, first_column_of_d);
  wgmma_fence();
  HOPPER_UNROLL
  for (int k = 0; k < 2 * depth; k += 16) {
    const int step = k % depth * A::row_bytes;
    const std::uint64_t left = advance(k < depth ? a_begin : c_begin, step),
                        right = advance(k < depth ? b_begin : d_begin, step);
    if (k == 0) {
      WgmmaSS<element, columns>::template issue<0, Major::across, Major::across>(acc.value, left, right);
    } else {
      WgmmaSS<element, columns>::template issue<1, Major::across, Major::across>(acc.value, left, right);
    }
  }
}

}  // namespace HOPPER_BACKEND
}  // namespace fa3::hopper
