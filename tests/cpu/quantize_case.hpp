// Cases of the quantiser, and its definition in docs/numerics.md written down a second time: slow, and with nothing of
// the library but its element types.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dtype.hpp"
#include "problem.hpp"

namespace fa3::quantize_test {

using std::int64_t;

struct Case {
  enum class Values { normal, nonfinite, zeros, huge, tiny, all_bits, one_outlier };
  enum class Layout { dense, heads_first, odd, repeated_heads };
  enum class Rope { none, halves, interleaved };

  fa3_dtype dtype = FA3_BF16;
  int64_t batch = 2, seqlen = 131, heads = 2, d = 64;
  Values values = Values::normal;
  Layout layout = Layout::dense;
  fa3_scaling scaling = FA3_SCALING_BLOCK;
  int64_t scale_heads = 0;  // 0: heads
  float given_scale = 0;    // GIVEN: all scales; 0: none are given
  bool given_per_block = false;
  float largest = 448;
  Rope rope = Rope::none;
  int64_t rope_d = 0;        // 0: d
  int64_t rope_padding = 0;  // what a position has beyond rope_d / 2
  bool rotate = false;
  std::uint64_t seed = 42;

  int64_t elements() const { return batch * seqlen * heads * d; }
  int64_t blocks() const { return (seqlen + 127) / 128; }
  std::string name() const {
    return std::string(dtype_name(dtype)) + " [" + std::to_string(batch) + ", " + std::to_string(seqlen) + ", " +
           std::to_string(heads) + ", " + std::to_string(d) + "] values " + std::to_string(int(values)) + " layout " +
           std::to_string(int(layout)) + " scaling " + std::to_string(scaling) + " scale_heads " +
           std::to_string(scale_heads) + " rope " + std::to_string(int(rope)) + " of " + std::to_string(rope_d) +
           (rotate ? " rotated" : "") + " up to " + std::to_string(largest);
  }
};

/// What all values can be limited to, and one that is narrow for q and k, and one for v.
inline constexpr float limits[] = {448, FA3_E4M3_NARROW_QK, FA3_E4M3_NARROW_V};
inline int code_of(float limit) { return limit == 448 ? 0x7e : limit == 15 ? 0x57 : limit == 1.125f ? 0x39 : -1; }

/// Every value of a 16-bit type, times one scale; 0: that of the tensor.
inline Case all_bits_case(fa3_dtype dtype, float scale, float largest) {
  Case c;
  c.dtype = dtype;
  c.batch = 1, c.seqlen = 256, c.heads = 1, c.d = 256;
  c.values = Case::Values::all_bits;
  c.scaling = scale == 0 ? FA3_SCALING_TENSOR : FA3_SCALING_GIVEN;
  c.given_scale = scale;
  c.largest = largest;
  return c;
}

/// The code of the nearest e4m3, by a search among all of them up to that of code `last`.
inline std::uint8_t nearest_e4m3(float x, int last) {
  static const std::array<double, 127> sizes = [] {
    std::array<double, 127> all{};
    for (int code = 0; code < 127; ++code)
      all[std::size_t(code)] = code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10);
    return all;
  }();
  if (std::isnan(x)) return 0x7f;
  const double size = std::abs(double(x));
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const auto end = sizes.begin() + last + 1, above = std::lower_bound(sizes.begin(), end, size);
  if (above == end) return std::uint8_t(sign | last);
  auto code = int(above - sizes.begin());
  if (code > 0) {
    const double to_below = size - sizes[std::size_t(code - 1)], to_above = *above - size;
    if (to_below < to_above || (to_below == to_above && code % 2 == 1)) --code;
  }
  return std::uint8_t(sign | code);
}

inline void hadamard(float* x, int order) {
  if (order == 1) return;
  const int half = order / 2;
  hadamard(x, half);
  hadamard(x + half, half);
  for (int i = 0; i < half; ++i) {
    const float sum = x[i] + x[half + i], difference = x[i] - x[half + i];
    x[i] = sum, x[half + i] = difference;
  }
}

inline bool negated(std::uint64_t seed, int feature) {
  std::uint64_t z = seed;
  for (int i = 0; i <= feature / 64; ++i) z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z = z ^ (z >> 31);
  return (z >> (feature % 64) & 1) != 0;
}

class Trial {
 public:
  static constexpr std::uint8_t poison = 0xa5;
  static constexpr float poison_scale = -12345;

