// SAC-AE's decoder, forward and backward: transposed 3x3 convolutions of 32 channels.
//
//      before the first ReLU (B, h, w, 32) --> map 0 -> map 1 -> ... -> last map = pixels (B, H, W, C)
//
// With stride 1, a transposed convolution is a plain one over its input with a border of two zeros and
// with the kernel turned round, so Winograd's kernels compute it. Any other (another stride, the few
// channels of the last layer) spreads each pixel over the 3x3 outputs that it reaches: a product of
// matrices, whose columns are added to their places; backward it is a direct convolution. ReLU
// after every layer but the last.
//
// Chunks and groups as in encoder.cpp: they follow from the batch alone, and so does every sum's order.
#include <cstring>

#include "calls.h"

namespace kstep {
namespace {

constexpr int kMostLayers = 8, kMostSide = 4096;
constexpr int kMostChunk = 8, kMostGroups = 32;
constexpr int kTogether = 2;  // images that go through a layer at once and stay in the cache
constexpr int kBorder = 2;

// What the C interface calls a decoder; the Python side has the same structure.
struct Decoder {
  int32_t batch, height, width, layers, channels;  // of the last map
  int32_t strides[kMostLayers], heights[kMostLayers], widths[kMostLayers];  // of each output
};

struct Layer {
  Spread size;  // of one image
  bool last;

  bool winograd() const {
    return size.stride == 1 && size.channels == kChannels && !last && size.exact();
  }
  size_t inputs() const { return (size_t)size.height * size.width * kChannels; }
  size_t outputs() const { return (size_t)size.out_height * size.out_width * size.channels; }
  size_t taps() const { return (size_t)9 * size.channels; }
  size_t padded() const {
    return (size_t)(size.height + 2 * kBorder) * (size.width + 2 * kBorder) * kChannels;
  }
  Images images(int count) const {
    return {count, size.height + 2 * kBorder, size.width + 2 * kBorder};
  }
  size_t weights(const Kernels& k) const {
    if (winograd()) return kWinogradWeights;
    return std::max(k.matrix_packed(kChannels, (int)taps()), taps() * kChannels);
  }
  size_t sums() const { return winograd() ? kWinogradWeights : taps() * kChannels; }
  // Floats that one thread needs beside the maps.
  size_t scratch(const Kernels& k) const {
    return winograd() ? k.scratch(size.height + 2 * kBorder, size.width + 2 * kBorder, {1, 1, 1})
                      : size.width * taps() + outputs() + (size_t)size.out_width * size.channels;
  }

  // The kernel turned round, as a plain convolution has it: [out][row][column][in]; or back again.
  static void turn(const float* from, float* to) {
    for (int i = 0; i < kChannels; i++)
      for (int tap = 0; tap < 9; tap++)
        for (int o = 0; o < kChannels; o++)
          to[((size_t)o * 9 + 8 - tap) * kChannels + i] =
              from[((size_t)i * 9 + tap) * kChannels + o];
  }
  void pack(const Kernels& k, const float* weight, float* packed, bool backward) const {
    if (winograd()) {
      float turned[kStridedWeights];
      turn(weight, turned);
      k.winograd_pack(turned, packed, backward);
    } else if (backward) {
      k.spread_pack_back(weight, packed, size);
    } else {
      k.matrix_pack(weight, (ptrdiff_t)taps(), 1, kChannels, (int)taps(), packed);
    }
  }
  void unpack(const Kernels& k, const float* sum, float* gradient) const {
    if (winograd()) {
      float turned[kStridedWeights];
      k.winograd_unpack(sum, turned);
      turn(turned, gradient);  // its own inverse
      return;
    }
    for (int o = 0; o < kChannels; o++)
      for (size_t t = 0; t < taps(); t++) gradient[o * taps() + t] = sum[t * kChannels + o];
  }
};

inline float positive(float x) { return x <= 0 ? 0 : x; }  // NaN passes

struct Plan {
  int layers = 0, chunk = 1, chunks = 0, groups = 0;
  Layer layer[kMostLayers];
  size_t scratch = 0, padded = 0, map = 0;  // the largest of each

