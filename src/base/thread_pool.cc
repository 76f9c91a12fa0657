#include "base/thread_pool.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace perigee {
namespace {
thread_local bool inside_parallel = false;
}  // namespace

#if defined(__SSE__)
ScopedFlushDenormals::ScopedFlushDenormals() : saved_(_mm_getcsr()) {
  _mm_setcsr(saved_ | 0x8040u);
}
ScopedFlushDenormals::~ScopedFlushDenormals() {
  _mm_setcsr(saved_);
}
#else
ScopedFlushDenormals::ScopedFlushDenormals() {}
ScopedFlushDenormals::~ScopedFlushDenormals() {}
#endif

ThreadPool::ThreadPool(int num_threads) {
  PERIGEE_CHECK(num_threads >= 1);
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::RunItems(const std::function<void(int64_t)>& body, int64_t n) {
  inside_parallel = true;
  for (int64_t i = next_.fetch_add(1); i < n; i = next_.fetch_add(1)) {
    items_begun_.fetch_add(1, std::memory_order_relaxed);
    body(i);
  }
  inside_parallel = false;
}

void ThreadPool::WorkerLoop() {
  const ScopedFlushDenormals flush;
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    work_ready_.wait(lock, [&] { return stopping_ || generation_ != seen; });
    if (stopping_) return;
    seen = generation_;
    const std::function<void(int64_t)>* body = body_;
    if (body == nullptr) continue;  // woke after the round had ended
    const int64_t n = items_;
    ++busy_;
    lock.unlock();
    RunItems(*body, n);
    lock.lock();
    if (--busy_ == 0) work_done_.notify_one();
  }
}

void ThreadPool::ParallelFor(int64_t n, const std::function<void(int64_t)>& body) {
  if (n <= 0) return;
  const ScopedFlushDenormals flush;
  if (inside_parallel || workers_.empty() || n == 1) {
    for (int64_t i = 0; i < n; ++i) {
      items_begun_.fetch_add(1, std::memory_order_relaxed);
      body(i);
    }
    return;
  }
  {
    std::lock_guard lock(mutex_);
    PERIGEE_CHECK_MSG(body_ == nullptr, "ParallelFor called by two threads at once");
    body_ = &body;
    items_ = n;
    next_.store(0);
    ++generation_;
  }
  if (n - 1 >= static_cast<int64_t>(workers_.size())) {
    work_ready_.notify_all();
  } else {
    for (int64_t i = 1; i < n; ++i) work_ready_.notify_one();
  }
  RunItems(body, n);
  std::unique_lock lock(mutex_);
  body_ = nullptr;  // a worker that wakes from here on finds nothing to do
  work_done_.wait(lock, [&] { return busy_ == 0; });
}

void ThreadPool::ParallelRanges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  const int64_t pieces = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, size());
  ParallelFor(pieces, [&](int64_t i) { body(PartBegin(i, n, pieces), PartBegin(i + 1, n, pieces)); });
}

}  // namespace perigee