  explicit Trial(const Case& c) : case_(c) {
    x_stride_ = strides(c.layout);
    y_stride_ = strides(c.layout == Case::Layout::repeated_heads ? Case::Layout::dense : c.layout);
    x_.resize((reach(x_stride_) + 1) * element_bytes(c.dtype));
    y_.assign(reach(y_stride_), poison);
    fill();
    const int64_t scale_heads = c.scale_heads == 0 ? c.heads : c.scale_heads;
    per_block_ = c.scaling == FA3_SCALING_BLOCK || (c.scaling == FA3_SCALING_GIVEN && c.given_per_block);
    if (c.scaling != FA3_SCALING_TENSOR)
      scale_stride_ = per_block_ ? std::array<int64_t, 3>{c.heads * (c.blocks() + 1), c.blocks() + 1, 1}
                                 : std::array<int64_t, 3>{scale_heads + 1, 1, 0};
    scale_.assign(std::size_t(c.batch * c.heads * (c.blocks() + 1) * 2), poison_scale);
    if (c.scaling == FA3_SCALING_GIVEN)
      for (std::size_t i = 0; i < scale_.size(); ++i) scale_[i] = c.given_scale * (1 + 0.125f * float(i % 5));
    const int64_t rope_d = c.rope_d == 0 ? c.d : c.rope_d;
    rope_stride_ = rope_d / 2 + c.rope_padding;
    std::mt19937 random(7);
    std::uniform_real_distribution<float> angle(0, 6.3f);
    for (int64_t i = 0; c.rope != Case::Rope::none && i < c.seqlen * rope_stride_; ++i) {
      const float a = angle(random);
      cos_.push_back(std::cos(a));
      sin_.push_back(std::sin(a));
    }
  }
  Trial(const Trial&) = delete;

  QuantizeProblem problem() {
    const Case& c = case_;
    QuantizeProblem p;
    p.dtype = c.dtype;
    p.batch = c.batch, p.seqlen = c.seqlen, p.heads = c.heads, p.d = c.d;
    p.scale_heads = c.scale_heads == 0 ? c.heads : c.scale_heads;
    p.x = {x_.data(), {c.batch, c.seqlen, c.heads, c.d}, x_stride_};
    p.y = {y_.data(), {c.batch, c.seqlen, c.heads, c.d}, y_stride_};
    p.scaling = c.scaling;
    if (c.scaling != FA3_SCALING_GIVEN || c.given_scale != 0) p.scale = {scale_.data(), per_block_, scale_stride_};
    p.scale.largest = c.largest;
    if (c.rope != Case::Rope::none) {
      p.rope_cos = cos_.data(), p.rope_sin = sin_.data();
      p.rope_stride = rope_stride_;
      p.rope_d = c.rope_d == 0 ? c.d : c.rope_d;
      p.rope_interleaved = c.rope == Case::Rope::interleaved;
    }
    p.rotate = c.rotate;
    p.seed = c.seed;
    return p;
  }

