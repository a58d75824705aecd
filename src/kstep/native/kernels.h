// What one instruction set offers: a table of functions that encoder.cpp calls for a few images at
// a time. avx2.cpp and avx512.cpp fill one each from the templates in winograd.h and matrix.h.
//
// Maps are float32 in (image, row, column, channel) order with 32 channels. Weights and their
// gradients are in (output, row, column, input) order: what PyTorch calls channels last.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kstep {

constexpr int kChannels = 32;

// Some images of a map. `height` and `width` are those of a layer's input.
struct Images {
  int count, height, width;
};

// A stack of `frames` frames of `colours` bytes per pixel, one frame after the other, and the
// stride with which the first layer walks over it.
struct Stack {
  int frames, colours, stride;
};

// A transposed 3x3 convolution of 32 channels to `channels`. Its output may have more rows and columns
// than its input reaches: these have the bias alone.
struct Spread {
  int height, width, out_height, out_width, stride, channels;

  bool fits() const {
    return out_height >= (height - 1) * stride + 3 && out_width >= (width - 1) * stride + 3;
  }
  bool exact() const {
    return out_height == (height - 1) * stride + 3 && out_width == (width - 1) * stride + 3;
  }
};

inline int output_side(int side, int stride) { return (side - 3) / stride + 1; }

// Floats of each thing below; every one is a multiple of 16, so that all buffers stay aligned.
constexpr size_t kWinogradWeights = 36 * kChannels * kChannels;
constexpr size_t kStridedWeights = 9 * kChannels * kChannels;
inline size_t stack_weights(Stack s) { return (size_t)9 * s.frames * s.colours * kChannels; }

// One parameter and what Adam keeps of it: the coefficients of one step (see moves.cpp).
struct Adam {
  float* parameter;
  const float* gradient;
  float *average, *square;
  int64_t count;
  float first, second, keep, size, root, epsilon, weight_decay;
};

// A slow copy of a parameter: slow <- (1 - rate) slow + rate online.
struct Average {
  float* slow;
  const float* online;
  int64_t count;
  float rate;
};

struct Kernels {
  const char* name;

  // 32 -> 32, stride 1, by Winograd's F(4x4, 3x3). `packed` is what pack made of the weights,
  // `packed_back` the same with `transposed`. Forward adds the bias and takes the ReLU. Backward
  // masks `gradient` where `output` is not positive (output may be null: no mask), writes
  // `input_gradient` unless null, and adds to the two sums; unpack turns the first into weights.
  void (*winograd_pack)(const float* weight, float* packed, bool transposed);
  void (*winograd_forward)(const float* input, const float* packed, const float* bias,
                           float* output, Images, float* scratch);
  void (*winograd_backward)(const float* gradient, const float* output, const float* input,
                            const float* packed_back, float* input_gradient, float* weight_sum,
                            float* bias_sum, Images, float* scratch);
  void (*winograd_unpack)(const float* weight_sum, float* weight_gradient);

  // 32 -> 32, stride 2, directly. The same contract.
  void (*strided_pack)(const float* weight, float* packed, bool transposed);
  void (*strided_forward)(const float* input, const float* packed, const float* bias,
                          float* output, Images, float* scratch);
  void (*strided_backward)(const float* gradient, const float* output, const float* input,
                           const float* packed_back, float* input_gradient, float* weight_sum,
                           float* bias_sum, Images, float* scratch);
  void (*strided_unpack)(const float* weight_sum, float* weight_gradient);

  // bytes -> 32, any stride. The division by 255 is in the packed weights and in unpack.
  void (*stack_pack)(const float* weight, float* packed, Stack);
  void (*stack_forward)(const uint8_t* input, const float* packed, const float* bias,
                        float* output, Images, Stack, float* scratch);
  void (*stack_backward)(const float* gradient, const float* output, const uint8_t* input,
                         float* weight_sum, float* bias_sum, Images, Stack, float* scratch);
  void (*stack_unpack)(const float* weight_sum, float* weight_gradient, Stack);

  // Floats of scratch that any of the above needs for maps and frames of up to this size.
  size_t (*scratch)(int height, int width, Stack);

  // Products of matrices, out = left x right (+ bias). `right` is packed first, its element (p, j) at
  // p * row + j * column, one of them 1; element (i, p) of `left` is at i * row + p * step.
  size_t (*matrix_packed)(int inner, int columns);  // floats
  void (*matrix_pack)(const float* right, ptrdiff_t row, ptrdiff_t column, int inner, int columns,
                      float* packed);
  void (*matrix_multiply)(const float* left, ptrdiff_t row, ptrdiff_t step, int rows,
                          const float* packed, int inner, int columns, const float* bias,
                          float* out, ptrdiff_t out_row);

  // Transposed convolutions, any stride, by spreading each pixel over the outputs it reaches. Forward
  // takes weights packed by matrix_pack, [32][row, column, channel], and ReLU if asked to; backward
  // masks `gradient` where `output` is not positive (null: no mask), and adds to the two sums,
  // [row, column, channel][32] and [channel].
  void (*spread_forward)(const float* input, const float* packed, const float* bias, float* output,
                         int count, Spread, bool relu, float* scratch);
  void (*spread_pack_back)(const float* weight, float* packed, Spread);
  void (*spread_backward)(const float* gradient, const float* output, const float* input,
                          const float* packed_back, float* input_gradient, float* weight_sum,
                          float* bias_sum, int count, Spread, float* scratch);

  // Elements [from, to) of one step of Adam, and of one of a moving average.
  void (*adam)(const Adam&, size_t from, size_t to);
  void (*average)(const Average&, size_t from, size_t to);
};

// Null where the compiler's target is no x86-64. Whether the processor can run them is a question
// for encoder.cpp.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace kstep
