#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"

// What `perigee bench offline` found, and its two forms.
namespace perigee::cli {

// Prompts of one length, alone in the engine: from submission to the first token.
struct PrefillResult {
  int64_t tokens = 0;
  std::vector<double> seconds;  // of each run, the warm-up left out

  double Median() const;
};

// Generated tokens of `batch` requests that run together: steps in which all of them had a row.
struct DecodeResult {
  int64_t batch = 0;
  int64_t depth = 0;            // tokens of each prompt, computed beforehand
  std::vector<double> seconds;  // of each step, from one delivery to the next
  double seconds_in_ranks =
      0;  // of a step on average: forward pass, logits, sampling; the rest is the loop's

  double Median() const;
  double Mean() const;
  double TokensPerSecond() const { return static_cast<double>(batch) / Median(); }
};

struct BenchSetting {
  std::string command;
  std::string commit;   // of the program's source
  std::string machine;  // processor and cores, and the device if it is another
  std::string device;   // cpu or cuda
  std::string model;
  bool random_weights = false;
  int64_t chunk = 0;         // rows of a prefill step
  double start_seconds = 0;  // from reading the flags to a model that takes requests
};

struct BenchReport {
  BenchSetting setting;
  std::vector<PrefillResult> prefill;
  std::vector<DecodeResult> decode;
};

double MedianOf(std::vector<double> values);

// Processor, cores this process may use, and the device of the model.
std::string DescribeMachine(const engine::ModelInfo& model);

std::string ReportJson(const BenchReport& report);
std::string ReportTable(const BenchReport& report);

}  // namespace perigee::cli
