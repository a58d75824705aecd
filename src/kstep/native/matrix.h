// Matrix products, Adam and moving averages over a vector type V of 8 or 16 floats.
//
// Included by avx2.cpp and avx512.cpp after winograd.h, with the same rules: compiled for each of the
// two, an unnamed namespace, nothing of the standard library.
//
// A product keeps some rows x two vectors of columns in registers and adds one term after the other,
// so an element's sum has the order of its terms whatever the vectors' width.
#pragma once
#include "kernels.h"

namespace kstep {
namespace {

// ---- products

// Columns [0, columns) of `right`, whose element (p, j) is at p * row + j * column, in panels of
// kColumns: [panel][p][kColumns], zero beyond the last. One of the two strides is 1.
static void matrix_pack(const float* right, ptrdiff_t row, ptrdiff_t column, int inner, int columns,
                        float* packed) {
  for (int first = 0; first < columns; first += kColumns, packed += (size_t)inner * kColumns) {
    const int width = least(kColumns, columns - first);
    const float* from = right + first * column;
    if (column == 1) {
      for (int p = 0; p < inner; p++) {
        float* to = packed + (size_t)p * kColumns;
        const float* line = from + p * row;
        if (width == kColumns) {
          V::store(to, V::load(line));
          V::store(to + W, V::load(line + W));
          continue;
        }
        for (int j = 0; j < width; j++) to[j] = line[j];
        for (int j = width; j < kColumns; j++) to[j] = 0;
      }
      continue;
    }
    // A transposition. Sixteen terms at a time: a cache line of each column.
    for (int start = 0; start < inner; start += 16) {
      const int end = least(start + 16, inner);
      for (int j = 0; j < width; j++)
        for (int p = start; p < end; p++) packed[(size_t)p * kColumns + j] = from[j * column + p];
      for (int p = start; p < end; p++)
        for (int j = width; j < kColumns; j++) packed[(size_t)p * kColumns + j] = 0;
    }
  }
}

// out[kRows][kVectors * W] = sum over p of left(i, p) * panel[p]
template <int kRows, int kVectors>
KSTEP_KERNEL void multiply_panel(const float* left, ptrdiff_t row, ptrdiff_t step,
                                 const float* panel, int inner, const float* bias, float* out,
                                 ptrdiff_t out_row) {
  R sum[kRows][kVectors];
  KSTEP_UNROLL
  for (int i = 0; i < kRows; i++)
    KSTEP_UNROLL
    for (int v = 0; v < kVectors; v++) sum[i][v] = V::zero();
#pragma GCC unroll 2
  for (int p = 0; p < inner; p++, left += step, panel += kColumns) {
    R w[kVectors];
    KSTEP_UNROLL
    for (int v = 0; v < kVectors; v++) w[v] = V::load(panel + v * W);
    KSTEP_UNROLL
    for (int i = 0; i < kRows; i++) {
      const R b = V::broadcast(left + i * row);
      KSTEP_UNROLL
      for (int v = 0; v < kVectors; v++) sum[i][v] = V::fma(b, w[v], sum[i][v]);
    }
  }
  KSTEP_UNROLL
  for (int v = 0; v < kVectors; v++) {
    const R plus = bias ? V::load(bias + v * W) : V::zero();
    KSTEP_UNROLL
    for (int i = 0; i < kRows; i++)
      V::store(out + i * out_row + v * W, bias ? V::add(sum[i][v], plus) : sum[i][v]);
  }
}
template <int kRows, int kVectors>
KSTEP_INLINE void multiply_some(int rows, const float* left, ptrdiff_t row, ptrdiff_t step,
                                const float* panel, int inner, const float* bias, float* out,
                                ptrdiff_t out_row) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      multiply_panel<kRows, kVectors>(left, row, step, panel, inner, bias, out, out_row);
    else
      multiply_some<kRows - 1, kVectors>(rows, left, row, step, panel, inner, bias, out, out_row);
  }
}

