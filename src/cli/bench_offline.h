#pragma once

#include "base/status.h"
#include "cli/bench_report.h"
#include "cli/flags.h"
#include "engine/engine.h"

namespace perigee::cli {

// Measures a model in this process, without HTTP: prompts of random ids one at a time, then answers of
// several requests together. Prints the table, and writes JSON if that was asked for.
Status RunBenchOffline(BenchOfflineFlags flags);

// One length: a warm-up, then `repeats` prompts of fresh random ids with one new token each.
StatusOr<PrefillResult> MeasurePrefill(engine::Engine& engine, int64_t tokens, int64_t repeats);

// `batch` requests with prompts of `depth` random ids (at least 1), computed before; then `steps` steps after
// the first two in which every request has a row.
StatusOr<DecodeResult> MeasureDecode(engine::Engine& engine, int64_t batch, int64_t depth, int64_t steps);

}  // namespace perigee::cli
