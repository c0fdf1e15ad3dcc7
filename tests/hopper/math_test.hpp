// exp2, log2, maximum, reductions over a quad, exchange and maximum in a warp, conversion to 16 and 8 bits, permutation
// of bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <limits>

#include "attention/forward_fp8.hpp"
#include "values.hpp"

namespace fa3::hopper_test {

struct Functions {
  static constexpr int threads = 128;
  struct Result {
    float exp2, log2, maximum, quad_max, quad_sum;
    std::uint32_t f16, bf16;
  };
  struct Arguments {
    const float *x, *y;
    int count;  // a multiple of 4: whole quads
    Result* result;
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    const int me = rank();
    for (int first = 0; first < args.count; first += threads) {
      // Every lane takes part in the reductions, those beyond the end with some quad's values.
      const bool mine = first + me < args.count;
      const int i = mine ? first + me : me % 4;
      const float x = args.x[i], y = args.y[i];
      const Result result{hopper::exp2(x),
                          hopper::log2(x),
                          hopper::maximum(x, y),
                          hopper::quad_max(x),
                          hopper::quad_sum(x),
                          hopper::pack2<Element::f16>(x, y),
                          hopper::pack2<Element::bf16>(x, y)};
      if (mine) args.result[i] = result;
    }
  }
};

/// Pairs (i, 65535 - i) of all elements.
template <Element element>
struct Unpack {
  static constexpr int threads = 128;
  struct Arguments {
    float* value;  // pairs
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    for (std::uint32_t i = std::uint32_t(rank()); i < 65536; i += threads)
      hopper::unpack2<element>(i | (65535 - i) << 16, args.value[2 * i], args.value[2 * i + 1]);
  }
};

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float smallest_normal = 0x1p-126f;

class Math : public MachineTest {
 protected:
  std::vector<Functions::Result> results(std::vector<float> x, std::vector<float> y) {
    const std::size_t count = x.size();
    x.resize((count + 3) / 4 * 4);
    y.resize(x.size());
    Buffer<float> xs(x), ys(y);
    Buffer<Functions::Result> result(x.size(), {});
    launch<Functions>({xs.data(), ys.data(), int(x.size()), result.data()});
    std::vector<Functions::Result> got = result.read();
    got.resize(count);
    return got;
  }
};
INSTANTIATE_TEST_SUITE_P(, Math, modes(), ModeName());

TEST_P(Math, Unpack2IsExact) {
  const auto test = [&]<class Kernel>(Kernel, Element element) {
    Buffer<float> value(2 * 65536, 0.0f);
    launch<Kernel>({value.data()});
    const std::vector<float> got = value.read();
    for (unsigned i = 0; i < 65536; ++i)
      for (unsigned half = 0; half < 2; ++half)
        ASSERT_TRUE(same(got[2 * i + half], to_value(element, std::uint16_t(half ? 65535 - i : i)))) << i;
  };
  test(Unpack<Element::f16>{}, Element::f16);
  test(Unpack<Element::bf16>{}, Element::bf16);
}

TEST_P(Math, Exp2AndLog2StayWithinTheirBounds) {
  std::vector<float> x = {-infinity,
                          -1000,
                          -150,
                          -149,
                          -127.5f,
                          -126.25f,
                          -126,
                          -125.99f,
                          -1,
                          -0.0f,
                          0,
                          0x1p-130f,
                          -0x1p-140f,
                          1,
                          127,
                          127.99999f,
                          128,
                          1000,
                          infinity,
                          not_a_number,
                          0x1p-126f,
                          0x1.fffffep127f,
                          2,
                          0.5f,
                          0x1.fffffep-1f,
                          0x1.000002p0f};
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const float unit = float(random()) * 0x1p-32f;
    x.push_back(i % 2 ? 254 * unit - 126 : 4 * unit - 2);
    x.push_back(std::ldexp(1 + unit, int(random() % 250) - 125));
  }
  const std::vector<Functions::Result> got = results(x, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "x = " << x[i]);
    const double exact = std::exp2(double(x[i]));
    if (exact >= 0x1p128 || std::isnan(exact) || exact == 0) {
      EXPECT_TRUE(same(got[i].exp2, float(exact))) << got[i].exp2;
    } else {  // a result below the normal numbers may be flushed to 0
      EXPECT_NEAR(got[i].exp2, exact, exact < smallest_normal ? exact : exact * 0x1p-22);
    }
    const double log = std::log2(double(x[i]));
    if (std::abs(x[i]) > 0 && std::abs(x[i]) < smallest_normal) {  // may count as 0
      EXPECT_TRUE(got[i].log2 == -infinity || same(got[i].log2, float(log))) << got[i].log2;
    } else if (x[i] > 0 && x[i] < infinity) {
      EXPECT_NEAR(got[i].log2, log, 0x1p-22 * (x[i] > 0.5f && x[i] < 2 ? 1 : std::abs(log)));
    } else {
      EXPECT_TRUE(same(got[i].log2, log)) << got[i].log2;
    }
  }
}

