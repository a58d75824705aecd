// Goes through every kernel with memory of exactly the size it may touch; test_native.py compiles
// it with the compiler's sanitizers.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

struct Encoder {
  int32_t batch, frames, height, width, colours, layers, strides[8];
};
extern "C" {
int32_t kstep_native_use(const char*);
const char* kstep_encoder_forward(const Encoder*, const uint8_t*, const float* const*,
                                  const float* const*, float* const*, int32_t, int32_t);
const char* kstep_encoder_backward(const Encoder*, const float*, const uint8_t*,
                                   const float* const*, const float* const*, float* const*,
                                   float* const*, int32_t);
}

static int failures = 0;

static void go(const Encoder& e, int threads) {
  uint32_t state = 1;
  auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
  std::vector<uint8_t> frames((size_t)e.batch * e.frames * e.height * e.width * e.colours);
  for (auto& b : frames) b = next();
  std::vector<std::vector<float>> weights, biases, maps, dw, db;
  int inputs = e.frames * e.colours, h = e.height, w = e.width;
  for (int l = 0; l < e.layers; l++) {
    h = (h - 3) / e.strides[l] + 1, w = (w - 3) / e.strides[l] + 1;
    weights.emplace_back(32 * 9 * inputs);
    for (auto& x : weights.back()) x = (next() % 2001 - 1000.f) / 1000 / inputs;
    biases.emplace_back(32, 0.1f);
    maps.emplace_back((size_t)e.batch * h * w * 32);
    dw.emplace_back(32 * 9 * inputs);
    db.emplace_back(32);
    inputs = 32;
  }
  auto pointers = [](std::vector<std::vector<float>>& v) {
    std::vector<float*> p;
    for (auto& x : v) p.push_back(x.data());
    return p;
  };
  auto pw = pointers(weights), pb = pointers(biases), pm = pointers(maps), pdw = pointers(dw),
       pdb = pointers(db);
  std::vector<float> gradient(maps.back().size(), 1.f);
  std::vector<float*> last(e.layers, nullptr);
  last.back() = maps.back().data();
  const char* wrong[] = {
      kstep_encoder_forward(&e, frames.data(), pw.data(), pb.data(), last.data(), 0, threads),
      kstep_encoder_forward(&e, frames.data(), pw.data(), pb.data(), pm.data(), 1, threads),
      kstep_encoder_backward(&e, gradient.data(), frames.data(), pw.data(), pm.data(), pdw.data(),
                             pdb.data(), threads)};
  for (const char* text : wrong)
    if (text) failures++, fprintf(stderr, "needs %s\n", text);
}

int main() {
  for (const char* name : {"avx2", "avx512"}) {
    if (!kstep_native_use(name)) continue;
    for (int threads : {1, 2, 3})
      for (const Encoder& e : {Encoder{3, 3, 40, 40, 3, 4, {2, 1, 1, 1}},
                               Encoder{18, 3, 33, 30, 3, 3, {2, 2, 1}},
                               Encoder{1, 1, 7, 3, 16, 1, {1}},
                               Encoder{2, 16, 11, 14, 1, 2, {1, 2}},
                               Encoder{0, 3, 40, 40, 3, 2, {2, 1}},
                               Encoder{2, 2, 9, 23, 2, 3, {1, 1, 1}}})
        go(e, threads);
  }
  return failures;
}
