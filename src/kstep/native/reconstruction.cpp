// SAC-AE's loss in one pass over the pixels: target, squared error and its gradient.
//
//      target = (level + noise) / 2^bits - 1/2      level: the upper bits of a byte, noise in [0, 1)
//      error = mean of (prediction - target)^2      gradient: 2 (prediction - target) / pixels
//
// Stacks are (B, S, F, W, C) bytes, of whose F rows the first H are seen; all else is (B, H, W, S C).
// Each image has a sum of its own, and these are added in their order.
#include <vector>

#include "calls.h"

namespace kstep {
namespace {

struct Pixels {
  int32_t batch, frames, rows, height, width, colours, bits;
};

constexpr int kLanes = 16;

double image(const Pixels& p, const float* prediction, const uint8_t* stack, float* noise,
             float scale, float* levels) {
  const int line = p.width * p.frames * p.colours, shift = 8 - p.bits;
  const float step = 1.f / (float)(1 << p.bits);  // a power of two: the product is exact
  double total = 0;
  for (int y = 0; y < p.height; y++, prediction += line, noise += line) {
    for (int f = 0; f < p.frames; f++) {
      const uint8_t* bytes = stack + ((size_t)f * p.rows + y) * p.width * p.colours;
      float* to = levels + f * p.colours;
      for (int x = 0; x < p.width; x++, to += p.frames * p.colours)
        for (int c = 0; c < p.colours; c++) to[c] = (float)(*bytes++ >> shift);
    }
    float sum[kLanes] = {};
    int i = 0;
    for (; i + kLanes <= line; i += kLanes)
      for (int j = 0; j < kLanes; j++) {
        const float d = prediction[i + j] - ((levels[i + j] + noise[i + j]) * step - 0.5f);
        noise[i + j] = d * scale;
        sum[j] += d * d;
      }
    for (int j = 0; i < line; i++, j++) {
      const float d = prediction[i] - ((levels[i] + noise[i]) * step - 0.5f);
      noise[i] = d * scale;
      sum[j] += d * d;
    }
    for (float each : sum) total += each;
  }
  return total;
}

// The generator of PyTorch's CPU (Matsumoto & Nishimura 1998), the first `count` draws of a seed.
class Mersenne {
 public:
  explicit Mersenne(uint32_t seed) {
    state_[0] = seed;
    for (uint32_t i = 1; i < kSize; i++)
      state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }

  void uniform(float* out, int64_t count) {
    for (int64_t from = 0; from < count; from += kSize) {
      renew();
      const int last = (int)std::min<int64_t>(kSize, count - from);
      for (int i = 0; i < last; i++) {
        uint32_t y = state_[i];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        y ^= y >> 18;
        out[from + i] = (float)(int32_t)(y & 0xffffff) * (1.f / (1 << 24));
      }
    }
  }

 private:
  static constexpr int kSize = 624, kApart = 397;

  static uint32_t mixed(uint32_t a, uint32_t b) {
    const uint32_t y = (a & 0x80000000u) | (b & 0x7fffffffu);
    return (y >> 1) ^ ((0u - (b & 1)) & 0x9908b0dfu);
  }
  void renew() {
    int i = 0;
    for (; i < kSize - kApart; i++) state_[i] = state_[i + kApart] ^ mixed(state_[i], state_[i + 1]);
    for (; i < kSize - 1; i++)
      state_[i] = state_[i + kApart - kSize] ^ mixed(state_[i], state_[i + 1]);
    state_[i] = state_[kApart - 1] ^ mixed(state_[i], state_[0]);
  }

  uint32_t state_[kSize];
};

}  // namespace
}  // namespace kstep

// `noise` (B, H, W, S C) becomes the gradient; `error` receives the mean.
KSTEP_API const char* kstep_reconstruction(const kstep::Pixels* p, const float* prediction,
                                           const uint8_t* stacks, float* noise, double* error,
                                           int32_t threads) {
  if (!p || threads < 1) return "pixels and at least one thread";
  if (p->batch < 1 || p->frames < 1 || p->height < 1 || p->width < 1 || p->colours < 1 ||
      p->rows < p->height || p->bits < 1 || p->bits > 8)
    return "at least one pixel and 1 to 8 bits";
  const size_t line = (size_t)p->width * p->frames * p->colours, size = line * p->height;
  const size_t bytes = (size_t)p->frames * p->rows * p->width * p->colours;
  const double number = (double)size * p->batch;
  return kstep::guarded([&] {
    kstep::Pool& pool = kstep::Pool::here();
    std::lock_guard<std::mutex> lock(pool.busy);
    threads = std::min(threads, kstep::kMostThreads);
    std::vector<double> sums(p->batch);
    std::vector<float> levels(line * threads);
    pool.run(p->batch, threads, [&](int n, int worker) {
      sums[n] = kstep::image(*p, prediction + size * n, stacks + bytes * n, noise + size * n,
                             (float)(2 / number), levels.data() + line * worker);
    });
    double total = 0;
    for (double sum : sums) total += sum;
    *error = total / number;
  });
}

// What torch.rand draws from a CPU generator right after its seed was set.
KSTEP_API const char* kstep_uniform(uint32_t seed, int64_t count, float* out) {
  if (count < 0) return "a count of 0 or more";
  kstep::Mersenne(seed).uniform(out, count);
  return nullptr;
}
