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
#include "model/kimi_linear/footprint.h"
#include "model/kimi_linear/model.h"

namespace perigee::model {
namespace {

class KimiLinearFiles final : public ModelFiles {
 public:
  KimiLinearFiles(KimiLinearConfig config, std::vector<int32_t> stop_ids, Checkpoint checkpoint)
      : config_(std::move(config)),
        stop_ids_(std::move(stop_ids)),
        checkpoint_(std::make_shared<const Checkpoint>(std::move(checkpoint))),
        footprint_(MakeKimiLinearFootprint(config_, [checkpoint = checkpoint_](const std::string& name) {
          return checkpoint->Find(name)->dtype;
        })) {}

  const ModelFootprint& footprint() const override { return *footprint_; }
  const std::vector<int32_t>& stop_ids() const override { return stop_ids_; }
  parallel::ModelShape shape() const override { return KimiLinearShape(config_); }
  std::unique_ptr<CausalLm> Build(const parallel::Shard& shard,
                                  const std::function<void(uint64_t, uint64_t)>& progress, Device device,
                                  MemoryLedger* ledger) const override {
    return std::make_unique<KimiLinearModel>(config_, checkpoint_, shard, progress, device, true, ledger);
  }

 private:
  KimiLinearConfig config_;
  std::vector<int32_t> stop_ids_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<const ModelFootprint> footprint_;
};

StatusOr<std::unique_ptr<ModelFiles>> OpenKimiLinear(const std::string& folder,
                                                     std::string_view config_json) {
  PERIGEE_ASSIGN_OR_RETURN(KimiLinearConfig config,
                           ParseKimiLinearConfig(config_json, folder + "/config.json"));
  if (!config.unknown_keys.empty()) {
    LogWarning(StrCat(folder, "/config.json: keys that are not known here and have no effect: ",
                      StrJoin(config.unknown_keys, ", ")));
  }
  PERIGEE_ASSIGN_OR_RETURN(std::vector<int32_t> stop_ids, ReadGenerationStopIds(folder, config.vocab_size));
  stop_ids.insert(stop_ids.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());

  PERIGEE_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(folder));
  PERIGEE_RETURN_IF_ERROR(CheckCheckpoint(checkpoint, ExpectedTensors(config)));
  return std::unique_ptr<ModelFiles>(
      std::make_unique<KimiLinearFiles>(std::move(config), std::move(stop_ids), std::move(checkpoint)));
}

struct Architecture {
  std::string_view name;
  StatusOr<std::unique_ptr<ModelFiles>> (*open)(const std::string& folder, std::string_view config_json);
};

// A new model is a folder and a row here.
constexpr std::array<Architecture, 1> kArchitectures = {{{"KimiLinearForCausalLM", OpenKimiLinear}}};

}  // namespace

StatusOr<std::unique_ptr<ModelFiles>> OpenModel(const std::string& folder) {
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
    if (std::find(names.begin(), names.end(), a.name) != names.end()) return a.open(folder, json);
    known += StrCat(known.empty() ? "" : ", ", a.name);
  }
  return InvalidArgument(
      StrCat(path, ": architectures: ", StrJoin(names, ", "), " is not supported; accepted: ", known));
}

}  // namespace perigee::model