TEST_P(Math, MaximumAndQuadMaximumIgnoreNaN) {
  const float values[] = {-infinity, -3, -0x1p-140f, 0, 2.5f, infinity, not_a_number};
  std::vector<float> x, y;
  for (const float a : values)
    for (const float b : values)
      for (const float c : values) {
        const float quad[4] = {a, b, -3, c};
        for (int i = 0; i < 4; ++i) {
          x.push_back(quad[i]);
          y.push_back(quad[(i + 1) % 4]);
        }
      }
  x.insert(x.end(), 4, not_a_number);
  y.insert(y.end(), 4, not_a_number);
  const std::vector<Functions::Result> got = results(x, y);
  const auto larger = [](float a, float b) { return std::isnan(a) ? b : std::isnan(b) ? a : a > b ? a : b; };
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(same(got[i].maximum, larger(x[i], y[i]))) << x[i] << ", " << y[i] << ": " << got[i].maximum;
    const float* quad = &x[i / 4 * 4];
    const float expected = larger(larger(quad[0], quad[1]), larger(quad[2], quad[3]));
    ASSERT_TRUE(same(got[i].quad_max, expected)) << "quad " << i / 4 << ", thread " << i % 4 << ": " << got[i].quad_max;
  }
}

TEST_P(Math, MaximumIgnoresSignallingNaN) {
  const float signalling = std::numeric_limits<float>::signaling_NaN();
  const std::vector<Functions::Result> got = results({signalling, 2, -1, 0}, {1, signalling, signalling, signalling});
  const float expected[] = {1, 2, -1, 0};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got[std::size_t(i)].maximum, expected[i]);
}

TEST_P(Math, QuadSumAddsFourThreads) {
  std::vector<float> x;
  for (const double value : integers(100, 4, 1000, 2).value) x.push_back(float(value));
  const float special[][4] = {
      {1, -infinity, 2, 3}, {infinity, 0, 0, -infinity}, {0, 0, not_a_number, 0}, {infinity, infinity, 1, 1}};
  for (const auto& quad : special) x.insert(x.end(), quad, quad + 4);
  const std::vector<Functions::Result> got = results(x, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float* quad = &x[i / 4 * 4];
    ASSERT_TRUE(same(got[i].quad_sum, double(quad[0]) + quad[1] + quad[2] + quad[3]))
        << "quad " << i / 4 << ": " << got[i].quad_sum;
  }
}

/// The nearest 16-bit number by exhaustive search, ties to the even one; what rounds beyond the largest becomes
/// infinite.
inline std::uint16_t nearest(Element element, double x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const std::uint16_t infinite = element == Element::f16 ? 0x7c00 : 0x7f80;
  const double magnitude = std::abs(x);
  // The values grow with the bits: the first that is not below x, and the one before. Infinity stands where the next
  // number would be.
  const auto value = [&](std::uint16_t bits) {
    return bits < infinite ? double(to_value(element, bits)) : element == Element::f16 ? 0x1p16 : 0x1p128;
  };
  std::uint16_t above = 0;
  while (above < infinite && value(above) < magnitude) ++above;
  if (above == 0 || value(above) <= magnitude) return sign | above;
  const std::uint16_t below = std::uint16_t(above - 1);
  const double to_above = value(above) - magnitude, to_below = magnitude - value(below);
  return sign | (to_above < to_below || (to_above == to_below && above % 2 == 0) ? above : below);
}

