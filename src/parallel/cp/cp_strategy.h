#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "batch/seq_span.h"
#include "parallel/cp/cp_plan.h"

namespace perigee::parallel {

// A strategy is one function: from a step's spans (token order) and the number of CP ranks to owners. The
// same spans give the same plan on every rank.
using CpStrategy = CpPlan (*)(std::span<const batch::SeqSpan> spans, int cp_size);

// Every span of at least 2 C rows is cut into 2 C blocks, the first L mod 2 C of them one row longer; rank r
// owns blocks r and 2 C - 1 - r, so that early (cheap) and late (costly) rows even out. Local order: block r
// of every span, then block 2 C - 1 - r of every span. Shorter spans are owned whole.
CpPlan Zigzag(std::span<const batch::SeqSpan> spans, int cp_size);
// Every span of at least C rows is cut into C equal runs, the first L mod C of them one row longer.
CpPlan Contiguous(std::span<const batch::SeqSpan> spans, int cp_size);

// By name; an unknown one is an error that lists the known ones.
StatusOr<CpStrategy> FindCpStrategy(std::string_view name);
std::vector<std::string> CpStrategyNames();

// The most rows of a step of `rows` rows and `spans` spans that a strategy gives to one rank: its part of
// every span that is split, rounded up in two blocks, and any of those that are not. An upper bound for all
// of them.
int64_t MaxLocalRows(int64_t rows, int64_t spans, int cp_size);

}  // namespace perigee::parallel
