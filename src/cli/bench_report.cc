#include "cli/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <thread>

#include "base/check.h"
#include "base/strings.h"
#include "server/json_writer.h"

namespace perigee::cli {
namespace {

using server::JsonWriter;

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// Three digits that count, whatever the size.
std::string Milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return Fixed(ms, ms >= 1000 ? 0 : ms >= 100 ? 1 : ms >= 10 ? 2 : 3);
}

std::string Row(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) {
    line += std::string(cell.size() < 14 ? 14 - cell.size() : 1, ' ') + cell;
  }
  return line + "\n";
}

void WriteSeconds(const std::vector<double>& seconds, JsonWriter& out) {
  out.BeginArray();
  for (const double s : seconds) out.Value(s * 1e3);
  out.EndArray();
}

std::string ProcessorName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

}  // namespace

double MedianOf(std::vector<double> values) {
  PERIGEE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double PrefillResult::Median() const {
  return MedianOf(seconds);
}

double DecodeResult::Median() const {
  return MedianOf(seconds);
}

double DecodeResult::Mean() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

std::string DescribeMachine(const engine::ModelInfo& model) {
  std::string machine = StrCat(ProcessorName(), ", ", std::thread::hardware_concurrency(), " cores");
  if (!model.accelerator.empty()) machine = StrCat(model.accelerator, "; ", machine);
  return machine;
}

std::string ReportJson(const BenchReport& report) {
  const BenchSetting& s = report.setting;
  JsonWriter out;
  out.BeginObject()
      .Field("bench", "offline")
      .Field("machine", s.machine)
      .Field("device", s.device)
      .Field("commit", s.commit)
      .Field("command", s.command)
      .Field("model", s.model)
      .Field("random_weights", s.random_weights)
      .Field("chunk", s.chunk)
      .Field("start_s", s.start_seconds);
  out.Key("prefill").BeginArray();
  for (const PrefillResult& r : report.prefill) {
    out.BeginObject()
        .Field("tokens", r.tokens)
        .Field("ttft_ms", r.Median() * 1e3)
        .Field("tokens_per_s", static_cast<double>(r.tokens) / r.Median())
        .Key("runs_ms");
    WriteSeconds(r.seconds, out);
    out.EndObject();
  }
  out.EndArray().Key("decode").BeginArray();
  for (const DecodeResult& r : report.decode) {
    out.BeginObject()
        .Field("batch", r.batch)
        .Field("depth", r.depth)
        .Field("ms_per_step", r.Median() * 1e3)
        .Field("ms_mean", r.Mean() * 1e3)
        .Field("ms_in_ranks", r.seconds_in_ranks * 1e3)
        .Field("tokens_per_s", r.TokensPerSecond())
        .Key("steps_ms");
    WriteSeconds(r.seconds, out);
    out.EndObject();
  }
  out.EndArray().EndObject();
  return out.Take() + "\n";
}

std::string ReportTable(const BenchReport& report) {
  const BenchSetting& s = report.setting;
  std::string text =
      StrCat("machine  ", s.machine, "\ncommit   ", s.commit, "\ncommand  ", s.command, "\nmodel    ",
             s.model, s.random_weights ? ", random weights" : "", ", on ", s.device, ", prompts in steps of ",
             s.chunk, " rows\nstart    ", Fixed(s.start_seconds, 1), " s\n");
  if (!report.prefill.empty()) text += "\n" + Row({"prompt", "ttft ms", "tokens/s", "slowest ms"});
  for (const PrefillResult& r : report.prefill) {
    text += Row({std::to_string(r.tokens), Milliseconds(r.Median()),
                 Fixed(static_cast<double>(r.tokens) / r.Median(), 0),
                 Milliseconds(*std::max_element(r.seconds.begin(), r.seconds.end()))});
  }
  if (!report.decode.empty())
    text += "\n" + Row({"batch", "depth", "ms/step", "tokens/s", "mean ms", "in ranks ms"});
  for (const DecodeResult& r : report.decode) {
    text += Row({std::to_string(r.batch), std::to_string(r.depth), Milliseconds(r.Median()),
                 Fixed(r.TokensPerSecond(), 1), Milliseconds(r.Mean()), Milliseconds(r.seconds_in_ranks)});
  }
  return text;
}

}  // namespace perigee::cli
