#include "cli/template_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/strings.h"

namespace perigee::cli {
namespace {

// Nothing when the file does not exist.
StatusOr<std::string> ReadIfThere(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) return InternalError(StrCat("cannot read ", path));
  return text;
}

}  // namespace

StatusOr<std::string> ReadChatTemplate(const std::string& folder) {
  PERIGEE_ASSIGN_OR_RETURN(std::string jinja, ReadIfThere(folder + "/chat_template.jinja"));
  if (!jinja.empty()) return jinja;
  const std::string config_path = folder + "/tokenizer_config.json";
  PERIGEE_ASSIGN_OR_RETURN(const std::string config_text, ReadIfThere(config_path));
  if (config_text.empty()) return std::string();
  const auto config = nlohmann::json::parse(config_text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return InvalidArgument(StrCat(config_path, ": not a JSON object"));
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  std::string all;
  if (found->is_array()) {
    for (const auto& entry : *found) {
      if (entry.is_object() && entry.contains("template") && entry["template"].is_string()) {
        all += entry["template"].get<std::string>() + "\n";
      }
    }
  }
  return all;
}

}  // namespace perigee::cli
