#pragma once

#include <sys/types.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace perigee::testing {

// A program of ours that a test started, with both of its outputs collected. Ends with the object: what still
// runs is killed.
class Process {
 public:
  // args[0] is the program's path. Standard input is empty.
  explicit Process(const std::vector<std::string>& args);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit status, or 128 + the signal that ended it, or -1 when it still runs after `limit`.
  int Wait(std::chrono::seconds limit = std::chrono::seconds(120));

  // What it has written so far: all of it once Wait has returned.
  std::string out();
  std::string err();
  // The first complete line of standard output that begins with `start`, waited for; empty when the program
  // ended or `limit` passed before.
  std::string WaitForLine(const std::string& start, std::chrono::seconds limit = std::chrono::seconds(60));
  // Waits until standard error holds `text`; false when the program ended or `limit` passed before.
  bool WaitForError(const std::string& text, std::chrono::seconds limit = std::chrono::seconds(60));

 private:
  void Collect(int fd, std::string* into);

  pid_t pid_ = -1;
  int exit_code_ = -1;
  bool ended_ = false;
  std::mutex mutex_;
  std::string out_;
  std::string err_;
  std::vector<std::thread> readers_;
};

struct Finished {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Runs a program to its end.
Finished RunToEnd(const std::vector<std::string>& args,
                  std::chrono::seconds limit = std::chrono::seconds(120));

}  // namespace perigee::testing
