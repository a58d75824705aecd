// The whole encoder, forward and backward, behind a plain C interface (see README.md).
//
//      frames (B, S, H, W, C) bytes
//        |  chunks of up to 8 images: what a layer writes is still in the cache for the next one
//        v
//      [stack] -> map 0 -> [winograd or strided] -> map 1 -> ... -> last map = features
//
//      backward walks the same chunks from the last map to the first; each *group* of chunks adds
//      its weight gradients to sums of its own, and the groups' sums are added in their order
//
// Chunks and groups depend on the batch alone. So does every sum's order, and no bit of a result
// depends on the number of threads or on which of them did what.
#include <algorithm>
#include <cstring>

#include "calls.h"

// setup.py says which sources these are; the Python side compares.
#ifndef KSTEP_SOURCES
#define KSTEP_SOURCES ""
#endif

namespace kstep {
namespace {

constexpr int kMostLayers = 8, kMostChannels = 16, kMostSide = 4096;
constexpr int kMostChunk = 8;    // images: 1.7 MB of the paper's largest map
constexpr int kMostGroups = 32;  // of 450 kB of sums each, at the paper's size

// What the C interface calls an encoder; the Python side has the same structure.
struct Encoder {
  int32_t batch, frames, height, width, colours, layers;
  int32_t strides[kMostLayers];
};

const Kernels* find(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The bits of AVX-512 that every processor with it has had since 2017.
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx512 && avx2 && (!name || !strcmp(name, "avx512"))) return avx512_kernels();
  if (avx2 && (!name || !strcmp(name, "avx2"))) return avx2_kernels();
#else
  (void)name;
#endif
  return nullptr;
}

}  // namespace

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> kernels{find(nullptr)};
  return kernels;
}

Memory& memory() {
  static Memory* kept = new Memory;
  return *kept;
}

namespace {

// One layer after the first, or the first one of all.
struct Layer {
  int stride, in_height, in_width, out_height, out_width;
  bool first;
  Stack stack;

  size_t weights() const {
    return first ? stack_weights(stack) : stride == 1 ? kWinogradWeights : kStridedWeights;
  }
  size_t outputs() const { return (size_t)out_height * out_width * kChannels; }  // per image
  Images images(int count) const { return {count, in_height, in_width}; }
  void pack(const Kernels& k, const float* weight, float* packed, bool transposed) const {
    if (first)
      k.stack_pack(weight, packed, stack);
    else
      (stride == 1 ? k.winograd_pack : k.strided_pack)(weight, packed, transposed);
  }
  void unpack(const Kernels& k, const float* sum, float* gradient) const {
    if (first)
      k.stack_unpack(sum, gradient, stack);
    else
      (stride == 1 ? k.winograd_unpack : k.strided_unpack)(sum, gradient);
  }
};

struct Plan {
  int layers = 0, chunk = 1, chunks = 0, groups = 0;
  Layer layer[kMostLayers];
  size_t stack_bytes = 0;  // per image
  size_t scratch = 0;

  // Returns what is wrong with the encoder, or null.
  const char* set(const Encoder& e, const Kernels& k) {
    if (e.layers < 1 || e.layers > kMostLayers) return "1 to 8 layers";
    if (e.batch < 0) return "a batch of 0 or more";
    if (e.frames < 1 || e.colours < 1 || e.frames > kMostChannels || e.colours > kMostChannels ||
        e.frames * e.colours > kMostChannels)
      return "1 to 16 channels: frames x colours";
    if (e.height > kMostSide || e.width > kMostSide) return "frames of up to 4096 x 4096";
    layers = e.layers;
    int height = e.height, width = e.width;
    const Stack stack{e.frames, e.colours, e.strides[0]};
    for (int l = 0; l < layers; l++) {
      const int stride = e.strides[l];
      if (stride != 1 && stride != 2) return "strides of 1 or 2";
      if (height < 3 || width < 3) return "frames large enough for every layer";
      const int oh = output_side(height, stride), ow = output_side(width, stride);
      layer[l] = {stride, height, width, oh, ow, l == 0, stack};
      height = oh, width = ow;
    }
    stack_bytes = (size_t)e.frames * e.height * e.width * e.colours;
    split(e.batch);
    scratch = k.scratch(e.height, e.width, stack);
    return nullptr;
  }