// out[rows][columns] = left x packed (+ bias); element (i, p) of left is at i * row + p * step.
static void matrix_multiply(const float* left, ptrdiff_t row, ptrdiff_t step, int rows,
                            const float* packed, int inner, int columns, const float* bias,
                            float* out, ptrdiff_t out_row) {
  const int parts = (rows + V::rows - 1) / V::rows;
  float own[V::rows * kColumns], own_bias[kColumns];
  for (int first = 0; first < columns; first += kColumns, packed += (size_t)inner * kColumns) {
    const int width = least(kColumns, columns - first);
    const bool all = width == kColumns || width == W;
    const float* plus = bias ? bias + first : nullptr;
    if (plus && !all) {  // what lies beyond the last column is not ours to read
      for (int j = 0; j < kColumns; j++) own_bias[j] = j < width ? plus[j] : 0;
      plus = own_bias;
    }
    for (int i = 0; i < parts; i++) {
      const int from = rows * i / parts, count = rows * (i + 1) / parts - from;
      float* to = out + from * out_row + first;
      float* target = all ? to : own;
      const ptrdiff_t target_row = all ? out_row : kColumns;
      const float* l = left + from * row;
      if (width > W)
        multiply_some<V::rows, 2>(count, l, row, step, packed, inner, plus, target, target_row);
      else
        multiply_some<V::rows, 1>(count, l, row, step, packed, inner, plus, target, target_row);
      if (!all)
        for (int r = 0; r < count; r++)
          __builtin_memcpy(to + r * out_row, own + r * kColumns, width * sizeof(float));
    }
  }
}

static size_t matrix_packed(int inner, int columns) { return (size_t)inner * up(columns, kColumns); }

// ---- transposed convolutions

static void spread_forward(const float* input, const float* packed, const float* bias,
                           float* output, int count, Spread s, bool relu, float* scratch) {
  const int taps = 9 * s.channels, run = 3 * s.channels, step = s.stride * s.channels;
  const size_t line = (size_t)s.out_width * s.channels, image = s.out_height * line;
  for (int n = 0; n < count; n++, output += image) {
    for (size_t i = 0; i < line; i += s.channels)
      __builtin_memcpy(output + i, bias, s.channels * sizeof(float));
    for (int r = 1; r < s.out_height; r++)
      __builtin_memcpy(output + r * line, output, line * sizeof(float));
    for (int r = 0; r < s.height; r++, input += (size_t)s.width * C) {
      matrix_multiply(input, C, 1, s.width, packed, C, taps, nullptr, scratch, taps);
      for (int k = 0; k < 3; k++) {
        float* to = output + (r * s.stride + k) * line;
        const float* from = scratch + k * run;
        for (int p = 0; p < s.width; p++, to += step, from += taps) {
          int i = 0;
          for (; i + W <= run; i += W) V::store(to + i, V::add(V::load(to + i), V::load(from + i)));
          for (; i < run; i++) to[i] += from[i];
        }
      }
    }
    if (relu)
      for (size_t i = 0; i < image; i++) output[i] = output[i] <= 0 ? 0 : output[i];
  }
}

static void spread_pack_back(const float* weight, float* packed, Spread s) {
  const int taps = 9 * s.channels;
  for (int o = 0; o < C; o++)
    for (int t = 0; t < taps; t++) packed[packed_at(taps, t, o)] = weight[(size_t)o * taps + t];
}

static void spread_backward(const float* gradient, const float* output, const float* input,
                            const float* packed_back, float* input_gradient, float* weight_sum,
                            float* bias_sum, int count, Spread s, float* scratch) {
  const int run = 3 * s.channels, step = s.stride * s.channels;
  const size_t line = (size_t)s.out_width * s.channels, image = s.out_height * line;
  float *columns = scratch, *masked = scratch + line;
  Rows rows{{}, 3, run, step};
  for (int n = 0; n < count; n++, gradient += image) {
    const float* g = gradient;
    if (output) {
      for (size_t i = 0; i < image; i++) {
        const float y = output[i], passed = gradient[i];
        masked[i] = y <= 0 ? 0 : passed;
      }
      output += image;
      g = masked;
    }
    __builtin_memset(columns, 0, line * sizeof(float));
    for (int r = 0; r < s.out_height; r++)
      for (size_t i = 0; i < line; i++) columns[i] += g[r * line + i];
    for (size_t i = 0; i < line; i += s.channels)
      for (int c = 0; c < s.channels; c++) bias_sum[c] += columns[i + c];
    for (int r = 0; r < s.height; r++, input += (size_t)s.width * C) {
      for (int k = 0; k < 3; k++) rows.row[k] = g + (r * s.stride + k) * line;
      for (int k = 0; k < 3; k++)
        outer_rows(rows.row[k], step, input, s.width, run, weight_sum + (size_t)k * run * C);
      direct_row(rows, s.width, packed_back, kNoBias, kNoFloor, input_gradient, C);
      input_gradient += (size_t)s.width * C;
    }
  }
}

