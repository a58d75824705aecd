// The encoder's convolutions over a vector type V of 8 or 16 floats.
//
// Compiled twice: included by avx2.cpp and avx512.cpp only, after they have chosen an instruction
// set and defined V. All of it is in an unnamed namespace and uses no template of the standard
// library, so that no function compiled for one processor can be linked into the other's code.
//
// Winograd's F(4x4, 3x3) (Lavin & Gray 2015, arXiv:1509.09308). A tile of 6x6 inputs gives 4x4
// outputs. In one dimension, with matrices of small constants,
//
//     outputs (4) = A^T [ (G weights (3)) * (B^T inputs (6)) ]        * is element by element
//
// so 4 outputs cost 6 products instead of 12; in two dimensions 16 cost 36 instead of 144. For 32
// channels each element-by-element product is a small matrix product, tiles x 32 x 32, one for each
// of the 36 "frequencies":
//
//     input  --B^T . B-->  V [36][tiles][32]  --x U [36][32][32]-->  M [36][tiles][32]  --A^T . A-->  output
//
// All of it is linear, so backward is its exact transpose, and Z serves both gradients:
//
//     gradient --A . A^T-->  Z [36][tiles][32]  --x U^T-->  [36][tiles][32]  --B . B^T-->  added to input gradient
//                            V^T x Z, summed over tiles  ->  [36][32][32]   --G^T . G-->  weight gradient
//
// Blocks of a few tiles go through these stages while they are in the level 2 cache. Everything
// else (the first layer, stride 2) is a direct convolution on the same kind of microkernel: some
// pixels x two vectors of output channels in registers, one multiply-add per weight and pixel.
#pragma once
#include "kernels.h"

// Microkernels stay out of line: inlined, the compiler spills their accumulators (1.7x as long).
#define KSTEP_KERNEL static __attribute__((noinline))
#define KSTEP_INLINE static inline __attribute__((always_inline))
// Loops over registers must vanish, or the accumulators would live in memory.
#define KSTEP_UNROLL _Pragma("GCC unroll 16")