TEST_P(Math, Pack2RoundsToNearestEven) {
  for (const Element element : {Element::f16, Element::bf16}) {
    SCOPED_TRACE(name(element));
    std::vector<float> x = {0.0f,       -0.0f,       infinity,        -infinity,        65504,
                            65519.996f, 65520,       -65536,          3.3895314e38f,    0x1.fffffep127f,
                            0x1p-24f,   0x1p-25f,    0x1.000002p-25f, 0x1p-26f,         0x1p-133f,
                            0x1p-134f,  0x1.8p-134f, 0x1p-149f,       -0x1.fffffep-127f};
    std::mt19937 random(3);
    for (int i = 0; i < 60; ++i) {  // a tie, and its neighbours
      const auto bits = std::uint16_t(i < 8 ? i : random() % (element == Element::f16 ? 0x7bffu : 0x7f7fu));
      const float tie = float((double(to_value(element, bits)) + to_value(element, std::uint16_t(bits + 1))) / 2);
      for (const float y : {tie, std::nextafter(tie, infinity), std::nextafter(tie, 0.0f), -tie}) x.push_back(y);
    }
    std::vector<float> high(x.rbegin(), x.rend());
    const std::vector<Functions::Result> got = results(x, high);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint32_t packed = element == Element::f16 ? got[i].f16 : got[i].bf16;
      ASSERT_EQ(packed & 0xffff, nearest(element, x[i])) << "low " << x[i];
      ASSERT_EQ(packed >> 16, nearest(element, high[i])) << "high " << high[i];
    }
    const Functions::Result nan = results({not_a_number, 1, 1, 1}, {1, not_a_number, 1, 1})[0];
    const std::uint32_t packed = element == Element::f16 ? nan.f16 : nan.bf16;
    EXPECT_TRUE(std::isnan(to_value(element, std::uint16_t(packed))));
    EXPECT_EQ(packed >> 16, to_bits(element, 1));
  }
}

/// Of every float of a list, by groups of four.
struct ToE4m3 {
  static constexpr int threads = 128;
  struct Arguments {
    const float* value;
    int count;  // of groups
    std::uint32_t* packed;
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    for (int i = rank(); i < args.count; i += threads) {
      const float* const four = args.value + 4 * i;
      args.packed[i] = hopper::pack4_e4m3(four[0], four[1], four[2], four[3]);
    }
  }
};

// At, and next to, every boundary between two codes.
TEST_P(Math, Pack4E4m3RoundsToNearestEvenAndSaturates) {
  std::vector<float> values = {infinity, not_a_number, 448, 464, 465, 1e30f, 0, 0x1p-149f, 0x1p-10f, 0x1.8p-10f};
  for (int code = 0; code < 0x7e; ++code) {
    const float low = to_float(E4m3{std::uint8_t(code)}), high = to_float(E4m3{std::uint8_t(code + 1)});
    const float middle = (low + high) / 2;  // exact
    for (const float x : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 500.0f)})
      values.push_back(x);
  }
  for (std::size_t i = 0, count = values.size(); i < count; ++i) values.push_back(-values[i]);
  while (values.size() % 4 != 0) values.push_back(1);
  Buffer<float> value(values);
  Buffer<std::uint32_t> packed(values.size() / 4, 0u);
  launch<ToE4m3>({value.data(), int(values.size() / 4), packed.data()});
  const std::vector<std::uint32_t> got = packed.read();
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(got[i / 4] >> 8 * (i % 4) & 0xff, from_float<E4m3>(values[i]).bits) << values[i];
}

/// Of pairs of f16.
struct PairFunctions {
  static constexpr int threads = 128;
  struct Result {
    std::uint32_t fma, sum, maximum, exp2, e4m3, clamped;
  };
  struct Arguments {
    const std::uint32_t *a, *b, *c;
    int count;
    Result* result;
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    for (int i = rank(); i < args.count; i += threads) {
      const std::uint32_t a = args.a[i], b = args.b[i];
      args.result[i] = {hopper::pair_fma(a, b, args.c[i]), hopper::pair_sum(a, b),
                        hopper::pair_maximum(a, b),        hopper::pair_exp2(a),
                        hopper::pack4_e4m3(a, b),          hopper::pair_clamp(a, b, args.c[i])};
    }
  }
};

