// What every call of the C interface needs: which kernels, memory for them, and errors as words.
#pragma once
#include <atomic>
#include <cstdlib>
#include <new>

#include "interface.h"
#include "kernels.h"
#include "pool.h"

namespace kstep {

constexpr int kMostThreads = 256;

// The kernels in use, see encoder.cpp; null where this processor has none.
std::atomic<const Kernels*>& chosen();

// Memory kept from one call to the next, guarded by the pool's `busy`.
class Memory {
 public:
  float* floats(size_t number) {
    if (number > size_) {
      free(data_);
      size_ = 0;
      data_ = static_cast<float*>(aligned_alloc(64, (number * sizeof(float) + 63) / 64 * 64));
      if (!data_) throw std::bad_alloc();
      size_ = number;
    }
    return data_;
  }
  // Freed only when grown: it lives as long as the process, as the pool does.
 private:
  float* data_ = nullptr;
  size_t size_ = 0;
};
Memory& memory();

// Consecutive parts of one allocation, each at a multiple of 64 bytes.
class Parts {
 public:
  size_t take(size_t floats) {
    const size_t at = total_;
    total_ += (floats + 15) / 16 * 16;
    return at;
  }
  size_t total() const { return total_; }

 private:
  size_t total_ = 0;
};

// Add the sums of groups, `size` floats each, to those of the first, in their order; slices of them are
// independent of each other.
inline void add_groups(Pool& pool, float* total, size_t size, int groups, int threads) {
  constexpr size_t kSlice = 8192;
  pool.run((int)((size + kSlice - 1) / kSlice), threads, [&](int slice, int) {
    const size_t from = slice * kSlice, to = std::min(from + kSlice, size);
    for (int group = 1; group < groups; group++) {
      const float* other = total + size * group;
      for (size_t i = from; i < to; i++) total[i] += other[i];
    }
  });
}

// Nothing thrown may cross a C interface.
template <class Work>
const char* guarded(Work work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    return "more memory";
  } catch (...) {
    return "more threads than could be started";
  }
  return nullptr;
}

// Refuse, or do it with the pool to itself.
template <class Work>
const char* with_pool(int threads, Work work) {
  const Kernels* k = chosen();
  if (!k) return "no kernels for this processor";
  if (threads < 1) return "at least one thread";
  return guarded([&] {
    Pool& pool = Pool::here();
    std::lock_guard<std::mutex> lock(pool.busy);
    work(*k, pool, std::min(threads, kMostThreads));
  });
}

}  // namespace kstep
