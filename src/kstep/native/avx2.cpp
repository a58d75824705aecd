// The kernels for vectors of 8 floats: processors since about 2013 (AVX2 and FMA).
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
// After the headers: only what follows may use these instructions, whatever the compiler's options.
#pragma GCC target("avx2,fma")

namespace kstep {
namespace {

struct V {
  using Reg = __m256;
  static constexpr int width = 8;
  // Rows of a microkernel: 6 x 2 accumulators, 2 weights and a pixel in 16 registers.
  static constexpr int rows = 6;
  // Tiles of a block: forward 110 kB, backward 170 kB, beside 150 or 300 kB of weights.
  static constexpr int forward_tiles = 24, backward_tiles = 18;

  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg all(float x) { return _mm256_set1_ps(x); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static Reg broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Reg load_bytes(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
  }
  static void store(float* p, Reg a) { _mm256_storeu_ps(p, a); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg sqrt(Reg a) { return _mm256_sqrt_ps(a); }
  // NaN if b is, a if only a is: what may be NaN comes second, or it would vanish.
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }    // a b + c
  static Reg fnma(Reg a, Reg b, Reg c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
  // y <= 0 ? 0 : a. Where y is NaN the gradient passes, as in PyTorch.
  static Reg where_positive(Reg y, Reg a) {
    return _mm256_and_ps(a, _mm256_cmp_ps(y, zero(), _CMP_NLE_UQ));
  }
};

}  // namespace
}  // namespace kstep

#include "winograd.h"
// After it, which it builds on.
#include "matrix.h"

namespace kstep {
const Kernels* avx2_kernels() {
  static constexpr Kernels kernels = table("avx2");
  return &kernels;
}
}  // namespace kstep
#else
namespace kstep {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace kstep
#endif
