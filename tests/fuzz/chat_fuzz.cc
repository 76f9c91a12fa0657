#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/json_format.h"

// Any text as a template to inspect and as a request's tools: findings of one line; JSON that formatting does
// not change a second time.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using perigee::text::FormatJson;
  using perigee::text::JsonStyle;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::string& finding : perigee::text::UnrenderedTemplateFeatures(text))
    PERIGEE_CHECK(!finding.empty() && finding.find('\n') == std::string::npos);
  for (const JsonStyle style : {JsonStyle{}, JsonStyle{.sort_keys = true, .compact = true}}) {
    const auto once = FormatJson(text, style, "JSON");
    if (!once.ok()) {
      PERIGEE_CHECK(once.status().message().starts_with("JSON: "));
      continue;
    }
    PERIGEE_CHECK(perigee::text::IsValidUtf8(*once));
    const auto twice = FormatJson(*once, style, "JSON");
    PERIGEE_CHECK(twice.ok() && *twice == *once);
  }
  return 0;
}
