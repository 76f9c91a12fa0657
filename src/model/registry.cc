#include "model/registry.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/log.h"
#include "base/strings.h"
#include "layers/weight_source.h"
#include "model/checkpoint_check.h"
#include "model/config_reader.h"
#include "model/kimi_linear/config.h"
#include "model/kimi_linear/drawn_weights.h"
#include "model/kimi_linear/footprint.h"
#include "model/kimi_linear/model.h"

namespace perigee::model {
namespace {

class KimiLinearFiles final : public ModelFiles {
 public:
  KimiLinearFiles(KimiLinearConfig config, std::vector<int32_t> stop_ids,
                  std::shared_ptr<const layers::WeightSource> weights)
      : config_(std::move(config)),
        stop_ids_(std::move(stop_ids)),
        weights_(std::move(weights)),
        footprint_(MakeKimiLinearFootprint(
            config_, [source = weights_](const std::string& name) { return source->Type(name); })) {}

  const ModelFootprint& footprint() const override { return *footprint_; }
  const std::vector<int32_t>& stop_ids() const override { return stop_ids_; }
  parallel::ModelShape shape() const override { return KimiLinearShape(config_); }
  std::unique_ptr<CausalLm> Build(const parallel::Shard& shard,
                                  const std::function<void(uint64_t, uint64_t)>& progress, Device device,
                                  MemoryLedger* ledger) const override {
    return std::make_unique<KimiLinearModel>(config_, weights_, shard, progress, device, true, ledger);
  }

 private:
  KimiLinearConfig config_;
  std::vector<int32_t> stop_ids_;
  std::shared_ptr<const layers::WeightSource> weights_;
  std::unique_ptr<const ModelFootprint> footprint_;
};

void SortUnique(std::vector<int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

StatusOr<KimiLinearConfig> ReadConfig(const std::string& folder, std::string_view config_json) {
  PERIGEE_ASSIGN_OR_RETURN(KimiLinearConfig config,
                           ParseKimiLinearConfig(config_json, folder + "/config.json"));
  if (!config.unknown_keys.empty()) {
    LogWarning(StrCat(folder, "/config.json: keys that are not known here and have no effect: ",
                      StrJoin(config.unknown_keys, ", ")));
  }
  return config;
}

std::unique_ptr<ModelFiles> Dummy(KimiLinearConfig config, uint64_t seed) {
  std::vector<int32_t> stop_ids = config.eos_token_ids;
  SortUnique(stop_ids);
  auto weights = std::make_shared<const layers::DrawnWeights>(DrawKimiLinear(config, seed));
  return std::make_unique<KimiLinearFiles>(std::move(config), std::move(stop_ids), std::move(weights));
}

StatusOr<std::unique_ptr<ModelFiles>> OpenKimiLinear(const std::string& folder, std::string_view config_json,
                                                     std::optional<uint64_t> dummy_seed) {
  PERIGEE_ASSIGN_OR_RETURN(KimiLinearConfig config, ReadConfig(folder, config_json));
  if (dummy_seed) return Dummy(std::move(config), *dummy_seed);
  PERIGEE_ASSIGN_OR_RETURN(std::vector<int32_t> stop_ids, ReadGenerationStopIds(folder, config.vocab_size));
  stop_ids.insert(stop_ids.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
  SortUnique(stop_ids);

  PERIGEE_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(folder));
  PERIGEE_RETURN_IF_ERROR(CheckCheckpoint(checkpoint, ExpectedTensors(config)));
  return std::unique_ptr<ModelFiles>(std::make_unique<KimiLinearFiles>(
      std::move(config), std::move(stop_ids),
      std::make_shared<const layers::CheckpointWeights>(std::move(checkpoint))));
}

struct Architecture {
  std::string_view name;
  // With a seed the weights are drawn, and the folder's are not looked at.
  StatusOr<std::unique_ptr<ModelFiles>> (*open)(const std::string& folder, std::string_view config_json,
                                                std::optional<uint64_t> dummy_seed);
};

// A new model is a folder and a row here.
constexpr std::array<Architecture, 1> kArchitectures = {{{"KimiLinearForCausalLM", OpenKimiLinear}}};

StatusOr<std::unique_ptr<ModelFiles>> OpenFolder(const std::string& folder,
                                                 std::optional<uint64_t> dummy_seed) {
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
    if (std::find(names.begin(), names.end(), a.name) != names.end()) return a.open(folder, json, dummy_seed);
    known += StrCat(known.empty() ? "" : ", ", a.name);
  }
  return InvalidArgument(
      StrCat(path, ": architectures: ", StrJoin(names, ", "), " is not supported; accepted: ", known));
}

}  // namespace

StatusOr<std::unique_ptr<ModelFiles>> OpenModel(const std::string& folder) {
  return OpenFolder(folder, std::nullopt);
}

StatusOr<std::unique_ptr<ModelFiles>> OpenDummyModel(const std::string& folder, uint64_t seed) {
  return OpenFolder(folder, seed);
}

StatusOr<std::unique_ptr<ModelFiles>> OpenDummyShape(const std::string& shape, uint64_t seed) {
  PERIGEE_ASSIGN_OR_RETURN(KimiLinearConfig config, NamedShape(shape));
  return Dummy(std::move(config), seed);
}

}  // namespace perigee::model
