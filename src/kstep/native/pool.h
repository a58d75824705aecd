// A small pool of threads. Workers sleep on a condition variable between calls, so that they take no
// core from anybody; the caller works too. Tasks are numbered and taken in order by whoever is free:
// what a task computes must depend on its number alone, never on the thread it runs on, and then no
// result depends on the number of threads.
//
// On a busy machine a worker may be woken long after it was called. The caller never waits for it: it
// takes the tasks itself, and a worker that comes late finds none. Only tasks that somebody has begun
// are waited for.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kstep {

// How this thread rounds and whether it flushes denormals: a state of the thread, not the process.
#if defined(__x86_64__)
using Rounding = unsigned;
inline Rounding rounding() { return _mm_getcsr(); }
inline void set_rounding(Rounding r) { _mm_setcsr(r); }
#else
struct Rounding {};
inline Rounding rounding() { return {}; }
inline void set_rounding(Rounding) {}
#endif

class Pool {
 public:
  using Task = std::function<void(int, int)>;

  // The pool of this process. A forked child inherits the object but none of its threads, so it
  // gets a new one; the old one is left alone, as it is at exit, when sleeping workers do no harm.
  static Pool& here() {
    static std::mutex guard;
    static Pool* pool = nullptr;
    static pid_t owner = 0;
    std::lock_guard<std::mutex> lock(guard);
    if (!pool || owner != getpid()) {
      pool = new Pool;
      owner = getpid();
    }
    return *pool;
  }

  // Call task(number, worker) for every number below `tasks` on up to `threads` threads; worker is
  // below `threads`. Returns when all are done. Only one caller at a time: hold `busy`.
  void run(int tasks, int threads, const Task& task) {
    const int helpers = std::min(threads, tasks) - 1;
    if (helpers <= 0) {
      for (int i = 0; i < tasks; i++) task(i, 0);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (; started_ < helpers; started_++) std::thread(&Pool::work, this, started_ + 1).detach();
      task_ = &task;
      rounding_ = rounding();  // or bits would depend on which thread computed them
      tasks_ = tasks;
      next_ = 0;
      helpers_ = helpers;
      round_++;
    }
    wake_.notify_all();
    take(task, 0);
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = nullptr;  // nobody joins from here on
    done_.wait(lock, [this] { return working_ == 0; });
  }

  std::mutex busy;  // held by whoever uses the pool

 private:
  void take(const Task& task, int worker) {
    for (int i; (i = next_.fetch_add(1)) < tasks_;) task(i, worker);
  }

  void work(int worker) {
    unsigned long seen = 0;
    for (;;) {
      const Task* task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return task_ && round_ != seen && worker <= helpers_; });
        seen = round_;
        if (next_ >= tasks_) continue;  // too late for this round: nothing is left to take
        task = task_;
        working_++;
        set_rounding(rounding_);
      }
      take(*task, worker);
      std::lock_guard<std::mutex> lock(mutex_);
      if (--working_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const Task* task_ = nullptr;  // of the round that is under way
  Rounding rounding_{};
  std::atomic<int> next_{0};
  int tasks_ = 0, helpers_ = 0, started_ = 0;
  int working_ = 0;  // helpers inside the round
  unsigned long round_ = 0;
};

}  // namespace kstep