TEST_P(Math, FunctionsOfPairs) {
  std::mt19937 random(7);
  const std::uint16_t special[] = {0x0000, 0x8000, 0x3c00, 0xbc00, 0x7bff, 0xfbff,
                                   0x7c00, 0xfc00, 0x7e00, 0x0001, 0x83ff};
  std::vector<std::uint32_t> operand[3];
  for (std::vector<std::uint32_t>& pairs : operand)
    for (int i = 0; i < 3000; ++i) {
      const auto half = [&]() -> std::uint32_t {
        if (random() % 8 == 0) return special[random() % std::size(special)];
        // Of a size at which sums and products are rounded, not one of the addends lost.
        return (random() & 0x83ffu) | (8 + random() % 14) << 10;
      };
      const std::uint32_t low = half();
      pairs.push_back(low | half() << 16);
    }
  Buffer<std::uint32_t> a(operand[0]), b(operand[1]), c(operand[2]);
  Buffer<PairFunctions::Result> result(operand[0].size(), PairFunctions::Result{});
  launch<PairFunctions>({a.data(), b.data(), c.data(), int(operand[0].size()), result.data()});
  const std::vector<PairFunctions::Result> got = result.read();
  for (std::size_t i = 0; i < got.size(); ++i)
    for (const int shift : {0, 16}) {
      const auto half = [&](std::uint32_t pair) { return std::uint16_t(pair >> shift); };
      const auto value = [&](std::uint32_t pair) { return double(to_value(Element::f16, half(pair))); };
      const double x = value(operand[0][i]), y = value(operand[1][i]), z = value(operand[2][i]);
      SCOPED_TRACE(testing::Message() << x << ", " << y << ", " << z);
      const auto expect_rounded = [&](std::uint32_t pair, double exact) {
        if (std::isnan(exact)) {
          EXPECT_EQ(half(pair), 0x7fff);
        } else {
          EXPECT_EQ(value(pair), to_value(Element::f16, nearest(Element::f16, exact)));
        }
      };
      expect_rounded(got[i].fma, x * y + z);
      if (y <= z) expect_rounded(got[i].clamped, std::isnan(x) ? x : std::clamp(x, y, z));
      expect_rounded(got[i].sum, x + y);
      expect_rounded(got[i].maximum, std::isnan(x) ? y : std::isnan(y) ? x : std::max(x, y));
      const double power = std::exp2(x), exp2 = value(got[i].exp2);
      if (power >= 65520 || std::isnan(power)) {
        EXPECT_TRUE(same(float(exp2), float(power >= 65520 ? infinity : power))) << exp2;
      } else {
        EXPECT_NEAR(exp2, power, 0x1.13p-10 * power + 0x1p-24);  // 2^-9.9, and the smallest number
      }
      for (const auto& [operand_value, first] : {std::pair{x, 0}, {y, 16}})
        EXPECT_EQ(got[i].e4m3 >> (first + shift / 2) & 0xff, from_float<E4m3>(float(operand_value)).bits);
    }
}

struct PairExp2ByPolynomial {
  static constexpr int threads = 128;
  struct Arguments {
    const std::uint32_t* x;
    int count;
    std::uint32_t* result;
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    for (int i = rank(); i < args.count; i += threads) args.result[i] = attention::pair_exp2_by_polynomial(args.x[i]);
  }
};

