#include "model/registry.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/log.h"
#include "base/strings.h"
#include "model/checkpoint_check.h"
#include "model/config_reader.h"
#include "model/kimi_linear/config.h"
#include "model/kimi_linear/model.h"

namespace perigee::model {
namespace {

StatusOr<LoadedModel> LoadKimiLinear(const std::string& folder, std::string_view config_json,
                                     const LoadOptions& options) {
  PERIGEE_ASSIGN_OR_RETURN(const KimiLinearConfig config,
                           ParseKimiLinearConfig(config_json, folder + "/config.json"));
  if (!config.unknown_keys.empty()) {
    LogWarning(StrCat(folder, "/config.json: keys that are not known here and have no effect: ",
                      StrJoin(config.unknown_keys, ", ")));
  }
  PERIGEE_ASSIGN_OR_RETURN(std::vector<int32_t> stop_ids, ReadGenerationStopIds(folder));
  stop_ids.insert(stop_ids.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());

  PERIGEE_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(folder));
  PERIGEE_RETURN_IF_ERROR(CheckCheckpoint(checkpoint, ExpectedTensors(config)));
  LoadedModel loaded;
  loaded.model = std::make_unique<KimiLinearModel>(config, std::move(checkpoint), options.progress);
  loaded.max_context = config.model_max_length;
  loaded.stop_ids = std::move(stop_ids);
  loaded.vocab_size = config.vocab_size;
  return loaded;
}

struct Architecture {
  std::string_view name;
  StatusOr<LoadedModel> (*load)(const std::string& folder, std::string_view config_json,
                                const LoadOptions& options);
};

// A new model is a folder and a row here.
constexpr std::array<Architecture, 1> kArchitectures = {{{"KimiLinearForCausalLM", LoadKimiLinear}}};

}  // namespace

StatusOr<LoadedModel> LoadModel(const std::string& folder, const LoadOptions& options) {
  const std::string path = folder + "/config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return NotFound(StrCat(path, ": cannot be read; a model folder holds config.json and safetensors files"));
  std::ostringstream text;
  text << file.rdbuf();
  const std::string json = std::move(text).str();

  PERIGEE_ASSIGN_OR_RETURN(ConfigReader reader, ConfigReader::Parse(json, path));
  reader.Require({"architectures"});
  const std::vector<std::string> names =
      reader.OptionalStringList({"architectures"}).value_or(std::vector<std::string>{});
  PERIGEE_RETURN_IF_ERROR(reader.status());
  std::string known;
  for (const Architecture& a : kArchitectures) {
    if (std::find(names.begin(), names.end(), a.name) != names.end()) return a.load(folder, json, options);
    known += StrCat(known.empty() ? "" : ", ", a.name);
  }
  return InvalidArgument(
      StrCat(path, ": architectures: ", StrJoin(names, ", "), " is not supported; accepted: ", known));
}

}  // namespace perigee::model
