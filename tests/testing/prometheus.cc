#include "testing/prometheus.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>

// GCC's own <regex>, inlined under sanitizers, looks to it as if it read what was never written.
#pragma GCC diagnostic push
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <regex>
#pragma GCC diagnostic pop

namespace perigee::test {
namespace {

bool StartsWith(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

class Reader {
 public:
  MetricsPage page;

  void Line(const std::string& line) {
    SCOPED_TRACE(line);
    if (StartsWith(line, "# HELP ")) return Help(line.substr(7));
    if (StartsWith(line, "# TYPE ")) return Type(line.substr(7));
    Sample(line);
  }

  void EndFamily() {
    if (family_.empty()) return;
    SCOPED_TRACE(family_);
    EXPECT_GT(samples_, 0);
    if (page.types[family_] != "histogram") return;
    EXPECT_TRUE(inf_);
    EXPECT_EQ(bucket_, page.at(family_ + "_count"));
    EXPECT_GE(page.at(family_ + "_sum"), 0);
  }

 private:
  void Help(const std::string& rest) {
    EndFamily();
    family_ = rest.substr(0, rest.find(' '));
    EXPECT_TRUE(std::regex_match(family_, std::regex("[a-zA-Z_:][a-zA-Z0-9_:]*")));
    EXPECT_GT(rest.size(), family_.size() + 1) << "no text";
    EXPECT_EQ(page.types.count(family_), 0u) << "the family has been there";
    typed_ = inf_ = false;
    samples_ = 0;
    bucket_ = 0;
    bound_ = -std::numeric_limits<double>::infinity();
  }

  void Type(const std::string& rest) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(rest, match, std::regex("(\\S+) (counter|gauge|histogram)")));
    EXPECT_EQ(match[1], family_);
    EXPECT_FALSE(typed_);
    typed_ = true;
    page.types[family_] = match[2];
    if (match[2] == "counter") {
      EXPECT_TRUE(EndsWith(family_, "_total"));
    }
  }

  void Sample(const std::string& line) {
    static const std::regex kForm(
        R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_]\w*="(?:[^"\\]|\\["\\n])*"(?:,[a-zA-Z_]\w*="(?:[^"\\]|\\["\\n])*")*\})? (\S+))re");
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, kForm)) << "not a sample";
    const std::string name = match[1], labels = match[2], number = match[3];
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    EXPECT_TRUE(*end == '\0' && std::isfinite(value));
    EXPECT_TRUE(page.samples.emplace(name + labels, value).second) << "repeated";
    EXPECT_TRUE(typed_);
    ++samples_;
    const std::string& type = page.types[family_];
    if (type != "histogram") {
      EXPECT_EQ(name, family_);
    }
    if (type == "counter") {
      EXPECT_GE(value, 0);
    }
    if (type == "histogram") HistogramSample(name, labels, value);
  }

  void HistogramSample(const std::string& name, const std::string& labels, double value) {
    if (name == family_ + "_sum" || name == family_ + "_count") return;
    EXPECT_EQ(name, family_ + "_bucket");
    std::smatch match;
    ASSERT_TRUE(std::regex_match(labels, match, std::regex(R"re(\{le="([^"]+)"\})re")));
    const double bound = std::strtod(match[1].str().c_str(), nullptr);  // knows +Inf
    EXPECT_GT(bound, bound_);
    EXPECT_GE(value, bucket_);
    bound_ = bound;
    bucket_ = value;
    inf_ = match[1] == "+Inf";
  }

  std::string family_;
  bool typed_ = false;
  int samples_ = 0;
  bool inf_ = false;   // the last bucket was
  double bucket_ = 0;  // the last
  double bound_ = 0;
};

}  // namespace

double MetricsPage::at(const std::string& sample) const {
  const auto found = samples.find(sample);
  return found == samples.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

MetricsPage ParseMetrics(std::string_view text) {
  EXPECT_TRUE(!text.empty() && text.back() == '\n') << "the last line is not whole";
  Reader reader;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) reader.Line(line);
  reader.EndFamily();
  return reader.page;
}

}  // namespace perigee::test
