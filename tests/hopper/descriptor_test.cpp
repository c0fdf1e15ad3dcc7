// How the simulated tensor core decodes matrix descriptors, beyond the one layout the kernels use: all swizzles,
// strides with gaps, starts inside the swizzle's atom, all shapes of B.
#include <string>

#include "values.hpp"

namespace fa3::hopper_test {
namespace {

using simulator::Cluster;

/// Bits 62-63 of a descriptor. PTX ISA, "Matrix Descriptor Format".
std::uint64_t swizzle_mode(int swizzle_bytes) { return swizzle_bytes == 128 ? 1 : swizzle_bytes == 64 ? 2 : 3; }

std::uint64_t raw_descriptor(std::uint32_t address, int leading_bytes, int stride_bytes, int swizzle_bytes) {
  return (address >> 4 & 0x3fffu) | std::uint64_t(leading_bytes >> 4) << 16 | std::uint64_t(stride_bytes >> 4) << 32 |
         swizzle_mode(swizzle_bytes) << 62;
}

/// An operand in shared memory. The layout is made of atoms: 8 rows of swizzle_bytes, in which 16-byte chunk c of row r
/// is at c ^ (r * swizzle_bytes / 128) modulo the number of chunks. Atoms follow each other at `stride` along the rows
/// and at `leading` along the chunks.
struct Layout {
  int swizzle_bytes, leading, stride;
  std::size_t offset(int row, int column) const {
    const int chunks = swizzle_bytes / 16, in_atom = row % 8, chunk = column / 8 % chunks;
    const int swizzled = chunk ^ (in_atom * swizzle_bytes / 128);
    return std::size_t(column / (8 * chunks) * leading + row / 8 * stride + in_atom * swizzle_bytes + swizzled * 16 +
                       column % 8 * 2);
  }
  void store(std::byte* base, int row, int column, std::uint16_t bits) const {
    std::memcpy(base + offset(row, column), &bits, 2);
  }
};

/// D = C + A B on 128 simulated threads, with B (and A, if `fragment` is empty) in shared memory that `fill` has
/// prepared.
std::vector<float> run(Element element, int columns, const Matrix& c, const std::function<void(std::byte*)>& fill,
                       std::uint64_t a, const std::vector<std::uint32_t>& fragment, std::uint64_t b,
                       std::size_t shared_bytes) {
  std::vector<float> d(std::size_t(64 * columns));
  Cluster cta({simulator::Completion::lazy}, 0, 1, 128, shared_bytes);
  fill(cta.shared());
  cta.run([&] {
    const int t = cta.thread();
    float acc[128];
    const auto at = [&](int i) {
      return std::size_t((16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2)) * columns + 8 * (i / 4) + 2 * (t % 4) + i % 2);
    };
    for (int i = 0; i < columns / 2; ++i) acc[i] = float(c.value[at(i)]);
    cta.wgmma_fence();
    cta.wgmma(element, columns, true, acc, false, a, fragment.empty() ? nullptr : &fragment[std::size_t(4 * t)], b,
              !fragment.empty(), false);
    cta.wgmma_commit();
    cta.wgmma_wait(0);
    cta.wgmma_readable(acc, columns, 0);
    for (int i = 0; i < columns / 2; ++i) d[at(i)] = acc[i];
  });
  return d;
}

void expect_product(const std::vector<float>& got, const Matrix& a, const Matrix& b, const Matrix& c) {
  for (int i = 0; i < c.rows; ++i)
    for (int j = 0; j < c.columns; ++j) {
      double expected = c(i, j);
      for (int k = 0; k < 16; ++k) expected += a(i, k) * b(k, j);
      ASSERT_EQ(got[std::size_t(i * c.columns + j)], expected) << "row " << i << ", column " << j;
    }
}

constexpr std::uint32_t shared_base = 1024;  // address of the plan's first byte in the simulated shared window

TEST(Descriptors, DepthContiguous) {
  for (const int swizzle_bytes : {32, 64, 128})
    for (const int columns : {8, 80, 128, 256})
      for (const int gap : {0, 8})  // atoms of padding after each group of eight rows
        for (int start = 0; start < swizzle_bytes; start += 32) {
          SCOPED_TRACE(testing::Message()
                       << "swizzle " << swizzle_bytes << ", N " << columns << ", gap " << gap << ", start " << start);
          const Layout layout{swizzle_bytes, 0, 8 * swizzle_bytes * (1 + gap)};
          const Matrix a = integers(64, 16, 8, 1), b = integers(16, columns, 8, 2), c = integers(64, columns, 100, 3);
          const std::size_t a_bytes = std::size_t(8 * layout.stride),
                            b_bytes = std::size_t(columns / 8 * layout.stride);
          const auto fill = [&](std::byte* shared) {
            for (int k = 0; k < 16; ++k) {
              for (int i = 0; i < 64; ++i) layout.store(shared, i, start / 2 + k, to_bits(Element::f16, a(i, k)));
              for (int j = 0; j < columns; ++j)
                layout.store(shared + a_bytes, j, start / 2 + k, to_bits(Element::f16, b(k, j)));
            }
          };
          const std::uint32_t a_address = shared_base + std::uint32_t(start),
                              b_address = a_address + std::uint32_t(a_bytes);
          expect_product(
              run(Element::f16, columns, c, fill, raw_descriptor(a_address, 16, layout.stride, swizzle_bytes), {},
                  raw_descriptor(b_address, 16, layout.stride, swizzle_bytes), a_bytes + b_bytes),
              a, b, c);
        }
}

TEST(Descriptors, ColumnsContiguous) {
  for (const int swizzle_bytes : {32, 64, 128})
    for (const int columns : {8, 64, 96, 128, 256})
      for (const bool stride_first : {true, false})  // which of the two steps between atoms is the small one
        for (const int first : {0, 16}) {            // first row of B
          SCOPED_TRACE(testing::Message() << "swizzle " << swizzle_bytes << ", N " << columns << ", stride first "
                                          << stride_first << ", row " << first);
          const int atom = 8 * swizzle_bytes, panels = (columns + swizzle_bytes / 2 - 1) / (swizzle_bytes / 2);
          const Layout layout =
              stride_first ? Layout{swizzle_bytes, 4 * atom, atom} : Layout{swizzle_bytes, atom, panels * atom};
          const Matrix a = integers(64, 16, 8, 4), b = integers(16, columns, 8, 5), c = integers(64, columns, 100, 6);
          const auto fill = [&](std::byte* shared) {
            for (int k = 0; k < 16; ++k)
              for (int j = 0; j < columns; ++j) layout.store(shared, first + k, j, to_bits(Element::bf16, b(k, j)));
          };
          std::vector<std::uint32_t> fragment;
          for (int t = 0; t < 128; ++t)
            for (int i = 0; i < 4; ++i) {
              const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i % 2), k = 2 * (t % 4) + 8 * (i / 2);
              fragment.push_back(to_bits(Element::bf16, a(row, k)) |
                                 std::uint32_t(to_bits(Element::bf16, a(row, k + 1))) << 16);
            }
          const std::uint32_t address = shared_base + std::uint32_t(first / 8 * layout.stride);
          expect_product(run(Element::bf16, columns, c, fill, 0, fragment,
                             raw_descriptor(address, layout.leading, layout.stride, swizzle_bytes),
                             std::size_t(panels * 4 * atom)),
                         a, b, c);
        }
}

TEST(Descriptors, TheLayersDescriptorIsTheDocumentedOne) {
  for (const int leading : {16, 10240, 16384, 32768})
    EXPECT_EQ(hopper::descriptor(0x12340, leading, 1024), raw_descriptor(0x12340, leading, 1024, 128));
}

}  // namespace
}  // namespace fa3::hopper_test
