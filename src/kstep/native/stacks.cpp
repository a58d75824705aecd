// Observations out of a ring of frames: stacked, moved and cut in one pass over the bytes.
//
//      ring (slots, H, W, C)   which frames (n, S)   where (n, 2)
//                      \              |              /
//                       v             v             v
//                       (n, S, h, w, C), row by row
//
// Row y of a view is row y + top - pad of its frame; likewise columns. What lies outside the frame is
// its border pixel again, or black. Stacking first and moving afterwards would go through memory
// three times.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "interface.h"
#include "pool.h"

namespace kstep {
namespace {

// What the C interface calls a view; the Python side has the same structure.
struct View {
  int64_t count, frames;  // stacks, and frames in each
  int32_t height, width, colours, out_height, out_width, pad, black;
};

void fill(uint8_t* to, const uint8_t* pixel, int pixels, int colours, bool black) {
  if (black)
    memset(to, 0, (size_t)pixels * colours);
  else
    for (int i = 0; i < pixels; i++) memcpy(to + (size_t)i * colours, pixel, colours);
}

void frame(const View& v, const uint8_t* from, int top, int left, uint8_t* to) {
  const int row = v.width * v.colours, out = v.out_width * v.colours;
  // Columns [0, before) lie left of the frame, [before, end) inside, the rest right of it.
  const int x = left - v.pad;
  const int before = std::min(std::max(-x, 0), v.out_width);
  const int end = std::max(before, std::min(v.width - x, v.out_width));
  for (int i = 0; i < v.out_height; i++, to += out) {
    const int y = i + top - v.pad;
    if ((y < 0 || y >= v.height) && v.black) {
      memset(to, 0, out);
      continue;
    }
    const uint8_t* source = from + (size_t)std::min(std::max(y, 0), v.height - 1) * row;
    fill(to, source, before, v.colours, v.black);
    memcpy(to + before * v.colours, source + (x + before) * v.colours, (end - before) * v.colours);
    fill(to + end * v.colours, source + row - v.colours, v.out_width - end, v.colours, v.black);
  }
}

}  // namespace
}  // namespace kstep

// `slots` (count, frames) index the ring, `places` (count, 2) are top and left. The Python side has
// checked both against the ring and the frame.
KSTEP_API const char* kstep_stacks(const kstep::View* v, const uint8_t* ring, const int64_t* slots,
                                   const int64_t* places, uint8_t* out, int32_t threads) {
  if (!v || threads < 1) return "a view and at least one thread";
  if (v->height < 1 || v->width < 1 || v->colours < 1 || v->out_height < 1 || v->out_width < 1)
    return "frames of at least one pixel";
  const size_t size = (size_t)v->height * v->width * v->colours;
  const size_t out_size = (size_t)v->out_height * v->out_width * v->colours;
  constexpr int64_t kChunk = 8;
  try {
    kstep::Pool& pool = kstep::Pool::here();
    std::lock_guard<std::mutex> lock(pool.busy);
    pool.run((int)((v->count + kChunk - 1) / kChunk), threads, [&](int number, int) {
      const int64_t end = std::min(v->count, (number + 1) * kChunk);
      for (int64_t i = number * kChunk; i < end; i++)
        for (int64_t s = 0; s < v->frames; s++)
          kstep::frame(*v, ring + size * slots[i * v->frames + s], (int)places[2 * i],
                       (int)places[2 * i + 1], out + out_size * (i * v->frames + s));
    });
  } catch (...) {
    return "more threads than could be started";
  }
  return nullptr;
}
