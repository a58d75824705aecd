// Goes through every kernel with memory of exactly the size it may touch; test_native.py compiles
// it with the compiler's sanitizers. Views are compared with a plain loop. Prints the instruction
// sets it went through; ends with 77 if there was none.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

struct Encoder {
  int32_t batch, frames, height, width, colours, layers, strides[8];
};
struct View {
  int64_t count, frames;
  int32_t height, width, colours, out_height, out_width, pad, black;
};
struct Product {
  int64_t rows, columns, inner, left_row, left_step, right_row, right_column;
};
struct Adam {
  float* parameter;
  const float* gradient;
  float *average, *square;
  int64_t count;
  float first, second, keep, size, root, epsilon, weight_decay;
};
struct Average {
  float* slow;
  const float* online;
  int64_t count;
  float rate;
};
struct Decoder {
  int32_t batch, height, width, layers, channels, strides[8], heights[8], widths[8];
};
struct Pixels {
  int32_t batch, frames, rows, height, width, colours, bits;
};
extern "C" {
int32_t kstep_native_use(const char*);
const char* kstep_encoder_forward(const Encoder*, const uint8_t*, const float* const*,
                                  const float* const*, float* const*, int32_t, int32_t);
const char* kstep_encoder_backward(const Encoder*, const float*, const uint8_t*,
                                   const float* const*, const float* const*, float* const*,
                                   float* const*, int32_t);
const char* kstep_layer_forward(int32_t, int32_t, int32_t, int32_t, const float*, const float*,
                                const float*, float*);
const char* kstep_layer_backward(int32_t, int32_t, int32_t, int32_t, const float*, const float*,
                                 const float*, const float*, float*, float*, float*);
const char* kstep_product(const Product*, const float*, const float*, const float*, float*,
                          int32_t);
const char* kstep_decoder_forward(const Decoder*, const float*, const float* const*,
                                  const float* const*, float* const*, int32_t);
const char* kstep_decoder_backward(const Decoder*, const float*, const float*, const float* const*,
                                   const float* const*, float*, float* const*, float* const*,
                                   int32_t);
const char* kstep_reconstruction(const Pixels*, const float*, const uint8_t*, float*, double*,
                                 int32_t);
const char* kstep_uniform(uint32_t, int64_t, float*);
const char* kstep_adam(const Adam*, int32_t, int32_t);
const char* kstep_average(const Average*, int32_t, int32_t);
const char* kstep_stacks(const View*, const uint8_t*, const int64_t*, const int64_t*, uint8_t*,
                         int32_t);
}

static int failures = 0;

static void require(const char* needs) {
  if (needs) failures++, fprintf(stderr, "needs %s\n", needs);
}

struct Random {
  uint32_t state = 1;
  uint32_t operator()() { return (state = state * 1664525u + 1013904223u) >> 16; }
};

static std::vector<float*> pointers(std::vector<std::vector<float>>& v) {
  std::vector<float*> p;
  for (auto& x : v) p.push_back(x.data());
  return p;
}

static void encoder(const Encoder& e, int threads) {
  Random next;
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
  auto pw = pointers(weights), pb = pointers(biases), pm = pointers(maps), pdw = pointers(dw),
       pdb = pointers(db);
  std::vector<float> gradient(maps.back().size(), 1.f);
  std::vector<float*> last(e.layers, nullptr);
  last.back() = maps.back().data();
  require(kstep_encoder_forward(&e, frames.data(), pw.data(), pb.data(), last.data(), 0, threads));
  require(kstep_encoder_forward(&e, frames.data(), pw.data(), pb.data(), pm.data(), 1, threads));
  require(kstep_encoder_backward(&e, gradient.data(), frames.data(), pw.data(), pm.data(),
                                 pdw.data(), pdb.data(), threads));
}

