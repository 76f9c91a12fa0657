#include "server/task_pool.h"

namespace perigee::server {

TaskPool::TaskPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([queue = queue_] {
      while (auto task = queue->Pop()) (*task)();
    });
  }
}

TaskPool::~TaskPool() {
  queue_->Close();
  for (std::thread& t : threads_) t.join();
}

}  // namespace perigee::server
