#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace perigee::server {

// Keeps things alive until they take themselves out, and can wait for the last one. Thread-safe.
template <typename T>
class LiveSet {
 public:
  void Add(std::shared_ptr<T> item) {
    std::lock_guard lock(mutex_);
    items_.insert(std::move(item));
  }
  void Remove(const std::shared_ptr<T>& item) {
    std::lock_guard lock(mutex_);
    items_.erase(item);
    if (items_.empty()) empty_.notify_all();
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }
  std::vector<std::shared_ptr<T>> All() const {
    std::lock_guard lock(mutex_);
    return {items_.begin(), items_.end()};
  }
  // False when something is still there after `limit`.
  bool WaitEmpty(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return empty_.wait_for(lock, limit, [&] { return items_.empty(); });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::set<std::shared_ptr<T>> items_;
};

}  // namespace perigee::server
