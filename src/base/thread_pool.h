#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace perigee {

// A fixed set of threads for the CPU kernels of one rank. The calling thread takes part, so a pool of size 1
// has no thread of its own. Workers flush denormal numbers to zero, and so does the caller while it works in
// ParallelFor: decayed states would otherwise crawl, and one setting on every thread keeps results
// independent of who ran what. ParallelFor may be called by one thread at a time; a call from inside a body
// runs serially.
class ThreadPool {
 public:
  // num_threads >= 1, the caller included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body(i) for every i in [0, n), each exactly once, in no particular order. Returns when all are done.
  void ParallelFor(int64_t n, const std::function<void(int64_t)>& body);
  // Pieces of work begun since the start: grows as long as a kernel gets on. Any thread may read it.
  const std::atomic<uint64_t>& items_begun() const { return items_begun_; }

  // Runs body(begin, end) over disjoint ranges that cover [0, n), each but the last at least `grain` long.
  void ParallelRanges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  void WorkerLoop();
  void RunItems(const std::function<void(int64_t)>& body, int64_t n);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable work_done_;
  uint64_t generation_ = 0;
  bool stopping_ = false;
  const std::function<void(int64_t)>* body_ = nullptr;
  int64_t items_ = 0;
  int busy_ = 0;
  std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> items_begun_{0};
};

// Sets flush-to-zero and denormals-are-zero for the current scope (x86; elsewhere nothing).
class ScopedFlushDenormals {
 public:
  ScopedFlushDenormals();
  ~ScopedFlushDenormals();
  ScopedFlushDenormals(const ScopedFlushDenormals&) = delete;
  ScopedFlushDenormals& operator=(const ScopedFlushDenormals&) = delete;

 private:
  unsigned saved_ = 0;
};

}  // namespace perigee