namespace kstep {
namespace {

constexpr int C = kChannels;
constexpr int W = V::width;
constexpr int kColumns = 2 * W;  // output channels per microkernel: two vectors
static_assert(C % kColumns == 0, "");

using R = V::Reg;

KSTEP_INLINE int least(int a, int b) { return a < b ? a : b; }
KSTEP_INLINE int up(int a, int multiple) { return (a + multiple - 1) / multiple * multiple; }

// ---- microkernels

// out[kRows][kColumns] = left[kRows][32] x right[32][kColumns]; rows of left and out are 32 apart.
template <int kRows>
KSTEP_KERNEL void product(const float* left, const float* right, float* out) {
  R sum[kRows][2];
  KSTEP_UNROLL
  for (int i = 0; i < kRows; i++) sum[i][0] = sum[i][1] = V::zero();
#pragma GCC unroll 4
  for (int c = 0; c < C; c++) {
    const R w0 = V::load(right + c * kColumns), w1 = V::load(right + c * kColumns + W);
    KSTEP_UNROLL
    for (int i = 0; i < kRows; i++) {
      const R b = V::broadcast(left + i * C + c);
      sum[i][0] = V::fma(b, w0, sum[i][0]);
      sum[i][1] = V::fma(b, w1, sum[i][1]);
    }
  }
  KSTEP_UNROLL
  for (int i = 0; i < kRows; i++) {
    V::store(out + i * C, sum[i][0]);
    V::store(out + i * C + W, sum[i][1]);
  }
}

// What a direct convolution reads: `count` rows of `run` consecutive floats per pixel, the pixels
// `step` apart.
struct Rows {
  const float* row[48];  // 3 rows of each of up to 16 frames
  int count, run, step;
};

// out[kPixels][kColumns] = max(floor, bias + pixels x weights [count * run][kColumns])
template <int kPixels>
KSTEP_KERNEL void direct(const Rows& in, int first, const float* weight, const float* bias,
                         float floor, float* out, int out_step) {
  R sum[kPixels][2];
  KSTEP_UNROLL
  for (int i = 0; i < kPixels; i++) sum[i][0] = V::load(bias), sum[i][1] = V::load(bias + W);
  const int step = in.step, run = in.run;
  for (int r = 0; r < in.count; r++) {
    const float* p = in.row[r] + (ptrdiff_t)first * step;
    for (int k = 0; k < run; k++, p++, weight += kColumns) {
      const R w0 = V::load(weight), w1 = V::load(weight + W);
      KSTEP_UNROLL
      for (int i = 0; i < kPixels; i++) {
        const R b = V::broadcast(p + (ptrdiff_t)i * step);
        sum[i][0] = V::fma(b, w0, sum[i][0]);
        sum[i][1] = V::fma(b, w1, sum[i][1]);
      }
    }
  }
  const R low = V::all(floor);
  KSTEP_UNROLL
  for (int i = 0; i < kPixels; i++) {
    V::store(out + (ptrdiff_t)i * out_step, V::max(low, sum[i][0]));
    V::store(out + (ptrdiff_t)i * out_step + W, V::max(low, sum[i][1]));
  }
}

// sum[i][32] += sum over p < count of left[p * step + i] * right[p][32], for i < kRows
template <int kRows>
KSTEP_KERNEL void outer(const float* left, int step, const float* right, int count, float* sum) {
  for (int h = 0; h < C; h += kColumns) {
    R s[kRows][2];
    KSTEP_UNROLL
    for (int i = 0; i < kRows; i++) {
      s[i][0] = V::load(sum + i * C + h);
      s[i][1] = V::load(sum + i * C + h + W);
    }
    const float *l = left, *r = right + h;
#pragma GCC unroll 2
    for (int p = 0; p < count; p++, l += step, r += C) {
      const R r0 = V::load(r), r1 = V::load(r + W);
      KSTEP_UNROLL
      for (int i = 0; i < kRows; i++) {
        const R b = V::broadcast(l + i);
        s[i][0] = V::fma(b, r0, s[i][0]);
        s[i][1] = V::fma(b, r1, s[i][1]);
      }
    }
    KSTEP_UNROLL
    for (int i = 0; i < kRows; i++) {
      V::store(sum + i * C + h, s[i][0]);
      V::store(sum + i * C + h + W, s[i][1]);
    }
  }
}

// The microkernel for a number of rows that is known only now.
template <int kPixels>
KSTEP_INLINE void direct_some(int pixels, const Rows& in, int first, const float* weight,
                              const float* bias, float floor, float* out, int out_step) {
  if constexpr (kPixels > 0) {
    if (pixels == kPixels)
      direct<kPixels>(in, first, weight, bias, floor, out, out_step);
    else
      direct_some<kPixels - 1>(pixels, in, first, weight, bias, floor, out, out_step);
  }
}
template <int kRows>
KSTEP_INLINE void outer_some(int rows, const float* left, int step, const float* right, int count,
                             float* sum) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      outer<kRows>(left, step, right, count, sum);
    else
      outer_some<kRows - 1>(rows, left, step, right, count, sum);
  }
}

// Any number of pixels or rows, in parts as equal as possible: a last part of one or two would not
// fill the multiply-add pipeline.
static void direct_row(const Rows& in, int pixels, const float* weight, const float* bias,
                       float floor, float* out, int out_step) {
  const int parts = (pixels + V::rows - 1) / V::rows;
  for (int h = 0; h < C; h += kColumns, weight += (size_t)in.count * in.run * kColumns)
    for (int i = 0; i < parts; i++) {
      const int first = pixels * i / parts, last = pixels * (i + 1) / parts;
      direct_some<V::rows>(last - first, in, first, weight, bias + h, floor,
                           out + (ptrdiff_t)first * out_step + h, out_step);
    }
}
static void outer_rows(const float* left, int step, const float* right, int count, int rows,
                       float* sum) {
  const int parts = (rows + V::rows - 1) / V::rows;
  for (int i = 0; i < parts; i++) {
    const int first = rows * i / parts, last = rows * (i + 1) / parts;
    outer_some<V::rows>(last - first, left + first, step, right, count, sum + first * C);
  }
}

// Where weight (input i, output o) of a packed matrix [inputs][32] lies: columns in blocks.
KSTEP_INLINE size_t packed_at(int inputs, int i, int o) {
  return ((size_t)(o / kColumns) * inputs + i) * kColumns + o % kColumns;
}

// Ask for one of 36 slices of [from, from + length) ahead of time: the hardware does not foresee
// jumps from one row of tiles to the next. Worth 12 % where maps do not fit into the caches.
KSTEP_INLINE void prefetch(const float* base, size_t from, size_t length, size_t end, int slice,
                           bool write) {
  size_t a = (from + length * slice / 36) & ~(size_t)15, e = from + length * (slice + 1) / 36;
  if (e > end) e = end;
  for (; a < e; a += 16) {
    if (write)
      __builtin_prefetch(base + a, 1, 3);
    else
      __builtin_prefetch(base + a, 0, 2);
  }
}

// ---- Winograd: transforms in one dimension

