// Products of matrices in chunks: a linear layer forward, and both of its gradients.
//
//      out (rows, columns) = sum over p < inner of left (rows, p) x right (p, columns), + bias
//
// Chunks are blocks of columns, of rows too where columns are few. Where the sum is long and the columns are few, as behind the
// convolutions (39,200 terms for each of 50 columns), the terms are divided too: every part gives
// sums of its own, and these are added in the order of the parts. Both follow from the shape alone,
// and so does the order of every sum.
#include "calls.h"

namespace kstep {
namespace {

constexpr int64_t kPart = 1024;         // terms of a part
constexpr int64_t kUndivided = 4096;    // so many terms are one part
constexpr int64_t kNarrow = 64, kWide = 512;  // columns of a block: at least, at most
constexpr int64_t kChunks = 32;         // so many chunks are enough
constexpr int64_t kLeastRows = 240;     // of a chunk, where rows are divided
constexpr int64_t kAlone = 1 << 20;     // multiplications that are not worth waking anybody for
constexpr int64_t kMostSums = 1 << 26;  // floats of the parts' own sums

// What the C interface calls a product; the Python side has the same structure.
struct Product {
  int64_t rows, columns, inner;
  int64_t left_row, left_step, right_row, right_column;
};

void product(const Kernels& k, Pool& pool, const Product& m, const float* left, const float* right,
             const float* bias, float* out, int threads) {
  const int64_t parts = m.inner > kUndivided ? (m.inner + kPart - 1) / kPart : 1;
  const int64_t block = std::min(kWide, std::max(kNarrow, m.columns / kNarrow / kNarrow * kNarrow));
  const int64_t blocks = (m.columns + block - 1) / block;
  const int64_t longest = std::min(m.inner, parts > 1 ? kPart : m.inner);
  // Rows are divided where there would be few chunks otherwise; a chunk's rows share its packing.
  const int64_t most = std::max<int64_t>(1, kChunks / (parts * blocks));
  const int64_t height = std::max(kLeastRows, (m.rows + most - 1) / most);
  const int64_t heights = (m.rows + height - 1) / height;
  const int64_t tasks = parts * blocks * heights;
  threads = m.rows * m.columns * m.inner < kAlone ? 1 : (int)std::min<int64_t>(threads, tasks);
  Parts memory_parts;
  const size_t packed = k.matrix_packed((int)longest, (int)std::min(block, m.columns));
  const size_t scratch = memory_parts.take((packed + 15) / 16 * 16 * threads);
  const size_t each = m.rows * m.columns;
  const size_t sums = memory_parts.take(parts > 1 ? each * parts : 0);
  float* base = memory().floats(memory_parts.total());

  pool.run((int)tasks, threads, [&](int task, int worker) {
    const int64_t row = task % heights * height, rows = std::min(height, m.rows - row);
    const int64_t part = task / heights / blocks, column = task / heights % blocks * block;
    const int64_t from = part * kPart, inner = std::min(longest, m.inner - from);
    const int64_t columns = std::min(block, m.columns - column);
    float* mine = base + scratch + (packed + 15) / 16 * 16 * worker;
    float* to = (parts > 1 ? base + sums + each * part : out) + row * m.columns + column;
    k.matrix_pack(right + from * m.right_row + column * m.right_column, m.right_row, m.right_column,
                  (int)inner, (int)columns, mine);
    k.matrix_multiply(left + row * m.left_row + from * m.left_step, m.left_row, m.left_step,
                      (int)rows, mine, (int)inner, (int)columns, parts == 1 && bias ? bias + column : nullptr, to,
                      m.columns);
  });
  if (parts == 1) return;
  constexpr int64_t kRows = 16;
  pool.run((int)((m.rows + kRows - 1) / kRows), threads, [&](int slice, int) {
    const size_t first = slice * kRows * m.columns;
    const size_t last = std::min<size_t>(first + kRows * m.columns, each);
    const float* sum = base + sums;
    for (size_t i = first; i < last; i++) out[i] = sum[i];
    for (int64_t part = 1; part < parts; part++)
      for (size_t i = first; i < last; i++) out[i] += sum[each * part + i];
    if (bias)
      for (size_t i = first; i < last; i++) out[i] += bias[i % m.columns];
  });
}

}  // namespace
}  // namespace kstep

KSTEP_API const char* kstep_product(const kstep::Product* m, const float* left, const float* right,
                                    const float* bias, float* out, int32_t threads) {
  constexpr int64_t kMost = 1 << 30;
  if (!m || m->rows < 0 || m->columns < 1 || m->inner < 0 ||
      std::max(std::max(m->rows, m->columns), m->inner) > kMost)
    return "a product of matrices";
  if (m->right_row != 1 && m->right_column != 1) return "a right matrix with contiguous lines";
  if (m->inner > kstep::kUndivided &&
      m->rows * m->columns > kstep::kMostSums / (m->inner / kstep::kPart + 1))
    return "smaller matrices";
  if (m->rows == 0) return nullptr;
  return kstep::with_pool(threads, [&](const kstep::Kernels& k, kstep::Pool& pool, int t) {
    kstep::product(k, pool, *m, left, right, bias, out, t);
  });
}