static void layer(int count, int height, int width, int stride) {
  Random next;
  const int h = (height - 3) / stride + 1, w = (width - 3) / stride + 1;
  std::vector<float> x((size_t)count * height * width * 32), weight(32 * 9 * 32), bias(32, 0.1f),
      y((size_t)count * h * w * 32), gradient(y.size(), 1.f), dx(x.size()), dw(weight.size()),
      db(32);
  for (auto& v : x) v = next() % 1000 / 1000.f;
  for (auto& v : weight) v = (next() % 2001 - 1000.f) / 32000;
  require(kstep_layer_forward(count, height, width, stride, x.data(), weight.data(), bias.data(),
                              y.data()));
  for (const float* mask : {(const float*)y.data(), (const float*)nullptr})
    require(kstep_layer_backward(count, height, width, stride, gradient.data(), mask, x.data(),
                                 weight.data(), dx.data(), dw.data(), db.data()));
}

// A linear layer and its two gradients.
static void linear(int64_t rows, int64_t inner, int64_t columns, int threads) {
  std::vector<float> x(rows * inner, 1.f), weight(columns * inner, 0.5f), bias(columns, 1.f),
      y(rows * columns), dw(weight.size()), dx(x.size());
  const Product forward{rows, columns, inner, inner, 1, 1, inner};
  const Product of_weight{columns, inner, rows, 1, columns, inner, 1};
  const Product of_input{rows, inner, columns, columns, 1, inner, 1};
  require(kstep_product(&forward, x.data(), weight.data(), bias.data(), y.data(), threads));
  require(kstep_product(&of_weight, y.data(), x.data(), nullptr, dw.data(), threads));
  require(kstep_product(&of_input, y.data(), weight.data(), nullptr, dx.data(), threads));
  for (float value : y)
    if (value != 1 + 0.5f * inner) failures++;
}

static void moves(int threads) {
  std::vector<std::vector<float>> arrays;
  for (int count : {1, 17, 16384, 50001})
    for (int a = 0; a < 4; a++) arrays.emplace_back(count, 1.f);
  std::vector<Adam> adams;
  std::vector<Average> averages;
  for (size_t i = 0; i < arrays.size(); i += 4) {
    float *p = arrays[i].data(), *a = arrays[i + 2].data();
    const int64_t count = arrays[i].size();
    adams.push_back({p, arrays[i + 1].data(), a, arrays[i + 3].data(), count, 0.1f, 0.001f, 0.999f,
                     0.1f, 1, 1e-8f, 0.1f});
    averages.push_back({a, p, count, i % 8 ? 0.7f : 0.1f});
  }
  require(kstep_adam(adams.data(), adams.size(), threads));
  require(kstep_average(averages.data(), averages.size(), threads));
}

// Transposed convolutions: features of height x width, then each output.
static void decoder(const Decoder& d, int threads) {
  Random next;
  std::vector<std::vector<float>> weights, biases, maps, dw, db;
  for (int l = 0; l < d.layers; l++) {
    const int channels = l + 1 == d.layers ? d.channels : 32;
    weights.emplace_back(32 * 9 * channels);
    for (auto& x : weights.back()) x = (next() % 2001 - 1000.f) / 17000;
    biases.emplace_back(channels, 0.1f);
    maps.emplace_back((size_t)d.batch * d.heights[l] * d.widths[l] * channels);
    dw.emplace_back(weights.back().size());
    db.emplace_back(channels);
  }
  std::vector<float> features((size_t)d.batch * d.height * d.width * 32);
  for (auto& x : features) x = (next() % 2001 - 1000.f) / 1000;
  std::vector<float> gradient(maps.back().size(), 1.f), dx(features.size());
  auto pw = pointers(weights), pb = pointers(biases), pm = pointers(maps), pdw = pointers(dw),
       pdb = pointers(db);
  require(kstep_decoder_forward(&d, features.data(), pw.data(), pb.data(), pm.data(), threads));
  require(kstep_decoder_backward(&d, gradient.data(), features.data(), pw.data(), pm.data(),
                                 dx.data(), pdw.data(), pdb.data(), threads));
}

static void pixels(int threads) {
  const Pixels p{5, 2, 9, 8, 7, 3, 5};
  std::vector<float> prediction(5 * 8 * 7 * 6, 0.5f), noise(prediction.size());
  std::vector<uint8_t> stacks(5 * 2 * 9 * 7 * 3, 200);
  double error = 0;
  require(kstep_uniform(7, noise.size(), noise.data()));
  require(kstep_reconstruction(&p, prediction.data(), stacks.data(), noise.data(), &error,
                               threads));
}