  /// What y and the scales have that is not the reference's, "" if nothing; to be called after problem() was run.
  std::string difference() const {
    const Case& c = case_;
    std::vector<std::uint8_t> y(y_.size(), poison);
    std::vector<float> scale = scale_;
    if (c.scaling != FA3_SCALING_GIVEN) std::fill(scale.begin(), scale.end(), poison_scale);
    const float norm = c.rotate ? float(1 / std::sqrt(double(c.d & -c.d))) : 1.0f;
    std::vector<std::vector<float>> rows;  // by batch, head, position
    std::vector<float> largest;            // likewise
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t s = 0; s < c.seqlen; ++s) {
          rows.push_back(butterflies(b, s, h));
          float most = 0;
          for (const float v : rows.back())
            if (std::isfinite(v)) most = std::max(most, std::abs(v));
          largest.push_back(most * norm);
        }
    const int64_t group = c.heads / (c.scale_heads == 0 ? c.heads : c.scale_heads);
    std::size_t row = 0;
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t s = 0; s < c.seqlen; ++s, ++row) {
          const std::size_t at = std::size_t(b * scale_stride_[0] + (per_block_ ? h : h / group) * scale_stride_[1] +
                                             (per_block_ ? s / 128 * scale_stride_[2] : 0));
          if (c.scaling != FA3_SCALING_GIVEN && scale[at] == poison_scale) {
            float most = 0;
            for (std::size_t other = 0; other < rows.size(); ++other) {
              const auto of_b = int64_t(other) / (c.heads * c.seqlen), of_h = int64_t(other) / c.seqlen % c.heads,
                         of_s = int64_t(other) % c.seqlen;
              const bool shares = c.scaling == FA3_SCALING_TENSOR ||
                                  (of_b == b && (c.scaling == FA3_SCALING_HEAD ? of_h / group == h / group
                                                                               : of_h == h && of_s / 128 == s / 128));
              if (shares) most = std::max(most, largest[other]);
            }
            scale[at] = most == 0 ? 1.0f : std::max(most / c.largest, std::numeric_limits<float>::min());
          }
          const bool unit = c.scaling == FA3_SCALING_GIVEN && c.given_scale == 0;
          const float factor = norm * (1.0f / (unit ? 1.0f : scale[at]));
          for (int64_t i = 0; i < c.d; ++i) {
            const float v = rows[row][std::size_t(i)];
            y[std::size_t(b * y_stride_[0] + s * y_stride_[1] + h * y_stride_[2] + i)] =
                std::isfinite(v) ? nearest_e4m3(v * factor, code_of(c.largest)) : 0x7f;
          }
        }
    for (std::size_t i = 0; i < y.size(); ++i)
      if (y[i] != y_[i])
        return "y at offset " + std::to_string(i) + " is " + std::to_string(y_[i]) + ", expected " +
               std::to_string(y[i]);
    for (std::size_t i = 0; i < scale.size(); ++i)
      if (std::bit_cast<std::uint32_t>(scale[i]) != std::bit_cast<std::uint32_t>(scale_[i]))
        return "scale at offset " + std::to_string(i) + " is " + std::to_string(scale_[i]) + ", expected " +
               std::to_string(scale[i]);
    return "";
  }

  /// Of y, without signs and but for NaN; to be called after problem() was run.
  int largest_code_found() const {
    int most = 0;
    for (const std::uint8_t code : y_)
      if ((code & 0x7f) != 0x7f) most = std::max(most, code & 0x7f);
    return most;
  }

  /// x' of a row.
  std::vector<float> transformed(int64_t b, int64_t s, int64_t h) const {
    std::vector<float> row = butterflies(b, s, h);
    if (case_.rotate)
      for (float& v : row) v *= float(1 / std::sqrt(double(case_.d & -case_.d)));
    return row;
  }

  float value(int64_t b, int64_t s, int64_t h, int64_t i) const {
    const std::size_t at = std::size_t(b * x_stride_[0] + s * x_stride_[1] + h * x_stride_[2] + i);
    return with_dtype(case_.dtype, [&]<class T>(T x) {
      std::memcpy(&x, x_.data() + at * sizeof(T), sizeof(T));
      return to_float(x);
    });
  }

 private:
  std::array<int64_t, 4> strides(Case::Layout layout) const {
    const Case& c = case_;
    const auto of = [](int64_t extent, int64_t stride) { return extent > 1 ? stride : 0; };
    std::array<int64_t, 4> stride;
    if (layout == Case::Layout::heads_first)
      stride = {c.heads * c.seqlen * c.d, c.d, c.seqlen * c.d, 1};
    else if (layout == Case::Layout::odd)
      stride = {c.seqlen * (c.heads * (c.d + 3) + 1) + 5, c.heads * (c.d + 3) + 1, c.d + 3, 1};
    else if (layout == Case::Layout::repeated_heads)
      stride = {c.seqlen * c.d, c.d, 0, 1};
    else
      stride = {c.seqlen * c.heads * c.d, c.heads * c.d, c.d, 1};
    return {of(c.batch, stride[0]), of(c.seqlen, stride[1]), of(c.heads, stride[2]), 1};
  }
  std::size_t reach(const std::array<int64_t, 4>& stride) const {
    return std::size_t((case_.batch - 1) * stride[0] + (case_.seqlen - 1) * stride[1] + (case_.heads - 1) * stride[2] +
                       case_.d);
  }

  void fill() {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    const std::size_t bytes = element_bytes(case_.dtype), row = std::size_t(case_.d);
    float size = 1;
    for (std::size_t i = 0; i < x_.size() / bytes; ++i) {
      if (i % row == 0) size = std::ldexp(1.0f, int(random() % 9) - 4);
      float v = size * normal(random);
      switch (case_.values) {
        case Case::Values::normal: break;
        case Case::Values::nonfinite:
          if (random() % 61 == 0)
            v = random() % 2 ? std::numeric_limits<float>::quiet_NaN()
                             : std::numeric_limits<float>::infinity() * (random() % 2 ? 1.0f : -1.0f);
          break;
        case Case::Values::zeros: v = random() % 2 ? 0.0f : -0.0f; break;
        case Case::Values::huge: v *= case_.dtype == FA3_F16 ? 1e3f : 1e36f; break;
        case Case::Values::tiny: v *= case_.dtype == FA3_F16 ? 1e-7f : 1e-39f; break;
        case Case::Values::one_outlier: v = i == 5 ? 1000.0f : 0.0f; break;
        case Case::Values::all_bits: break;
      }
      with_dtype(case_.dtype, [&]<class T>(T) {
        T element = from_float<T>(v);
        if (case_.values == Case::Values::all_bits) std::memcpy(&element, &i, sizeof(T));
        std::memcpy(x_.data() + i * bytes, &element, sizeof(T));
      });
    }
  }

  /// x' of a row without the factor of H.
  std::vector<float> butterflies(int64_t b, int64_t s, int64_t h) const {
    const Case& c = case_;
    std::vector<float> row;
    for (int64_t i = 0; i < c.d; ++i) row.push_back(value(b, s, h, i));
    if (c.rope != Case::Rope::none) {
      const std::vector<float> before = row;
      const int64_t rope_d = c.rope_d == 0 ? c.d : c.rope_d, half = rope_d / 2;
      for (int64_t f = 0; f < rope_d; ++f) {
        const bool interleaved = c.rope == Case::Rope::interleaved, second = interleaved ? f % 2 == 1 : f >= half;
        const int64_t pair = interleaved ? f / 2 : f % half;
        const float cosine = cos_[std::size_t(s * rope_stride_ + pair)],
                    sine = sin_[std::size_t(s * rope_stride_ + pair)];
        const float a = before[std::size_t(interleaved ? 2 * pair : pair)],
                    b_ = before[std::size_t(interleaved ? 2 * pair + 1 : pair + half)];
        const float product = second ? b_ * cosine : b_ * sine;
        row[std::size_t(f)] = second ? std::fma(a, sine, product) : std::fma(a, cosine, -product);
      }
    }
    if (!c.rotate) return row;
    for (int i = 0; i < int(c.d); ++i)
      if (negated(c.seed, i)) row[std::size_t(i)] = -row[std::size_t(i)];
    const int order = int(c.d & -c.d), segments = int(c.d) / order;
    for (int segment = 0; segment < segments; ++segment) hadamard(row.data() + segment * order, order);
    if (segments == 1) return row;
    const std::vector<float> before = row;
    for (std::size_t i = 0; i < row.size(); ++i) {
      float sum = before[i % std::size_t(order)];
      for (std::size_t j = i % std::size_t(order) + std::size_t(order); j < row.size(); j += std::size_t(order))
        sum += before[j];
      row[i] = std::fma(-(2.0f / float(segments)), sum, before[i]);
    }
    return row;
  }

  const Case case_;
  std::array<int64_t, 4> x_stride_{}, y_stride_{};
  std::vector<std::byte> x_;
  std::vector<std::uint8_t> y_;
  std::vector<float> scale_, cos_, sin_;
  std::array<int64_t, 3> scale_stride_{};
  bool per_block_ = false;
  int64_t rope_stride_ = 0;
};