KSTEP_INLINE void b_transposed(const R* d, R* t) {  // t = B^T d
  const R c4 = V::all(4), c5 = V::all(5), c2 = V::all(2);
  const R a = V::fnma(c4, d[2], d[4]), b = V::fnma(c4, d[1], d[3]);
  const R c = V::sub(d[4], d[2]), e = V::sub(d[3], d[1]);
  t[0] = V::fma(c4, d[0], V::fnma(c5, d[2], d[4]));
  t[1] = V::add(a, b);
  t[2] = V::sub(a, b);
  t[3] = V::fma(c2, e, c);
  t[4] = V::fnma(c2, e, c);
  t[5] = V::fma(c4, d[1], V::fnma(c5, d[3], d[5]));
}
KSTEP_INLINE void b_plain(const R* t, R* d) {  // d = B t
  const R c4 = V::all(4), c5 = V::all(5), none = V::zero();
  const R s1 = V::add(t[1], t[2]), d1 = V::sub(t[1], t[2]);
  const R s3 = V::add(t[3], t[4]), d3 = V::sub(t[3], t[4]), g = V::add(d3, d3);
  d[0] = V::mul(c4, t[0]);
  d[1] = V::fma(c4, V::sub(t[5], d1), V::sub(none, g));
  d[2] = V::fnma(c5, t[0], V::fnma(c4, s1, V::sub(none, s3)));
  d[3] = V::fnma(c5, t[5], V::add(d1, g));
  d[4] = V::add(t[0], V::add(s1, s3));
  d[5] = t[5];
}
KSTEP_INLINE void a_transposed(const R* m, R* y) {  // y = A^T m
  const R c4 = V::all(4), c8 = V::all(8), c2 = V::all(2);
  const R s1 = V::add(m[1], m[2]), d1 = V::sub(m[1], m[2]);
  const R s2 = V::add(m[3], m[4]), d2 = V::sub(m[3], m[4]);
  y[0] = V::add(m[0], V::add(s1, s2));
  y[1] = V::fma(c2, d2, d1);
  y[2] = V::fma(c4, s2, s1);
  y[3] = V::add(m[5], V::fma(c8, d2, d1));
}
KSTEP_INLINE void a_plain(const R* y, R* r) {  // r = A y
  const R c4 = V::all(4), c2 = V::all(2);
  const R e = V::add(y[0], y[2]), o = V::add(y[1], y[3]);
  const R e4 = V::fma(c4, y[2], y[0]), o4 = V::fma(c4, y[3], y[1]);
  r[0] = y[0];
  r[1] = V::add(e, o);
  r[2] = V::sub(e, o);
  r[3] = V::fma(c2, o4, e4);
  r[4] = V::fnma(c2, o4, e4);
  r[5] = y[3];
}

constexpr double kG[6][3] = {{1 / 4., 0, 0},
                             {-1 / 6., -1 / 6., -1 / 6.},
                             {-1 / 6., 1 / 6., -1 / 6.},
                             {1 / 24., 1 / 12., 1 / 6.},
                             {1 / 24., -1 / 12., 1 / 6.},
                             {0, 0, 1}};

// U = G w G^T for every pair of channels, [36] packed matrices [in][out]; transposed: [out][in].
static void winograd_pack(const float* weight, float* packed, bool transposed) {
  for (int o = 0; o < C; o++)
    for (int i = 0; i < C; i++) {
      const float* w = weight + (size_t)o * 9 * C + i;
      double t[6][3];
      for (int f = 0; f < 6; f++)
        for (int b = 0; b < 3; b++)
          t[f][b] = kG[f][0] * w[b * C] + kG[f][1] * w[(3 + b) * C] + kG[f][2] * w[(6 + b) * C];
      float* to = packed + (transposed ? packed_at(C, o, i) : packed_at(C, i, o));
      for (int f = 0; f < 6; f++)
        for (int g = 0; g < 6; g++)
          to[(f * 6 + g) * C * C] =
              (float)(t[f][0] * kG[g][0] + t[f][1] * kG[g][1] + t[f][2] * kG[g][2]);
    }
}

// weight gradient = G^T sum G, sum [36][in][out]
static void winograd_unpack(const float* sum, float* gradient) {
  for (int o = 0; o < C; o++)
    for (int i = 0; i < C; i++) {
      const float* s = sum + i * C + o;
      double t[3][6];
      for (int a = 0; a < 3; a++)
        for (int g = 0; g < 6; g++) {
          t[a][g] = 0;
          for (int f = 0; f < 6; f++) t[a][g] += kG[f][a] * s[(f * 6 + g) * C * C];
        }
      for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
          double x = 0;
          for (int g = 0; g < 6; g++) x += t[a][g] * kG[g][b];
          gradient[((size_t)o * 9 + a * 3 + b) * C + i] = (float)x;
        }
    }
}

