#include "server/prometheus_text.h"

namespace perigee::server {
namespace {

std::string Escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || (c == '"' && quotes)) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

void PrometheusText::Family(std::string_view name, std::string_view type, std::string_view help) {
  family_ = name;
  text_ += StrCat("# HELP ", name, " ", Escaped(help, false), "\n# TYPE ", name, " ", type, "\n");
}

std::string PrometheusText::LabelText(Labels labels) {
  if (labels.size() == 0) return "";
  std::string text;
  for (const auto& [name, value] : labels) {
    text += StrCat(text.empty() ? "{" : ",", name, "=\"", Escaped(value, true), "\"");
  }
  return text + "}";
}

}  // namespace perigee::server