// Every number, infinity and NaN, each in both halves beside several others.
TEST_P(Math, PairExp2ByPolynomial) {
  constexpr std::uint32_t minus_infinity = 0xfc00, large = 0x4800, nan = 0x7fff;
  std::vector<std::uint32_t> pairs;
  for (std::uint32_t x = 0; x <= 0xffff; ++x)
    for (const std::uint32_t other : {x * 77 & 0xffff, minus_infinity, large, nan}) {
      pairs.push_back(x | other << 16);
      pairs.push_back(other | x << 16);
    }
  Buffer<std::uint32_t> x(pairs), result(pairs.size(), 0u);
  launch<PairExp2ByPolynomial>({x.data(), int(pairs.size()), result.data()});
  const std::vector<std::uint32_t> got = result.read();
  int off = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    for (const int shift : {0, 16}) {
      const auto value = [](std::uint32_t pair, int from) {
        return double(to_value(Element::f16, std::uint16_t(pair >> from)));
      };
      const double power = std::exp2(value(pairs[i], shift)), by_polynomial = value(got[i], shift);
      const bool beside_nan = std::isnan(value(pairs[i], 16 - shift));  // which may reach the other half
      bool right = false;
      if (std::isnan(power))
        right = std::isnan(by_polynomial);
      else if (power <= 0x1p-15)
        right = by_polynomial == 0;
      else if (power >= 0x1p16)
        right = by_polynomial == infinity;
      else if (power < 0x1p-14)  // on the way to 0
        right = by_polynomial >= 0 && by_polynomial <= power;
      else
        right = std::abs(by_polynomial - power) <= 0x1.39p-9 * power;
      off += !right && !(beside_nan && !std::isnan(power));
    }
  EXPECT_EQ(off, 0);
}

/// Of one pair of words by many selectors.
struct PermuteBytes {
  static constexpr int threads = 128;
  struct Arguments {
    std::uint32_t low, high;
    const std::uint32_t* selector;
    int count;
    std::uint32_t* result;
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    for (int i = rank(); i < args.count; i += threads)
      args.result[i] = hopper::permute_bytes(args.low, args.high, args.selector[i]);
  }
};

TEST_P(Math, PermuteBytesTakesAnyFourOfEight) {
  // 0x80 and above: no digit may take a byte's sign.
  const std::uint8_t bytes[8] = {0x11, 0x92, 0x33, 0xf4, 0x85, 0x06, 0xe7, 0x78};
  std::vector<std::uint32_t> selectors;
  for (std::uint32_t digits = 0; digits < 4096; ++digits)  // of eight values each
    selectors.push_back((digits & 7) | (digits >> 3 & 7) << 4 | (digits >> 6 & 7) << 8 | (digits >> 9) << 12);
  Buffer<std::uint32_t> selector(selectors), result(selectors.size(), 0u);
  launch<PermuteBytes>({0xf4339211, 0x78e70685, selector.data(), int(selectors.size()), result.data()});
  const std::vector<std::uint32_t> got = result.read();
  for (std::size_t i = 0; i < selectors.size(); ++i)
    for (int byte = 0; byte < 4; ++byte)
      ASSERT_EQ(got[i] >> 8 * byte & 0xff, bytes[selectors[i] >> 4 * byte & 7]) << std::hex << selectors[i];
}

struct AcrossWarp {
  static constexpr int threads = 128, masks = 6;
  struct Result {
    float exchanged[masks];
    std::uint32_t maximum;
  };
  struct Arguments {
    Result* result;     // by thread
    unsigned* largest;  // of all ranks
  };
  struct Shared {};
  HOPPER_FUNCTION static void run(Shared&, const Arguments& args) {
    const int me = rank();
    Result result;
    const int mask[masks] = {1, 2, 4, 8, 16, 31};
    for (int i = 0; i < masks; ++i) result.exchanged[i] = hopper::from_lane_xor(float(me), mask[i]);
    result.maximum = hopper::warp_max(std::uint32_t(me * 37 % 128) << 25);
    args.result[me] = result;
    hopper::atomic_max(args.largest, unsigned(me));
  }
};

TEST_P(Math, AcrossAWarp) {
  Buffer<AcrossWarp::Result> result(128, {});
  Buffer<unsigned> largest(1, 5u);
  launch<AcrossWarp>({result.data(), largest.data()});
  const std::vector<AcrossWarp::Result> got = result.read();
  for (int i = 0; i < 128; ++i) {
    int at = 0;
    for (const int mask : {1, 2, 4, 8, 16, 31}) EXPECT_EQ(got[std::size_t(i)].exchanged[at++], float(i ^ mask));
    std::uint32_t most = 0;
    for (int j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) most = std::max(most, std::uint32_t(j * 37 % 128) << 25);
    EXPECT_EQ(got[std::size_t(i)].maximum, most);
  }
  EXPECT_EQ(largest.read()[0], 127u);
}

}  // namespace fa3::hopper_test
