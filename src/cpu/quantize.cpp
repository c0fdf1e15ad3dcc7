#include "cpu/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/threads.hpp"
#include "dtype.hpp"
#include "quantization.hpp"

namespace fa3::cpu {
namespace {

using std::int64_t;

/// Rotary embedding of a row, with the cosines and sines of its position.
void rope(float* row, const float* cosines, const float* sines, int64_t rope_d, bool interleaved) {
  const int64_t half = rope_d / 2;
  for (int64_t i = 0; i < half; ++i) {
    float& first = row[interleaved ? 2 * i : i];
    float& second = row[interleaved ? 2 * i + 1 : i + half];
    const float a = first, b = second;
    first = std::fma(a, cosines[i], -(b * sines[i]));
    second = std::fma(a, sines[i], b * cosines[i]);
  }
}

/// (row D) H, but for the factor rotation.norm.
void rotate(float* row, const Rotation& rotation) {
  const int order = rotation.order, segments = rotation.segments, d = order * segments;
  for (int i = 0; i < d; ++i)
    if (rotation.signs[i / 32] >> i % 32 & 1) row[i] = -row[i];
  for (int step = 1; step < order; step *= 2)
    for (int begin = 0; begin < d; begin += 2 * step)
      for (int i = begin; i < begin + step; ++i) {
        const float a = row[i], b = row[i + step];
        row[i] = a + b;
        row[i + step] = a - b;
      }
  if (segments == 1) return;
  for (int i = 0; i < order; ++i) {
    float sum = row[i];
    for (int s = 1; s < segments; ++s) sum += row[s * order + i];
    for (int s = 0; s < segments; ++s) row[s * order + i] = std::fma(rotation.mix, sum, row[s * order + i]);
  }
}

template <class T>
class Quantizer {
 public:
  explicit Quantizer(const QuantizeProblem& problem)
      : problem_(problem),
        rotation_(problem.rotate ? make_rotation(problem.d, problem.seed) : Rotation()),
        largest_(problem.scale.largest) {}

  void run() {
    const QuantizeProblem& p = problem_;
    const int64_t tasks = p.batch * p.heads * p.blocks();
    const int threads = useful_threads(double(p.batch) * double(p.heads) * double(p.seqlen) * double(p.d) * 20);
    std::vector<std::vector<float>> rows(static_cast<std::size_t>(threads));
    for (std::vector<float>& of_thread : rows) of_thread.resize(std::size_t(FA3_SCALE_ROWS * p.d));
    if (p.scaling == FA3_SCALING_HEAD || p.scaling == FA3_SCALING_TENSOR) {
      maxima_.resize(std::size_t(tasks));
      parallel_for(tasks, threads, [&](int64_t task, int thread) {
        maxima_[std::size_t(task)] = transform(block(task), rows[std::size_t(thread)].data());
      });
      shared_scales();
    }
    parallel_for(tasks, threads, [&](int64_t task, int thread) {
      const Block b = block(task);
      float* const values = rows[std::size_t(thread)].data();
      const float most = transform(b, values);
      if (p.scaling == FA3_SCALING_BLOCK) *place_of_scale(b) = scale_of(rotation_.norm * most, largest_);
      write(b, values, p.scale.data == nullptr ? 1.0f : *place_of_scale(b));
    });
  }

 private:
  /// Rows of a head that a task has.
  struct Block {
    int64_t batch, head, index;
  };
  Block block(int64_t task) const {
    const int64_t blocks = problem_.blocks(), sequence = task / blocks;
    return {sequence / problem_.heads, sequence % problem_.heads, task % blocks};
  }
  int64_t first_row(const Block& b) const { return b.index * FA3_SCALE_ROWS; }
  int64_t end_row(const Block& b) const { return std::min(first_row(b) + FA3_SCALE_ROWS, problem_.seqlen); }
  float* place_of_scale(const Block& b) const {
    const ScalesRef& scale = problem_.scale;
    return scale.data + b.batch * scale.stride[0] +
           (scale.per_block ? b.head * scale.stride[1] + b.index * scale.stride[2]
                            : b.head / problem_.group() * scale.stride[1]);
  }

  /// x' / rotation.norm of a block, row by row, and the largest of its finite sizes.
  float transform(const Block& b, float* values) const {
    const QuantizeProblem& p = problem_;
    float most = 0;
    for (int64_t row = first_row(b); row < end_row(b); ++row, values += p.d) {
      const T* const from = features<T>(p.x, b.batch, row, b.head);
      for (int64_t i = 0; i < p.d; ++i) values[i] = to_float(from[i]);
      if (p.rope_cos != nullptr)
        rope(values, p.rope_cos + row * p.rope_stride, p.rope_sin + row * p.rope_stride, p.rope_d, p.rope_interleaved);
      if (p.rotate) rotate(values, rotation_);
      for (int64_t i = 0; i < p.d; ++i) {
        const float size = std::abs(values[i]);
        most = std::max(most, size < std::numeric_limits<float>::infinity() ? size : 0.0f);
      }
    }
    return most;
  }

  /// Scales of more than one block, from maxima_.
  void shared_scales() {
    const QuantizeProblem& p = problem_;
    const int64_t blocks = p.blocks();
    const int64_t each = p.scaling == FA3_SCALING_TENSOR ? p.batch * p.heads * blocks : p.group() * blocks;
    for (std::size_t begin = 0; begin < maxima_.size(); begin += std::size_t(each))
      *place_of_scale(block(int64_t(begin))) =
          scale_of(rotation_.norm * *std::max_element(maxima_.begin() + std::ptrdiff_t(begin),
                                                      maxima_.begin() + std::ptrdiff_t(begin) + each),
                   largest_);
  }

  void write(const Block& b, const float* values, float scale) const {
    const QuantizeProblem& p = problem_;
    const float factor = rotation_.norm * (1.0f / scale);
    for (int64_t row = first_row(b); row < end_row(b); ++row, values += p.d) {
      E4m3* const to = features<E4m3>(p.y, b.batch, row, b.head);
      for (int64_t i = 0; i < p.d; ++i)
        to[i] = std::abs(values[i]) < std::numeric_limits<float>::infinity()
                    ? from_float<E4m3>(limited(values[i] * factor, largest_))
                    : E4m3{0x7f};
    }
  }

  const QuantizeProblem& problem_;
  const Rotation rotation_;
  const float largest_;        // of y
  std::vector<float> maxima_;  // by block
};

}  // namespace

void quantize(const QuantizeProblem& problem) {
  with_dtype(problem.dtype, [&]<class T>(T) { Quantizer<T>(problem).run(); });
}

}  // namespace fa3::cpu
