#include "cli/signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace perigee::cli {

SignalWatcher::SignalWatcher() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  PERIGEE_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  PERIGEE_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
  thread_ = std::thread([this] { Watch(); });
}

SignalWatcher::~SignalWatcher() {
  const uint64_t one = 1;
  PERIGEE_CHECK(write(stop_fd_, &one, sizeof one) == sizeof one);
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
}

void SignalWatcher::Arm(std::function<void()> on_signal) {
  std::lock_guard lock(mutex_);
  on_signal_ = std::move(on_signal);
}

void SignalWatcher::Watch() {
  std::array<pollfd, 2> watched = {pollfd{signal_fd_, POLLIN, 0}, pollfd{stop_fd_, POLLIN, 0}};
  for (;;) {
    if (poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof info) != sizeof info) continue;
    std::lock_guard lock(mutex_);
    if (!on_signal_) _exit(1);
    std::exchange(on_signal_, nullptr)();
  }
}

}  // namespace perigee::cli
