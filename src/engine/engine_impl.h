#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/mode_chooser.h"
#include "engine/rank_team.h"
#include "model/causal_lm.h"

namespace perigee::engine {

// An engine around loaded ranks. `config` was resolved. `stop_ids` are those of the model and the
// configuration, in ascending order. `memory`: the plan that the ranks were made by.
std::unique_ptr<Engine> MakeEngine(std::unique_ptr<RankTeam> team, const EngineConfig& config,
                                   MemoryPlan memory, ModeChooser modes, std::vector<TokenId> stop_ids);
// The same around one rank's model.
std::unique_ptr<Engine> MakeEngine(std::unique_ptr<model::CausalLm> model, const EngineConfig& config,
                                   std::vector<TokenId> stop_ids);

}  // namespace perigee::engine