// ---- Winograd: tiles

// Floats from one frequency of a block of `tiles` to the next: an odd number of cache lines, so
// that the 36 frequencies of a tile do not all fall into the same few sets of the cache.
constexpr int pitch(int tiles) { return tiles * C + 16; }
constexpr int kForward = pitch(V::forward_tiles), kBackward = pitch(V::backward_tiles);
static_assert(V::forward_tiles % V::rows == 0 && V::backward_tiles % V::rows == 0, "");

// A walk over the tiles of some images, image by image, row by row.
struct Walk {
  int rows, columns;  // tiles of one image
  int image, row, column;
  Walk(int out_height, int out_width)
      : rows((out_height + 3) / 4), columns((out_width + 3) / 4), image(0), row(0), column(0) {}
  void next() {
    if (++column == columns) {
      column = 0;
      if (++row == rows) row = 0, image++;
    }
  }
};

// B^T tile B of 6x6 pixels whose rows are `line` floats apart, to frequencies kPitch apart.
template <int kPitch>
KSTEP_INLINE void input_tile(const float* x, int line, float* to) {
  for (int c = 0; c < C; c += W) {
    R half[6][6];
    KSTEP_UNROLL
    for (int j = 0; j < 6; j++) {
      R d[6], t[6];
      KSTEP_UNROLL
      for (int i = 0; i < 6; i++) d[i] = V::load(x + (ptrdiff_t)i * line + j * C + c);
      b_transposed(d, t);
      KSTEP_UNROLL
      for (int i = 0; i < 6; i++) half[i][j] = t[i];
    }
    KSTEP_UNROLL
    for (int i = 0; i < 6; i++) {
      R t[6];
      b_transposed(half[i], t);
      KSTEP_UNROLL
      for (int j = 0; j < 6; j++) V::store(to + (i * 6 + j) * kPitch + c, t[j]);
    }
  }
}
// The same anywhere in an image; what lies beyond its edge is zero. `pad` holds 36 pixels.
template <int kPitch>
KSTEP_INLINE void input_tile_at(const float* image, int height, int width, int row, int column,
                                float* to, float* pad) {
  const float* x = image + ((size_t)row * width + column) * C;
  if (row + 6 <= height && column + 6 <= width) {
    input_tile<kPitch>(x, width * C, to);
    return;
  }
  const int h = least(6, height - row), w = least(6, width - column);
  __builtin_memset(pad, 0, 36 * C * sizeof(float));
  for (int i = 0; i < h; i++)
    __builtin_memcpy(pad + i * 6 * C, x + (size_t)i * width * C, w * C * sizeof(float));
  input_tile<kPitch>(pad, 6 * C, to);
}

// max(0, bias + A^T m A): 4x4 outputs, of which the first h x w exist.
template <int kPitch>
KSTEP_INLINE void output_tile(const float* m, const float* bias, float* y, int width, int h,
                              int w) {
  for (int c = 0; c < C; c += W) {
    R half[4][6];
    const R b = V::load(bias + c);
    KSTEP_UNROLL
    for (int j = 0; j < 6; j++) {
      R a[6], r[4];
      KSTEP_UNROLL
      for (int i = 0; i < 6; i++) a[i] = V::load(m + (i * 6 + j) * kPitch + c);
      a_transposed(a, r);
      KSTEP_UNROLL
      for (int i = 0; i < 4; i++) half[i][j] = r[i];
    }
    KSTEP_UNROLL
    for (int i = 0; i < 4; i++) {
      R r[4];
      a_transposed(half[i], r);
      KSTEP_UNROLL
      for (int j = 0; j < 4; j++)
        if (i < h && j < w)
          V::store(y + ((ptrdiff_t)i * width + j) * C + c, V::max(V::zero(), V::add(r[j], b)));
    }
  }
}

