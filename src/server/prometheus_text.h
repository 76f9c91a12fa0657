#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/strings.h"

namespace perigee::server {

// The text exposition format of Prometheus, version 0.0.4: families of samples, each with HELP and TYPE.
inline constexpr std::string_view kPrometheusContentType = "text/plain; version=0.0.4; charset=utf-8";

class PrometheusText {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Begins a family; its samples follow. Types: counter, gauge, histogram.
  void Family(std::string_view name, std::string_view type, std::string_view help);
  // A sample of the family, whose name `suffix` is added to. The value is finite.
  template <typename T>
  void Sample(Labels labels, T value, std::string_view suffix = "") {
    text_ += StrCat(family_, suffix, LabelText(labels), " ", value, "\n");
  }

  std::string Take() { return std::move(text_); }

 private:
  static std::string LabelText(Labels labels);

  std::string text_;
  std::string family_;
};

}  // namespace perigee::server
