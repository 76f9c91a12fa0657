#pragma once

#include <map>
#include <string>
#include <string_view>

namespace perigee::test {

// Samples of a page in Prometheus' text format 0.0.4, by name and labels as they stand: `x_total{mode="tp"}`.
struct MetricsPage {
  std::map<std::string, double> samples;
  std::map<std::string, std::string> types;  // of families

  // NaN when there is none.
  double at(const std::string& sample) const;
};

// Reads a page and fails the running test on anything that the format does not allow: a sample before HELP
// and TYPE of its family or outside of it, a name or label that is no identifier, bad quoting, a repeated
// sample, a value that is no number, and a histogram whose buckets fall, lack +Inf or do not fit its count.
// Counters must end in _total and be at least 0.
MetricsPage ParseMetrics(std::string_view text);

}  // namespace perigee::test