/// Every way through the kernel, each in as few rows as show it.
inline std::vector<Case> small_cases() {
  std::vector<Case> cases;
  const auto add = [&](auto change) {
    for (const fa3_dtype dtype : {FA3_F16, FA3_BF16}) {
      Case c;
      c.dtype = dtype;
      change(c);
      cases.push_back(c);
    }
  };
  for (int64_t d = 16; d <= 256; d += 16) {
    add([&](Case& c) { c.d = d, c.batch = 1, c.rotate = true; });
    add([&](Case& c) { c.d = d, c.batch = 1, c.heads = 1, c.seqlen = 65; });
  }
  for (const int64_t seqlen : {1, 63, 64, 127, 128, 129})
    for (const bool rotate : {false, true})
      for (const int64_t d : {64, 256})
        add([&](Case& c) { c.batch = c.heads = 1, c.seqlen = seqlen, c.d = d, c.rotate = rotate; });
  for (const int64_t d : {64, 192})
    for (const bool rotate : {false, true}) {
      for (const fa3_scaling scaling : {FA3_SCALING_HEAD, FA3_SCALING_TENSOR})
        for (const int64_t scale_heads : {0, 2, 1})
          add([&](Case& c) {
            c.heads = 4, c.d = d, c.scaling = scaling, c.scale_heads = scale_heads, c.rotate = rotate;
            if (d == 192) c.batch = 1;
          });
      add([&](Case& c) { c.d = d, c.scaling = FA3_SCALING_GIVEN, c.rotate = rotate; });
      add([&](Case& c) { c.d = d, c.scaling = FA3_SCALING_GIVEN, c.given_scale = 0.01f, c.rotate = rotate; });
      add([&](Case& c) {
        c.d = d, c.heads = 4, c.scaling = FA3_SCALING_GIVEN, c.scale_heads = 2, c.given_scale = 0.7f, c.rotate = rotate;
      });
      add([&](Case& c) {
        c.d = d, c.scaling = FA3_SCALING_GIVEN, c.given_scale = 0.3f, c.given_per_block = true, c.rotate = rotate;
      });
    }
  for (const Case::Rope rope : {Case::Rope::halves, Case::Rope::interleaved})
    for (const bool rotate : {false, true}) {
      for (const auto& [d, rope_d] : {std::pair{64, 0}, {128, 64}, {96, 40}, {80, 10}, {256, 256}, {192, 2}, {160, 0}})
        add([&, d = d, rope_d = rope_d](Case& c) {
          c.batch = 1, c.d = d, c.rope = rope, c.rope_d = rope_d, c.rotate = rotate;
        });
      add([&](Case& c) { c.batch = 1, c.rope = rope, c.rope_padding = 1, c.rotate = rotate; });
      add([&](Case& c) { c.rope = rope, c.rotate = rotate, c.layout = Case::Layout::odd; });
    }
  for (const Case::Layout layout : {Case::Layout::heads_first, Case::Layout::odd, Case::Layout::repeated_heads})
    for (const int64_t d : {80, 256})
      for (const bool rotate : {false, true})
        add([&](Case& c) { c.layout = layout, c.d = d, c.rotate = rotate, c.seqlen = 70; });
  for (const Case::Values values :
       {Case::Values::nonfinite, Case::Values::zeros, Case::Values::huge, Case::Values::tiny})
    for (const int64_t d : {64, 96, 256})
      for (const bool rotate : {false, true})
        for (const fa3_scaling scaling : {FA3_SCALING_BLOCK, FA3_SCALING_TENSOR})
          add([&](Case& c) { c.batch = 1, c.values = values, c.d = d, c.rotate = rotate, c.scaling = scaling; });
  add([](Case& c) { c.batch = 1, c.values = Case::Values::nonfinite, c.rope = Case::Rope::halves; });
  for (const bool rotate : {false, true}) {
    for (const int64_t d : {64, 96, 256})
      for (const Case::Values values : {Case::Values::normal, Case::Values::nonfinite, Case::Values::tiny})
        for (const fa3_scaling scaling : {FA3_SCALING_BLOCK, FA3_SCALING_HEAD, FA3_SCALING_TENSOR, FA3_SCALING_GIVEN})
          add([&](Case& c) {
            c.batch = 1, c.d = d, c.values = values, c.scaling = scaling, c.rotate = rotate, c.largest = 15;
            c.given_scale = values == Case::Values::tiny ? 1e-40f : 0.3f;  // 1 / 1e-40 is infinite
            c.given_per_block = d == 96;
          });
    add([&](Case& c) { c.scaling = FA3_SCALING_GIVEN, c.rotate = rotate, c.largest = 15; });
    add([&](Case& c) {
      c.d = 240, c.scaling = FA3_SCALING_GIVEN, c.given_scale = 0.01f, c.rotate = rotate, c.largest = 15;
      c.rope = Case::Rope::halves, c.layout = Case::Layout::odd;
    });
  }
  return cases;
}