// A g A^T of 4x4 gradients (the first h x w exist), zero where `output` is not positive; their sum
// is added to `bias`.
template <int kPitch>
KSTEP_INLINE void gradient_tile(const float* g, const float* output, int width, int h, int w,
                                float* to, R* bias) {
  for (int c = 0; c < C; c += W) {
    R half[6][4], sum = V::zero();
    KSTEP_UNROLL
    for (int j = 0; j < 4; j++) {
      R a[4], r[6];
      KSTEP_UNROLL
      for (int i = 0; i < 4; i++) {
        const ptrdiff_t at = ((ptrdiff_t)i * width + j) * C + c;
        a[i] = V::zero();
        if (i < h && j < w) {
          a[i] = V::load(g + at);
          if (output) a[i] = V::where_positive(V::load(output + at), a[i]);
        }
        sum = V::add(sum, a[i]);
      }
      a_plain(a, r);
      KSTEP_UNROLL
      for (int i = 0; i < 6; i++) half[i][j] = r[i];
    }
    bias[c / W] = V::add(bias[c / W], sum);
    KSTEP_UNROLL
    for (int i = 0; i < 6; i++) {
      R r[6];
      a_plain(half[i], r);
      KSTEP_UNROLL
      for (int j = 0; j < 6; j++) V::store(to + (i * 6 + j) * kPitch + c, r[j]);
    }
  }
}

// B m B^T, added to the 6x6 pixels at x (the first h x w exist). Neighbours overlap by two pixels;
// where no earlier tile has been (`top`, `left`: there is one above, one before) it is stored.
template <int kPitch>
KSTEP_INLINE void input_gradient_tile(const float* m, float* x, int width, int h, int w, bool top,
                                      bool left) {
  for (int c = 0; c < C; c += W) {
    R half[6][6];
    KSTEP_UNROLL
    for (int j = 0; j < 6; j++) {
      R a[6], r[6];
      KSTEP_UNROLL
      for (int i = 0; i < 6; i++) a[i] = V::load(m + (i * 6 + j) * kPitch + c);
      b_plain(a, r);
      KSTEP_UNROLL
      for (int i = 0; i < 6; i++) half[i][j] = r[i];
    }
    KSTEP_UNROLL
    for (int i = 0; i < 6; i++) {
      R r[6];
      b_plain(half[i], r);
      KSTEP_UNROLL
      for (int j = 0; j < 6; j++)
        if (i < h && j < w) {
          float* to = x + ((ptrdiff_t)i * width + j) * C + c;
          const bool seen = (i < 2 && top) || (j < 2 && left);
          V::store(to, seen ? V::add(V::load(to), r[j]) : r[j]);
        }
    }
  }
}

// Zero the tiles from `tiles` to the next multiple of the microkernel's rows; returns that number.
template <int kPitch>
KSTEP_INLINE int fill_up(float* block, int tiles) {
  const int rows = up(tiles, V::rows);
  if (rows > tiles)
    for (int f = 0; f < 36; f++)
      __builtin_memset(block + f * kPitch + tiles * C, 0, (rows - tiles) * C * sizeof(float));
  return rows;
}

// One frequency: out[tiles][32] = in[tiles][32] x packed [32][32]
KSTEP_INLINE void product_tiles(const float* in, const float* packed, float* out, int tiles) {
  for (int h = 0; h < C; h += kColumns)
    for (int t = 0; t < tiles; t += V::rows)
      product<V::rows>(in + t * C, packed + h * C, out + t * C + h);
}

static void winograd_forward(const float* input, const float* packed, const float* bias,
                             float* output, Images images, float* scratch) {
  constexpr int kPitch = kForward;
  const int height = images.height, width = images.width, oh = height - 2, ow = width - 2;
  // Products go one frequency before their inputs: the block needs no second buffer.
  float *products = scratch, *block = products + kPitch, *pad = block + 36 * kPitch;
  Walk in(oh, ow), out(oh, ow);
  const int per_image = in.rows * in.columns, all = images.count * per_image;
  const size_t in_image = (size_t)height * width * C, out_image = (size_t)oh * ow * C;
  for (int first = 0; first < all; first += V::forward_tiles) {
    const int tiles = least(V::forward_tiles, all - first);
    for (int t = 0; t < tiles; t++, in.next())
      input_tile_at<kPitch>(input + in.image * in_image, height, width, in.row * 4, in.column * 4,
                            block + t * C, pad);
    const int rows = fill_up<kPitch>(block, tiles);
    for (int f = 0; f < 36; f++) {
      product_tiles(block + f * kPitch, packed + f * C * C, products + f * kPitch, rows);
      const size_t in_tile = in_image / per_image, out_tile = out_image / per_image;
      prefetch(input, (first + tiles) * in_tile + (size_t)5 * width * C, tiles * in_tile,
               images.count * in_image, f, false);
      prefetch(output, first * out_tile + (size_t)3 * ow * C, tiles * out_tile,
               images.count * out_image, f, true);
    }
    for (int t = 0; t < tiles; t++, out.next()) {
      float* y = output + out.image * out_image + ((size_t)out.row * 4 * ow + out.column * 4) * C;
      const int h = oh - out.row * 4, w = ow - out.column * 4;
      // With constants the compiler drops every test inside: nearly all tiles are whole.
      if (h >= 4 && w >= 4)
        output_tile<kPitch>(products + t * C, bias, y, ow, 4, 4);
      else
        output_tile<kPitch>(products + t * C, bias, y, ow, h, w);
    }
  }
}

