#include "e2e/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace perigee::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPollInterval{10};

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

Process::Process(const std::vector<std::string>& args) {
  int out_pipe[2];
  int err_pipe[2];
  if (pipe2(out_pipe, O_CLOEXEC) != 0 || pipe2(err_pipe, O_CLOEXEC) != 0) Die("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out_pipe[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err_pipe[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) Die(argv[0]);
  posix_spawn_file_actions_destroy(&actions);
  close(out_pipe[1]);
  close(err_pipe[1]);
  readers_.emplace_back([this, fd = out_pipe[0]] { Collect(fd, &out_); });
  readers_.emplace_back([this, fd = err_pipe[0]] { Collect(fd, &err_); });
}

Process::~Process() {
  if (Wait(std::chrono::seconds(0)) >= 0 || ended_) return;
  Signal(SIGKILL);
  Wait();
}

void Process::Collect(int fd, std::string* into) {
  char bytes[4096];
  for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0;) {
    std::lock_guard lock(mutex_);
    into->append(bytes, static_cast<size_t>(n));
  }
  close(fd);
}

void Process::Signal(int signal) const {
  if (!ended_) kill(pid_, signal);
}

int Process::Wait(std::chrono::seconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  while (!ended_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = true;
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      for (std::thread& reader : readers_) reader.join();
    } else if (Clock::now() >= deadline) {
      return -1;
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  return exit_code_;
}

std::string Process::out() {
  std::lock_guard lock(mutex_);
  return out_;
}

std::string Process::err() {
  std::lock_guard lock(mutex_);
  return err_;
}

std::string Process::WaitForLine(const std::string& start, std::chrono::seconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  for (;;) {
    const bool last_look = Wait(std::chrono::seconds(0)) >= 0 || Clock::now() >= deadline;
    const std::string text = "\n" + out();
    if (const size_t at = text.find("\n" + start); at != std::string::npos) {
      if (const size_t end = text.find('\n', at + 1); end != std::string::npos) {
        return text.substr(at + 1, end - at - 1);
      }
    }
    if (last_look) return "";
    std::this_thread::sleep_for(kPollInterval);
  }
}

bool Process::WaitForError(const std::string& text, std::chrono::seconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  for (;;) {
    const bool last_look = Wait(std::chrono::seconds(0)) >= 0 || Clock::now() >= deadline;
    if (err().find(text) != std::string::npos) return true;
    if (last_look) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
}

Finished RunToEnd(const std::vector<std::string>& args, std::chrono::seconds limit) {
  Process process(args);
  Finished finished{.exit_code = process.Wait(limit)};
  if (finished.exit_code < 0) {
    process.Signal(SIGKILL);
    process.Wait();
  }
  finished.out = process.out();
  finished.err = process.err();
  return finished;
}

}  // namespace perigee::testing
