// The kernels for vectors of 16 floats: AVX-512, on servers and some desktops.
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
// After the headers: only what follows may use these instructions, whatever the compiler's options.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

namespace kstep {
namespace {

struct V {
  using Reg = __m512;
  static constexpr int width = 16;
  // Rows of a microkernel: 12 x 2 accumulators, 2 weights and a pixel in 32 registers.
  static constexpr int rows = 12;
  // Tiles of a block: forward 110 kB, backward 220 kB; such processors have 1 MB or more.
  static constexpr int forward_tiles = 24, backward_tiles = 24;

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg all(float x) { return _mm512_set1_ps(x); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Reg load_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
  }
  static void store(float* p, Reg a) { _mm512_storeu_ps(p, a); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg sqrt(Reg a) { return _mm512_sqrt_ps(a); }
  // NaN if b is, a if only a is: what may be NaN comes second, or it would vanish.
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
  static Reg fnma(Reg a, Reg b, Reg c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  // y <= 0 ? 0 : a. Where y is NaN the gradient passes, as in PyTorch.
  static Reg where_positive(Reg y, Reg a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, zero(), _CMP_NLE_UQ), a);
  }
};

}  // namespace
}  // namespace kstep

#include "winograd.h"
// After it, which it builds on.
#include "matrix.h"

namespace kstep {
const Kernels* avx512_kernels() {
  static constexpr Kernels kernels = table("avx512");
  return &kernels;
}
}  // namespace kstep
#else
namespace kstep {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace kstep
#endif
