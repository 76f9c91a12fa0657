#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/queue.h"

namespace perigee::server {

using TaskQueue = BlockingQueue<std::function<void()>>;

// Threads that run tasks in the order of posting (with one thread: strictly one after another). The queue may
// outlive the pool; what is pushed then is dropped.
class TaskPool {
 public:
  explicit TaskPool(int num_threads);
  // Runs what is queued, then joins.
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  void Post(std::function<void()> task) { queue_->Push(std::move(task)); }
  const std::shared_ptr<TaskQueue>& queue() const { return queue_; }

 private:
  std::shared_ptr<TaskQueue> queue_ = std::make_shared<TaskQueue>();
  std::vector<std::thread> threads_;
};

}  // namespace perigee::server
