// Host side of the tests: elements of 16 and 8 bits, tiles as bytes, random numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "dtype.hpp"
#include "machine.hpp"

namespace fa3::hopper_test {

inline const char* name(Element element) {
  return element == Element::f16 ? "f16" : element == Element::bf16 ? "bf16" : "e4m3";
}

inline std::uint16_t to_bits(Element element, double value) {
  if (element == Element::e4m3) return from_float<E4m3>(float(value)).bits;
  return element == Element::f16 ? from_float<Half>(float(value)).bits : from_float<Bfloat16>(float(value)).bits;
}
inline float to_value(Element element, std::uint16_t bits) {
  return element == Element::f16 ? to_float(Half{bits}) : to_float(Bfloat16{bits});
}
inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// Row-major matrix of the numbers a 16-bit operand holds.
struct Matrix {
  int rows, columns;
  std::vector<double> value;

  Matrix(int rows_, int columns_) : rows(rows_), columns(columns_), value(std::size_t(rows_) * columns_) {}
  double& operator()(int row, int column) { return value[std::size_t(row) * columns + column]; }
  double operator()(int row, int column) const { return value[std::size_t(row) * columns + column]; }
};

/// Integers from -range to range: products and sums of thousands of them are exact in f32, in any order.
inline Matrix integers(int rows, int columns, int range, unsigned seed) {
  Matrix matrix(rows, columns);
  std::mt19937 random(seed);
  for (double& x : matrix.value) x = double(random() % unsigned(2 * range + 1)) - range;
  return matrix;
}

/// Where the swizzle puts the byte at `offset` of an area aligned to 8 * swizzle_bytes: address bits 4.. are XORed with
/// bits 7.. .
inline std::size_t swizzle(std::size_t offset, int swizzle_bytes) {
  return offset ^ ((offset >> 7) % std::size_t(swizzle_bytes / 16) << 4);
}

/// The bytes of a SharedTile<rows, columns> that holds bits(row, column), and zeros or `padding` in its padding.
inline std::vector<Chunk> tile_image(int rows, int columns, const std::function<std::uint16_t(int, int)>& bits,
                                     Chunk padding = {}) {
  std::vector<Chunk> image(std::size_t(rows) * hopper::stored_columns(columns) / 8, padding);
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) {
      const std::uint16_t element = bits(row, column);
      const std::size_t panel = std::size_t(column / 64) * rows * 128;
      std::memcpy(
          reinterpret_cast<char*>(image.data()) + panel + swizzle(std::size_t(row * 128 + column % 64 * 2), 128),
          &element, 2);
    }
  return image;
}
/// An operand; its padding is NaN, because no product may read it. Of e4m3 two elements are a column of the tile.
inline std::vector<Chunk> tile_image(Element element, const Matrix& matrix) {
  const int packed = hopper::per_16_bits(element);
  return tile_image(matrix.rows, matrix.columns / packed,
                    [&](int row, int column) {
                      std::uint16_t bits = to_bits(element, matrix(row, packed * column));
                      if (packed == 2) bits = std::uint16_t(bits | to_bits(element, matrix(row, 2 * column + 1)) << 8);
                      return bits;
                    },
                    {0x7fff7fff, 0x7fff7fff, 0x7fff7fff, 0x7fff7fff});
}

/// Arbitrary, different for different i.
inline std::uint16_t pattern(std::size_t i) { return std::uint16_t(i * 40503u + 77u); }

inline void expect_equal(const std::vector<Chunk>& got, const std::vector<Chunk>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    for (int word = 0; word < 4; ++word)
      ASSERT_EQ(got[i].word[word], expected[i].word[word]) << "at byte " << 16 * i + std::size_t(4 * word);
}

}  // namespace fa3::hopper_test