static void winograd_backward(const float* gradient, const float* output, const float* input,
                              const float* packed_back, float* input_gradient, float* weight_sum,
                              float* bias_sum, Images images, float* scratch) {
  constexpr int kPitch = kBackward;
  const int height = images.height, width = images.width, oh = height - 2, ow = width - 2;
  float *inputs = scratch, *products = inputs + 36 * kPitch, *gradients = products + kPitch,
        *pad = gradients + 36 * kPitch;
  Walk in(oh, ow), out(oh, ow);
  const int per_image = in.rows * in.columns, all = images.count * per_image;
  const size_t in_image = (size_t)height * width * C, out_image = (size_t)oh * ow * C;
  R bias[C / W];
  for (int c = 0; c < C; c += W) bias[c / W] = V::load(bias_sum + c);
  for (int first = 0; first < all; first += V::backward_tiles) {
    const int tiles = least(V::backward_tiles, all - first);
    for (int t = 0; t < tiles; t++, in.next()) {
      input_tile_at<kPitch>(input + in.image * in_image, height, width, in.row * 4, in.column * 4,
                            inputs + t * C, pad);
      const size_t at = in.image * out_image + ((size_t)in.row * 4 * ow + in.column * 4) * C;
      const int h = oh - in.row * 4, w = ow - in.column * 4;
      if (h >= 4 && w >= 4 && output)
        gradient_tile<kPitch>(gradient + at, output + at, ow, 4, 4, gradients + t * C, bias);
      else
        gradient_tile<kPitch>(gradient + at, output ? output + at : nullptr, ow, h, w,
                              gradients + t * C, bias);
    }
    const int rows = fill_up<kPitch>(gradients, tiles);
    for (int f = 0; f < 36; f++) {
      outer_rows(inputs + f * kPitch, C, gradients + f * kPitch, tiles, C, weight_sum + f * C * C);
      if (input_gradient)
        product_tiles(gradients + f * kPitch, packed_back + f * C * C, products + f * kPitch, rows);
      const size_t in_tile = in_image / per_image, out_tile = out_image / per_image;
      const size_t next_in = (first + tiles) * in_tile + (size_t)5 * width * C;
      const size_t next_out = (first + tiles) * out_tile + (size_t)3 * ow * C;
      prefetch(gradient, next_out, tiles * out_tile, images.count * out_image, f, false);
      if (output)
        prefetch(output, next_out, tiles * out_tile, images.count * out_image, f, false);
      prefetch(input, next_in, tiles * in_tile, images.count * in_image, f, false);
      if (input_gradient)
        prefetch(input_gradient, next_in - tiles * in_tile, tiles * in_tile,
                 images.count * in_image, f, true);
    }
    if (!input_gradient) continue;
    for (int t = 0; t < tiles; t++, out.next()) {
      float* x =
          input_gradient + out.image * in_image + ((size_t)out.row * 4 * width + out.column * 4) * C;
      const int h = height - out.row * 4, w = width - out.column * 4;
      if (h >= 6 && w >= 6 && out.row && out.column)
        input_gradient_tile<kPitch>(products + t * C, x, width, 6, 6, true, true);
      else
        input_gradient_tile<kPitch>(products + t * C, x, width, h, w, out.row, out.column);
    }
  }
  for (int c = 0; c < C; c += W) V::store(bias_sum + c, bias[c / W]);
}

// ---- direct convolutions

// One row of gradients, zero where the output is not positive; the sum over pixels goes to bias.
KSTEP_INLINE void masked_row(const float* gradient, const float* output, int pixels, float* to,
                             float* bias_sum) {
  R bias[C / W];
  for (int c = 0; c < C; c += W) bias[c / W] = V::load(bias_sum + c);
  for (int p = 0; p < pixels * C; p += C)
    for (int c = 0; c < C; c += W) {
      R g = V::load(gradient + p + c);
      if (output) g = V::where_positive(V::load(output + p + c), g);
      bias[c / W] = V::add(bias[c / W], g);
      V::store(to + p + c, g);
    }
  for (int c = 0; c < C; c += W) V::store(bias_sum + c, bias[c / W]);
}

alignas(64) constexpr float kNoBias[C] = {};
constexpr float kNoFloor = -__builtin_inff();