// ---- passes over parameters: element by element, so nothing is summed

struct Coefficients {
  R decay, first, second, keep, size, root, epsilon;
  bool decays;
};

KSTEP_INLINE void adam_vector(const Coefficients& c, float* parameter, const float* gradient,
                              float* average, float* square) {
  const R p = V::load(parameter);
  R g = V::load(gradient);
  if (c.decays) g = V::add(g, V::mul(c.decay, p));
  const R before = V::load(average), a = V::add(before, V::mul(c.first, V::sub(g, before)));
  const R s = V::add(V::mul(c.keep, V::load(square)), V::mul(V::mul(c.second, g), g));
  const R below = V::add(V::div(V::sqrt(s), c.root), c.epsilon);
  V::store(parameter, V::sub(p, V::mul(c.size, V::div(a, below))));
  V::store(average, a);
  V::store(square, s);
}

static void adam_step(const Adam& m, size_t from, size_t to) {
  const Coefficients c{V::all(m.weight_decay), V::all(m.first),   V::all(m.second),
                       V::all(m.keep),         V::all(m.size),    V::all(m.root),
                       V::all(m.epsilon),      m.weight_decay != 0};
  size_t i = from;
  for (; i + W <= to; i += W)
    adam_vector(c, m.parameter + i, m.gradient + i, m.average + i, m.square + i);
  if (i == to) return;
  // The last few in vectors of their own, so that all are computed alike.
  float p[W] = {}, g[W] = {}, a[W] = {}, s[W] = {};
  const size_t bytes = (to - i) * sizeof(float);
  __builtin_memcpy(p, m.parameter + i, bytes);
  __builtin_memcpy(g, m.gradient + i, bytes);
  __builtin_memcpy(a, m.average + i, bytes);
  __builtin_memcpy(s, m.square + i, bytes);
  adam_vector(c, p, g, a, s);
  __builtin_memcpy(m.parameter + i, p, bytes);
  __builtin_memcpy(m.average + i, a, bytes);
  __builtin_memcpy(m.square + i, s, bytes);
}

// slow + rate (online - slow), from the nearer end, as PyTorch's lerp.
KSTEP_INLINE void average_vector(float* slow, const float* online, R rate, bool near) {
  const R s = V::load(slow), o = V::load(online), d = V::mul(rate, V::sub(o, s));
  V::store(slow, near ? V::add(s, d) : V::sub(o, d));
}

static void average_step(const Average& m, size_t from, size_t to) {
  const bool near = m.rate < 0.5f;
  const R rate = V::all(near ? m.rate : 1 - m.rate);
  size_t i = from;
  for (; i + W <= to; i += W) average_vector(m.slow + i, m.online + i, rate, near);
  if (i == to) return;
  float s[W] = {}, o[W] = {};
  const size_t bytes = (to - i) * sizeof(float);
  __builtin_memcpy(s, m.slow + i, bytes);
  __builtin_memcpy(o, m.online + i, bytes);
  average_vector(s, o, rate, near);
  __builtin_memcpy(m.slow + i, s, bytes);
}

constexpr Kernels table(const char* name) {
  return {name,
          winograd_pack, winograd_forward, winograd_backward, winograd_unpack,
          strided_pack, strided_forward, strided_backward, strided_unpack,
          stack_pack, stack_forward, stack_backward, stack_unpack,
          scratch_size,
          matrix_packed, matrix_pack, matrix_multiply,
          spread_forward, spread_pack_back, spread_backward,
          adam_step, average_step};
}

}  // namespace
}  // namespace kstep