static void views(const View& v, int threads) {
  Random next;
  const int slots = 5, last_top = v.height + 2 * v.pad - v.out_height,
            last_left = v.width + 2 * v.pad - v.out_width;
  std::vector<uint8_t> ring((size_t)slots * v.height * v.width * v.colours);
  for (auto& b : ring) b = 1 + next() % 255;
  std::vector<int64_t> slot(v.count * v.frames), place(v.count * 2);
  for (auto& s : slot) s = next() % slots;
  for (int64_t i = 0; i < v.count; i++) {
    // All four corners are among them.
    place[2 * i] = i % 2 ? (i % 3 ? last_top : 0) : next() % (last_top + 1);
    place[2 * i + 1] = i % 2 ? (i % 5 ? last_left : 0) : next() % (last_left + 1);
  }
  std::vector<uint8_t> out(v.count * v.frames * v.out_height * v.out_width * v.colours), expected;
  require(kstep_stacks(&v, ring.data(), slot.data(), place.data(), out.data(), threads));
  for (int64_t i = 0; i < v.count * v.frames; i++)
    for (int r = 0; r < v.out_height; r++)
      for (int c = 0; c < v.out_width; c++) {
        const int y = r + (int)place[i / v.frames * 2] - v.pad;
        const int x = c + (int)place[i / v.frames * 2 + 1] - v.pad;
        const int row = std::min(std::max(y, 0), v.height - 1);
        const int column = std::min(std::max(x, 0), v.width - 1);
        const bool outside = row != y || column != x;
        for (int k = 0; k < v.colours; k++)
          expected.push_back(
              outside && v.black
                  ? 0
                  : ring[((slot[i] * v.height + row) * v.width + column) * v.colours + k]);
      }
  if (out != expected) failures++, fprintf(stderr, "views of %d threads differ\n", threads);
}

int main() {
  for (int threads : {1, 2, 3})
    for (int black : {0, 1})
      for (const View& v : {View{40, 3, 12, 10, 3, 12, 10, 4, black},
                            View{33, 2, 9, 11, 1, 7, 6, 0, black},
                            View{9, 1, 2, 3, 4, 1, 1, 3, black},  // wholly outside as well
                            View{0, 3, 8, 8, 3, 8, 8, 2, black}})
        views(v, threads);
  bool any = false;
  for (const char* name : {"avx2", "avx512"}) {
    if (!kstep_native_use(name)) continue;
    any = true;
    puts(name);
    for (int threads : {1, 2, 3})
      for (const Encoder& e : {Encoder{3, 3, 40, 40, 3, 4, {2, 1, 1, 1}},
                               Encoder{18, 3, 33, 30, 3, 3, {2, 2, 1}},
                               Encoder{1, 1, 7, 3, 16, 1, {1}},
                               Encoder{2, 16, 11, 14, 1, 2, {1, 2}},
                               Encoder{0, 3, 40, 40, 3, 2, {2, 1}},
                               Encoder{2, 2, 9, 23, 2, 3, {1, 1, 1}},
                               Encoder{270, 1, 9, 8, 1, 2, {2, 1}}})  // several chunks per group
        encoder(e, threads);
    for (int threads : {1, 2, 3}) {
      linear(1, 1, 1, threads);
      linear(37, 5001, 50, threads);
      linear(19, 70, 1030, threads);
      linear(0, 5, 5, threads);
      moves(threads);
      pixels(threads);
      decoder({5, 4, 3, 3, 9, {1, 2, 2}, {6, 13, 28}, {5, 11, 24}}, threads);
      decoder({17, 3, 4, 3, 9, {1, 1, 2}, {5, 7, 16}, {6, 8, 17}}, threads);
      decoder({270, 1, 1, 1, 32, {1}, {3}, {3}}, threads);
      decoder({0, 3, 3, 1, 1, {2}, {7}, {7}}, threads);
    }
    for (int stride : {1, 2}) {
      layer(2, 13, 10, stride);
      layer(1, 3, 3, stride);
      layer(0, 6, 6, stride);
    }
  }
  if (failures) return 1;
  return any ? 0 : 77;
}