// 32 -> 32, stride 2. Forward: [row][column, input] x output. Backward, the input pixels fall into
// four classes by the parity of row and column, each a small convolution of the gradient: even ones
// see weights 2 and 0 of the gradient pixels before and at half their place, odd ones weight 1.
static void strided_pack(const float* weight, float* packed, bool transposed) {
  if (!transposed) {
    for (int o = 0; o < C; o++)
      for (int k = 0; k < 9 * C; k++) packed[packed_at(9 * C, k, o)] = weight[(size_t)o * 9 * C + k];
    return;
  }
  for (int odd_row = 0; odd_row < 2; odd_row++)
    for (int odd_column = 0; odd_column < 2; odd_column++) {
      const int rows = 2 - odd_row, columns = 2 - odd_column, inputs = rows * columns * C;
      for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
          const int kh = odd_row ? 1 : 2 - 2 * r, kw = odd_column ? 1 : 2 - 2 * c;
          for (int o = 0; o < C; o++)
            for (int i = 0; i < C; i++)
              packed[packed_at(inputs, (r * columns + c) * C + o, i)] =
                  weight[((size_t)o * 9 + kh * 3 + kw) * C + i];
        }
      packed += (size_t)inputs * C;
    }
}

static void strided_unpack(const float* sum, float* gradient) {
  for (int o = 0; o < C; o++)
    for (int k = 0; k < 9 * C; k++) gradient[(size_t)o * 9 * C + k] = sum[(size_t)k * C + o];
}

static void strided_forward(const float* input, const float* packed, const float* bias,
                            float* output, Images images, float*) {
  const int oh = output_side(images.height, 2), ow = output_side(images.width, 2);
  const size_t line = (size_t)images.width * C;
  Rows rows{{}, 3, 3 * C, 2 * C};
  for (int n = 0; n < images.count; n++, input += images.height * line)
    for (int r = 0; r < oh; r++, output += (size_t)ow * C) {
      for (int k = 0; k < 3; k++) rows.row[k] = input + (2 * r + k) * line;
      direct_row(rows, ow, packed, bias, 0, output, C);
    }
}

static void strided_backward(const float* gradient, const float* output, const float* input,
                             const float* packed_back, float* input_gradient, float* weight_sum,
                             float* bias_sum, Images images, float* scratch) {
  const int height = images.height, width = images.width;
  const int oh = output_side(height, 2), ow = output_side(width, 2);
  const size_t line = (size_t)width * C, padded = (size_t)(ow + 2) * C;
  for (int n = 0; n < images.count; n++) {
    // The masked gradient of one image with a frame of zeros, one pixel wide.
    __builtin_memset(scratch, 0, (oh + 2) * padded * sizeof(float));
    for (int r = 0; r < oh; r++, gradient += (size_t)ow * C) {
      float* g = scratch + (r + 1) * padded + C;
      masked_row(gradient, output, ow, g, bias_sum);
      if (output) output += (size_t)ow * C;
      for (int k = 0; k < 3; k++)
        outer_rows(input + (2 * r + k) * line, 2 * C, g, ow, 3 * C, weight_sum + k * 3 * C * C);
    }
    input += height * line;
    if (!input_gradient) continue;
    // An even side leaves its last line without any gradient: stride 2 never reaches it. It is
    // an odd line whose gradient pixel lies in the frame of zeros.
    for (int r = 0; r < height; r++, input_gradient += line) {
      const float* packed = packed_back + (r % 2 ? (size_t)6 * C * C : 0);
      for (int odd = 0; odd < 2; odd++) {
        Rows rows{{}, 2 - r % 2, (2 - odd) * C, C};
        for (int k = 0; k < rows.count; k++)
          rows.row[k] = scratch + (r / 2 + (r % 2 ? 1 : k)) * padded + (odd ? C : 0);
        const int pixels = (width + 1 - odd) / 2;
        direct_row(rows, pixels, packed, kNoBias, kNoFloor, input_gradient + odd * C, 2 * C);
        packed += (size_t)rows.count * rows.run * C;
      }
    }
  }
}

// The first layer. A stack's frames lie one after the other; to interleave their channels would be
// work. Instead each row of each frame becomes floats as it is, and the weights are packed in the
// order of the rows: [row][frame][column, colour] x output.
static void stack_pack(const float* weight, float* packed, Stack s) {
  const int inputs = s.frames * s.colours;
  for (int o = 0; o < C; o++)
    for (int kh = 0; kh < 3; kh++)
      for (int f = 0; f < s.frames; f++)
        for (int kw = 0; kw < 3; kw++)
          for (int c = 0; c < s.colours; c++)
            packed[packed_at(9 * inputs, ((kh * s.frames + f) * 3 + kw) * s.colours + c, o)] =
                weight[((size_t)o * 9 + kh * 3 + kw) * inputs + f * s.colours + c] / 255;
}

