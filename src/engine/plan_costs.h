#pragma once

#include <cstdint>
#include <vector>

#include "engine/parallel_options.h"
#include "model/kimi_linear/config.h"

namespace perigee::engine {

// Floating-point operations of one rank for a prompt of which only the last row is wanted; a multiply and an
// add are two.
struct RankFlops {
  double gemms = 0;      // products with weights, the expansion of latents among them; experts evenly chosen
  double kda = 0;        // KDA's chunk recurrence and convolution
  double attention = 0;  // MLA's scores and weighted values
  // Pairs of query row and visible key in an MLA layer; each counts once, whatever the rank's heads.
  double pairs = 0;

  double total() const { return gemms + kda + attention; }
};

// One entry a rank. The prompt runs alone, in chunks of `chunk` rows. options and plan belong together and
// the model can be cut that way. Pure.
std::vector<RankFlops> CountFlops(const model::KimiLinearConfig& config, const ParallelOptions& options,
                                  const ParallelPlan& plan, int64_t prompt, int64_t chunk);

// Largest over mean; 1 when all are zero.
double Balance(const std::vector<double>& values);

}  // namespace perigee::engine