/// Cases with a value that has the largest size there is: of every scaling and limit.
inline std::vector<Case> full_cases() {
  std::vector<Case> cases;
  for (const float largest : limits)
    for (const fa3_scaling scaling : {FA3_SCALING_BLOCK, FA3_SCALING_HEAD, FA3_SCALING_TENSOR, FA3_SCALING_GIVEN})
      for (const bool rotate : {false, true}) {
        Case c;
        c.scaling = scaling, c.rotate = rotate, c.largest = largest;
        c.given_scale = 0.01f;
        cases.push_back(c);
      }
  return cases;
}

/// More than 10^7 values in all.
inline std::vector<Case> large_cases() {
  std::vector<Case> cases;
  for (const fa3_dtype dtype : {FA3_F16, FA3_BF16})
    for (const int64_t d : {64, 128, 192, 256})
      for (const bool rotate : {false, true}) {
        Case c;
        c.dtype = dtype;
        c.batch = 1, c.seqlen = 1000, c.heads = 700 / d, c.d = d;
        c.rotate = rotate;
        c.rope = dtype == FA3_F16 ? Case::Rope::halves : Case::Rope::none;
        c.values = d == 192 ? Case::Values::nonfinite : Case::Values::normal;
        cases.push_back(c);
        c.seed = 3;
        c.heads = 1;
        c.scaling = FA3_SCALING_HEAD;
        cases.push_back(c);
      }
  return cases;
}

}  // namespace fa3::quantize_test