static void stack_unpack(const float* sum, float* gradient, Stack s) {
  const int inputs = s.frames * s.colours;
  for (int o = 0; o < C; o++)
    for (int kh = 0; kh < 3; kh++)
      for (int f = 0; f < s.frames; f++)
        for (int kw = 0; kw < 3; kw++)
          for (int c = 0; c < s.colours; c++)
            gradient[((size_t)o * 9 + kh * 3 + kw) * inputs + f * s.colours + c] =
                sum[(size_t)(((kh * s.frames + f) * 3 + kw) * s.colours + c) * C + o] / 255;
}

// The rows of a stack as floats, the last four of each frame: three are in use at a time.
struct Floats {
  float* buffer;
  int line, pitch, converted;

  Floats(float* scratch, int width, Stack s)
      : buffer(scratch), line(width * s.colours), pitch(up(width * s.colours, 16)), converted(0) {}

  // Point at the three rows from `top` of each frame, converting what is not there yet.
  void rows_from(int top, const uint8_t* stack, int height, Stack s, Rows& rows) {
    if (converted < top) converted = top;
    for (; converted < top + 3; converted++)
      for (int f = 0; f < s.frames; f++)
        convert(stack + ((size_t)f * height + converted) * line, at(converted, f, s));
    for (int k = 0; k < 3; k++)
      for (int f = 0; f < s.frames; f++) rows.row[k * s.frames + f] = at(top + k, f, s);
  }
  float* at(int row, int frame, Stack s) {
    return buffer + (size_t)(row % 4 * s.frames + frame) * pitch;
  }
  void convert(const uint8_t* bytes, float* to) {
    int i = 0;
    for (; i + W <= line; i += W) V::store(to + i, V::load_bytes(bytes + i));
    for (; i < line; i++) to[i] = bytes[i];
  }
};
inline size_t floats_size(int width, Stack s) {
  return (size_t)4 * s.frames * up(width * s.colours, 16);
}

static void stack_forward(const uint8_t* input, const float* packed, const float* bias,
                          float* output, Images images, Stack s, float* scratch) {
  const int oh = output_side(images.height, s.stride), ow = output_side(images.width, s.stride);
  const size_t image = (size_t)s.frames * images.height * images.width * s.colours;
  Rows rows{{}, 3 * s.frames, 3 * s.colours, s.stride * s.colours};
  for (int n = 0; n < images.count; n++, input += image) {
    Floats floats(scratch, images.width, s);
    for (int r = 0; r < oh; r++, output += (size_t)ow * C) {
      floats.rows_from(r * s.stride, input, images.height, s, rows);
      direct_row(rows, ow, packed, bias, 0, output, C);
    }
  }
}

static void stack_backward(const float* gradient, const float* output, const uint8_t* input,
                           float* weight_sum, float* bias_sum, Images images, Stack s,
                           float* scratch) {
  const int oh = output_side(images.height, s.stride), ow = output_side(images.width, s.stride);
  const size_t image = (size_t)s.frames * images.height * images.width * s.colours;
  Rows rows{{}, 3 * s.frames, 3 * s.colours, s.stride * s.colours};
  float* masked = scratch + floats_size(images.width, s);
  for (int n = 0; n < images.count; n++, input += image) {
    Floats floats(scratch, images.width, s);
    for (int r = 0; r < oh; r++, gradient += (size_t)ow * C) {
      floats.rows_from(r * s.stride, input, images.height, s, rows);
      masked_row(gradient, output, ow, masked, bias_sum);
      if (output) output += (size_t)ow * C;
      for (int k = 0; k < rows.count; k++)
        outer_rows(rows.row[k], rows.step, masked, ow, rows.run,
                   weight_sum + (size_t)k * rows.run * C);
    }
  }
}

static size_t scratch_size(int height, int width, Stack s) {
  const size_t forward = (size_t)37 * kForward + 36 * C, backward = (size_t)73 * kBackward + 36 * C;
  const size_t strided = (size_t)(height + 4) * (width + 4) * C;
  const size_t stack = floats_size(width, s) + (size_t)width * C;
  size_t most = forward;
  if (backward > most) most = backward;
  if (strided > most) most = strided;
  if (stack > most) most = stack;
  return (most + 15) / 16 * 16;
}

}  // namespace
}  // namespace kstep
