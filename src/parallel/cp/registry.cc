#include <array>
#include <utility>

#include "base/strings.h"
#include "parallel/cp/cp_strategy.h"

namespace perigee::parallel {
namespace {

// A new strategy is a function and a row here.
constexpr std::array<std::pair<std::string_view, CpStrategy>, 2> kStrategies = {
    {{"zigzag", Zigzag}, {"contiguous", Contiguous}}};

}  // namespace

StatusOr<CpStrategy> FindCpStrategy(std::string_view name) {
  for (const auto& [known, strategy] : kStrategies) {
    if (known == name) return strategy;
  }
  return InvalidArgument(
      StrCat("unknown CP strategy ", Quoted(name), "; accepted: ", StrJoin(CpStrategyNames(), ", ")));
}

std::vector<std::string> CpStrategyNames() {
  std::vector<std::string> names;
  for (const auto& [known, strategy] : kStrategies) names.emplace_back(known);
  return names;
}

}  // namespace perigee::parallel