  // Small batches go in smaller chunks, so that several threads have something to do.
  void split(int batch) {
    chunk = std::min(kMostChunk, std::max(1, (batch + 15) / 16));
    chunks = (batch + chunk - 1) / chunk;
    groups = std::min(chunks, kMostGroups);
  }
  size_t largest_map() const {
    size_t most = 0;
    for (int l = 0; l < layers; l++) most = std::max(most, layer[l].outputs());
    return most;
  }
};

void forward(const Kernels& k, const Plan& plan, int batch, const uint8_t* frames,
             const float* const* weights, const float* const* biases, float* const* maps, bool keep,
             int threads) {
  Pool& pool = Pool::here();
  std::lock_guard<std::mutex> lock(pool.busy);
  threads = std::min(threads, plan.chunks);
  Parts parts;
  size_t packed[kMostLayers], own[kMostLayers] = {};
  for (int l = 0; l < plan.layers; l++) packed[l] = parts.take(plan.layer[l].weights());
  const size_t scratch = parts.take(plan.scratch * threads);
  // Maps that nobody will read again are written over, chunk after chunk.
  for (int l = 0; l + 1 < plan.layers && !keep; l++)
    own[l] = parts.take(threads * plan.chunk * plan.layer[l].outputs());
  float* base = memory().floats(parts.total());

  pool.run(plan.layers, threads, [&](int l, int) {
    plan.layer[l].pack(k, weights[l], base + packed[l], false);
  });
  pool.run(plan.chunks, threads, [&](int number, int worker) {
    const int from = number * plan.chunk, count = std::min(plan.chunk, batch - from);
    float* mine = base + scratch + plan.scratch * worker;
    const float* input = nullptr;
    for (int l = 0; l < plan.layers; l++) {
      const Layer& layer = plan.layer[l];
      const size_t each = layer.outputs();
      float* output = keep || l + 1 == plan.layers
                          ? maps[l] + from * each
                          : base + own[l] + (size_t)worker * plan.chunk * each;
      const float* weight = base + packed[l];
      if (layer.first)
        k.stack_forward(frames + from * plan.stack_bytes, weight, biases[l], output,
                        layer.images(count), layer.stack, mine);
      else
        (layer.stride == 1 ? k.winograd_forward : k.strided_forward)(
            input, weight, biases[l], output, layer.images(count), mine);
      input = output;
    }
  });
}

void backward(const Kernels& k, const Plan& plan, int batch, const float* gradient,
              const uint8_t* frames, const float* const* weights, const float* const* maps,
              float* const* weight_gradients, float* const* bias_gradients, int threads) {
  Pool& pool = Pool::here();
  std::lock_guard<std::mutex> lock(pool.busy);
  const int groups = std::max(1, plan.groups);  // an empty batch has gradients too: zeros
  threads = std::min(threads, groups);
  Parts parts, sums;
  size_t packed[kMostLayers], weight_sum[kMostLayers], bias_sum[kMostLayers];
  for (int l = 0; l < plan.layers; l++) {
    packed[l] = parts.take(plan.layer[l].weights());
    weight_sum[l] = sums.take(plan.layer[l].weights());
    bias_sum[l] = sums.take(kChannels);
  }
  const size_t scratch = parts.take(plan.scratch * threads);
  const size_t map = plan.chunk * plan.largest_map();
  const size_t flowing = parts.take(2 * map * threads);  // gradients between layers, two by turns
  const size_t all_sums = parts.take(sums.total() * groups);
  float* base = memory().floats(parts.total());

  pool.run(plan.layers - 1, threads, [&](int l, int) {
    plan.layer[l + 1].pack(k, weights[l + 1], base + packed[l + 1], true);
  });
  pool.run(groups, threads, [&](int group, int worker) {
    float* sum = base + all_sums + sums.total() * group;
    memset(sum, 0, sums.total() * sizeof(float));
    float* mine = base + scratch + plan.scratch * worker;
    const int end = (int)((long)plan.chunks * (group + 1) / groups);
    for (int c = (int)((long)plan.chunks * group / groups); c < end; c++) {
      const int from = c * plan.chunk, count = std::min(plan.chunk, batch - from);
      const float* g = gradient + from * plan.layer[plan.layers - 1].outputs();
      for (int l = plan.layers - 1; l > 0; l--) {
        const Layer& layer = plan.layer[l];
        float* below = base + flowing + map * (2 * worker + l % 2);
        (layer.stride == 1 ? k.winograd_backward : k.strided_backward)(
            g, maps[l] + from * layer.outputs(), maps[l - 1] + from * plan.layer[l - 1].outputs(),
            base + packed[l], below, sum + weight_sum[l], sum + bias_sum[l], layer.images(count),
            mine);
        g = below;
      }
      const Layer& first = plan.layer[0];
      k.stack_backward(g, maps[0] + from * first.outputs(), frames + from * plan.stack_bytes,
                       sum + weight_sum[0], sum + bias_sum[0], first.images(count), first.stack,
                       mine);
    }
  });
  float* total = base + all_sums;
  add_groups(pool, total, sums.total(), groups, threads);
  pool.run(plan.layers, threads, [&](int l, int) {
    plan.layer[l].unpack(k, total + weight_sum[l], weight_gradients[l]);
    memcpy(bias_gradients[l], total + bias_sum[l], kChannels * sizeof(float));
  });
}

// Refuse, or do it.
template <class Work>
const char* planned(const Encoder* e, int threads, Work work) {
  const Kernels* k = chosen();
  if (!k) return "no kernels for this processor";
  if (!e || threads < 1) return "an encoder and at least one thread";
  Plan plan;
  if (const char* wrong = plan.set(*e, *k)) return wrong;
  return guarded([&] { work(*k, plan, std::min(threads, kMostThreads)); });
}

// The same for one layer after the first, with room for this many packed weights and scratch.
template <class Work>
const char* alone(const Layer& layer, int count, int matrices, Work work) {
  const Kernels* k = chosen();
  if (!k) return "no kernels for this processor";
  if (count < 0 || layer.in_height < 3 || layer.in_width < 3 ||
      (layer.stride != 1 && layer.stride != 2))
    return "sides of 3 or more, strides of 1 or 2";
  return guarded([&] {
    Memory mine;
    float* packed = mine.floats(matrices * layer.weights() +
                                k->scratch(layer.in_height, layer.in_width, {1, 1, 1}));
    work(*k, packed);
    free(packed);
  });
}

}  // namespace
}  // namespace kstep

