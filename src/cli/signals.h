#pragma once

#include <functional>
#include <mutex>
#include <thread>

namespace perigee::cli {

// Turns SIGINT and SIGTERM into a call. Make one before any other thread exists: it blocks both signals in
// the calling thread, and later threads inherit that. A signal that comes before Arm, and the second one
// after it, end the process at once with status 1.
class SignalWatcher {
 public:
  SignalWatcher();
  // Stops watching; the signals stay blocked.
  ~SignalWatcher();

  // `on_signal` runs on the watcher's thread at the first signal from now on. It must be quick. Once another
  // Arm has returned, it neither runs nor will.
  void Arm(std::function<void()> on_signal);

  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  void Watch();

  std::mutex mutex_;
  std::function<void()> on_signal_;  // empty: not armed, or used up
  int signal_fd_;
  int stop_fd_;
  std::thread thread_;
};

}  // namespace perigee::cli
