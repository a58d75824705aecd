// What moves parameters: a step of Adam, a step of moving averages. All tensors of an optimizer are
// one list of chunks, so that small ones do not wait for large ones.
#include <vector>

#include "calls.h"

namespace kstep {
namespace {

constexpr int64_t kChunk = 16384;        // elements: 256 kB of Adam's four arrays
constexpr int64_t kAlone = 4 * kChunk;   // so few are not worth waking anybody for

// Call step(tensor, from, to) for every chunk of every tensor.
template <class Tensor, class Step>
void in_chunks(Pool& pool, const Tensor* tensors, int number, int threads, Step step) {
  struct Chunk {
    int tensor;
    int64_t from, to;
  };
  std::vector<Chunk> chunks;
  int64_t all = 0;
  for (int t = 0; t < number; t++) {
    const int64_t count = tensors[t].count;
    for (int64_t from = 0; from < count; from += kChunk)
      chunks.push_back({t, from, std::min(from + kChunk, count)});
    all += count;
  }
  pool.run((int)chunks.size(), all < kAlone ? 1 : threads, [&](int i, int) {
    step(tensors[chunks[i].tensor], (size_t)chunks[i].from, (size_t)chunks[i].to);
  });
}

}  // namespace
}  // namespace kstep

KSTEP_API const char* kstep_adam(const kstep::Adam* tensors, int32_t number, int32_t threads) {
  return kstep::with_pool(threads, [&](const kstep::Kernels& k, kstep::Pool& pool, int t) {
    kstep::in_chunks(pool, tensors, number, t, k.adam);
  });
}

KSTEP_API const char* kstep_average(const kstep::Average* tensors, int32_t number,
                                    int32_t threads) {
  return kstep::with_pool(threads, [&](const kstep::Kernels& k, kstep::Pool& pool, int t) {
    kstep::in_chunks(pool, tensors, number, t, k.average);
  });
}