  const char* set(const Decoder& d, const Kernels& k) {
    if (d.layers < 1 || d.layers > kMostLayers) return "1 to 8 layers";
    if (d.batch < 0) return "a batch of 0 or more";
    if (d.channels < 1 || d.channels > kChannels) return "1 to 32 channels";
    layers = d.layers;
    int height = d.height, width = d.width;
    if (height < 1 || width < 1) return "features of at least one pixel";
    for (int l = 0; l < layers; l++) {
      const bool last = l + 1 == layers;
      const Spread size{height, width, d.heights[l], d.widths[l], d.strides[l],
                        last ? d.channels : kChannels};
      if (size.stride != 1 && size.stride != 2) return "strides of 1 or 2";
      if (!size.fits() || size.out_height > kMostSide || size.out_width > kMostSide)
        return "maps that fit their strides, up to 4096 x 4096";
      layer[l] = {size, last};
      scratch = std::max(scratch, layer[l].scratch(k));
      padded = std::max(padded, layer[l].padded());
      map = std::max(map, layer[l].inputs());
      height = size.out_height, width = size.out_width;
    }
    chunk = std::min(kMostChunk, std::max(1, (d.batch + 15) / 16));
    chunks = (d.batch + chunk - 1) / chunk;
    groups = std::min(chunks, kMostGroups);
    return nullptr;
  }
};

// A map with its border of zeros; that of the features has no ReLU behind it yet.
void with_border(const Layer& layer, const float* from, int count, bool features, float* to) {
  const size_t line = (size_t)layer.size.width * kChannels, side = kBorder * kChannels;
  const size_t rows = kBorder * (line + 2 * side);  // those above, and those below
  const auto zeros = [&to](size_t number) {
    memset(to, 0, number * sizeof(float));
    to += number;
  };
  for (int n = 0; n < count; n++) {
    zeros(rows);
    for (int r = 0; r < layer.size.height; r++, from += line, to += line, zeros(side)) {
      zeros(side);
      if (!features)
        memcpy(to, from, line * sizeof(float));
      else
        for (size_t i = 0; i < line; i++) to[i] = positive(from[i]);
    }
    zeros(rows);
  }
}
void without_border(const Layer& layer, const float* from, int count, float* to) {
  const int width = layer.size.width, wide = width + 2 * kBorder;
  for (int n = 0; n < count; n++, from += layer.padded())
    for (int r = 0; r < layer.size.height; r++, to += (size_t)width * kChannels)
      memcpy(to, from + ((size_t)(r + kBorder) * wide + kBorder) * kChannels,
             (size_t)width * kChannels * sizeof(float));
}

// What a layer looks at where that needs no border: the map before it, or the features after ReLU.
const float* input_of(const Plan& plan, int l, const float* features, const float* const* maps,
                      int from, int count, float* own) {
  if (l > 0) return maps[l - 1] + from * plan.layer[l - 1].outputs();
  const size_t size = plan.layer[0].inputs();
  for (size_t i = 0; i < size * count; i++) own[i] = positive(features[from * size + i]);
  return own;
}

void forward(const Kernels& k, Pool& pool, const Plan& plan, int batch, const float* features,
             const float* const* weights, const float* const* biases, float* const* maps,
             int threads) {
  threads = std::min(threads, std::max(1, plan.chunks));
  Parts parts;
  size_t packed[kMostLayers];
  for (int l = 0; l < plan.layers; l++) packed[l] = parts.take(plan.layer[l].weights(k));
  const size_t own = (plan.scratch + 15) / 16 * 16, room = plan.padded * kTogether;
  const size_t scratch = parts.take(own * threads), padded = parts.take(room * threads);
  float* base = memory().floats(parts.total());

  pool.run(plan.layers, threads, [&](int l, int) {
    plan.layer[l].pack(k, weights[l], base + packed[l], false);
  });
  pool.run(plan.chunks, threads, [&](int number, int worker) {
    const int end = std::min((number + 1) * plan.chunk, batch);
    float *mine = base + scratch + own * worker, *bordered = base + padded + room * worker;
    for (int from = number * plan.chunk; from < end; from += kTogether) {
      const int count = std::min(kTogether, end - from);
      for (int l = 0; l < plan.layers; l++) {
        const Layer& layer = plan.layer[l];
        float* output = maps[l] + from * layer.outputs();
        if (layer.winograd()) {
          const float* input = l ? maps[l - 1] + from * layer.inputs()
                                 : features + from * layer.inputs();
          with_border(layer, input, count, l == 0, bordered);
          k.winograd_forward(bordered, base + packed[l], biases[l], output, layer.images(count),
                             mine);
        } else {
          const float* input = input_of(plan, l, features, maps, from, count, bordered);
          k.spread_forward(input, base + packed[l], biases[l], output, count, layer.size,
                           !layer.last, mine);
        }
      }
    }
  });
}

void backward(const Kernels& k, Pool& pool, const Plan& plan, int batch, const float* gradient,
              const float* features, const float* const* weights, const float* const* maps,
              float* features_gradient, float* const* weight_gradients,
              float* const* bias_gradients, int threads) {
  const int groups = std::max(1, plan.groups);
  threads = std::min(threads, groups);
  Parts parts, sums;
  size_t packed[kMostLayers], weight_sum[kMostLayers], bias_sum[kMostLayers];
  for (int l = 0; l < plan.layers; l++) {
    packed[l] = parts.take(plan.layer[l].weights(k));
    weight_sum[l] = sums.take(plan.layer[l].sums());
    bias_sum[l] = sums.take(kChannels);
  }
  const size_t own = (plan.scratch + 15) / 16 * 16, room = plan.padded * kTogether;
  const size_t map = plan.map * kTogether;
  const size_t scratch = parts.take(own * threads), padded = parts.take(2 * room * threads);
  const size_t flowing = parts.take(2 * map * threads);  // gradients between layers, two by turns
  const size_t all_sums = parts.take(sums.total() * groups);
  float* base = memory().floats(parts.total());

  pool.run(plan.layers, threads, [&](int l, int) {
    plan.layer[l].pack(k, weights[l], base + packed[l], true);
  });
  pool.run(groups, threads, [&](int group, int worker) {
    float* sum = base + all_sums + sums.total() * group;
    memset(sum, 0, sums.total() * sizeof(float));
    float *mine = base + scratch + own * worker, *bordered = base + padded + 2 * room * worker;
    const int begin = (int)((long)plan.chunks * group / groups) * plan.chunk;
    const int end = std::min((int)((long)plan.chunks * (group + 1) / groups) * plan.chunk, batch);
    for (int from = begin; from < end; from += kTogether) {
      const int count = std::min(kTogether, end - from);
      const float* g = gradient + from * plan.layer[plan.layers - 1].outputs();
      for (int l = plan.layers - 1; l >= 0; l--) {
        const Layer& layer = plan.layer[l];
        const float* output = layer.last ? nullptr : maps[l] + from * layer.outputs();
        float* below = base + flowing + map * (2 * worker + l % 2);
        if (layer.winograd()) {
          const float* input = l ? maps[l - 1] + from * layer.inputs()
                                 : features + from * layer.inputs();
          with_border(layer, input, count, l == 0, bordered);
          k.winograd_backward(g, output, bordered, base + packed[l], bordered + room,
                              sum + weight_sum[l], sum + bias_sum[l], layer.images(count), mine);
          without_border(layer, bordered + room, count, below);
        } else {
          const float* input = input_of(plan, l, features, maps, from, count, bordered);
          k.spread_backward(g, output, input, base + packed[l], below, sum + weight_sum[l],
                            sum + bias_sum[l], count, layer.size, mine);
        }
        g = below;
      }
      const size_t size = plan.layer[0].inputs(), at = from * size;
      for (size_t i = 0; i < size * count; i++) {
        const float x = features[at + i], passed = g[i];  // both loaded, or this would be a branch
        features_gradient[at + i] = x <= 0 ? 0 : passed;
      }
    }
  });
  float* total = base + all_sums;
  add_groups(pool, total, sums.total(), groups, threads);
  pool.run(plan.layers, threads, [&](int l, int) {
    const Layer& layer = plan.layer[l];
    layer.unpack(k, total + weight_sum[l], weight_gradients[l]);
    memcpy(bias_gradients[l], total + bias_sum[l], layer.size.channels * sizeof(float));
  });
}

template <class Work>
const char* planned(const Decoder* d, int threads, Work work) {
  if (!d) return "a decoder";
  const char* wrong = nullptr;
  const char* failed = with_pool(threads, [&](const Kernels& k, Pool& pool, int t) {
    Plan plan;
    wrong = plan.set(*d, k);
    if (!wrong) work(k, pool, plan, t);
  });
  return wrong ? wrong : failed;
}

}  // namespace
}  // namespace kstep

// maps[l] receives (batch, height, width, channels) after layer l.
KSTEP_API const char* kstep_decoder_forward(const kstep::Decoder* d, const float* features,
                                            const float* const* weights,
                                            const float* const* biases, float* const* maps,
                                            int32_t threads) {
  return kstep::planned(d, threads, [=](const kstep::Kernels& k, kstep::Pool& pool,
                                        const kstep::Plan& plan, int t) {
    kstep::forward(k, pool, plan, d->batch, features, weights, biases, maps, t);
  });
}

KSTEP_API const char* kstep_decoder_backward(const kstep::Decoder* d, const float* gradient,
                                             const float* features, const float* const* weights,
                                             const float* const* maps, float* features_gradient,
                                             float* const* weight_gradients,
                                             float* const* bias_gradients, int32_t threads) {
  return kstep::planned(d, threads, [=](const kstep::Kernels& k, kstep::Pool& pool,
                                        const kstep::Plan& plan, int t) {
    kstep::backward(k, pool, plan, d->batch, gradient, features, weights, maps, features_gradient,
                    weight_gradients, bias_gradients, t);
  });
}