// ---- the C interface. Each function returns null, or what it needs and was not given.

// Raised whenever anything below changes its meaning; the Python side refuses another number.
KSTEP_API int32_t kstep_native_interface() { return 4; }

// A name of the sources this was built from, see sources.py.
KSTEP_API const char* kstep_native_sources() { return KSTEP_SOURCES; }

// Name of the instruction set in use; empty if this processor has none that is known here.
KSTEP_API const char* kstep_native_instructions() {
  const kstep::Kernels* k = kstep::chosen();
  return k ? k->name : "";
}

// Use another instruction set (`avx2`, `avx512`), for tests; null: the best. Whether it is there.
KSTEP_API int32_t kstep_native_use(const char* name) {
  const kstep::Kernels* k = kstep::find(name);
  if (!k) return 0;
  kstep::chosen() = k;
  return 1;
}

// maps[l] receives (batch, height, width, 32) after layer l. Without `keep` only the last is
// written; the others may be null.
KSTEP_API const char* kstep_encoder_forward(const kstep::Encoder* e, const uint8_t* frames,
                                            const float* const* weights,
                                            const float* const* biases, float* const* maps,
                                            int32_t keep, int32_t threads) {
  return kstep::planned(e, threads, [=](const kstep::Kernels& k, const kstep::Plan& plan, int t) {
    kstep::forward(k, plan, e->batch, frames, weights, biases, maps, keep, t);
  });
}

KSTEP_API const char* kstep_encoder_backward(const kstep::Encoder* e, const float* gradient,
                                             const uint8_t* frames, const float* const* weights,
                                             const float* const* maps,
                                             float* const* weight_gradients,
                                             float* const* bias_gradients, int32_t threads) {
  return kstep::planned(e, threads, [=](const kstep::Kernels& k, const kstep::Plan& plan, int t) {
    kstep::backward(k, plan, e->batch, gradient, frames, weights, maps, weight_gradients,
                    bias_gradients, t);
  });
}

// One 32 -> 32 layer by itself, for tests: its input (count, height, width, 32) in, its output or
// its gradients out. `output` masks the gradient; null: no mask.
KSTEP_API const char* kstep_layer_forward(int32_t count, int32_t height, int32_t width,
                                          int32_t stride, const float* input, const float* weight,
                                          const float* bias, float* output) {
  const kstep::Layer layer{stride, height, width, 0, 0, false, {}};
  return kstep::alone(layer, count, 1, [&](const kstep::Kernels& k, float* packed) {
    layer.pack(k, weight, packed, false);
    (stride == 1 ? k.winograd_forward : k.strided_forward)(
        input, packed, bias, output, layer.images(count), packed + layer.weights());
  });
}

KSTEP_API const char* kstep_layer_backward(int32_t count, int32_t height, int32_t width,
                                           int32_t stride, const float* gradient,
                                           const float* output, const float* input,
                                           const float* weight, float* input_gradient,
                                           float* weight_gradient, float* bias_gradient) {
  const kstep::Layer layer{stride, height, width, 0, 0, false, {}};
  return kstep::alone(layer, count, 2, [&](const kstep::Kernels& k, float* packed) {
    float* sum = packed + layer.weights();
    layer.pack(k, weight, packed, true);
    memset(sum, 0, layer.weights() * sizeof(float));
    memset(bias_gradient, 0, kstep::kChannels * sizeof(float));
    (stride == 1 ? k.winograd_backward : k.strided_backward)(
        gradient, output, input, packed, input_gradient, sum, bias_gradient, layer.images(count),
        sum + layer.weights());
    layer.unpack(k, sum, weight_gradient);
  });
}
