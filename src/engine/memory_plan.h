#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/device.h"

// What a model takes on its ranks, decided before any weight is read and kept to from then on. Plain data.
namespace perigee::engine {

// Bytes of one rank.
struct RankMemory {
  uint64_t weights = 0;    // as the layers hold them
  uint64_t latents = 0;    // the paged pool of MLA latents
  uint64_t states = 0;     // KDA states of running requests
  uint64_t snapshots = 0;  // KDA states that the prefix cache keeps
  uint64_t workspace = 0;  // scratch of the largest step

  uint64_t Total() const { return weights + latents + states + snapshots + workspace; }
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

struct MemoryPlan {
  std::vector<RankMemory> ranks;
  uint64_t embedding_bytes = 0;  // mapped from the file, once a process; on a device it counts as weights
  int processes = 1;

  int64_t tokens = 0;          // that the latent pool holds, on every rank
  int64_t sequences = 0;       // that run at one time
  int64_t snapshots = 0;       // 0: no prefix cache
  int64_t context_length = 0;  // of the model, or --context-length
  // Of one rank each; the ranks' shares may differ where heads do not divide evenly.
  std::vector<uint64_t> bytes_per_token;
  std::vector<uint64_t> bytes_per_sequence;

  Device device = Device::kCpu;  // whose memory it is
  uint64_t memory_bytes = 0;     // of the machine, or what the process's group may have when that is less
  uint64_t available_bytes = 0;  // of these, free when the plan was made
  double fraction = 0;           // --mem-fraction-static
  uint64_t budget_bytes = 0;     // what the plan may take: of memory_bytes that part, at most what is free

  // Tokens of prompt and answer together.
  int64_t LongestRequest() const { return std::min(context_length, tokens); }
  // All ranks and the embedding.
  uint64_t Total() const {
    uint64_t sum = embedding_bytes * static_cast<uint64_t>(processes);
    for (const RankMemory& r : ranks) sum += r.Total();
    return sum;
  }
  bool Fits() const { return Total() <= budget_bytes; }
  friend bool operator==(const MemoryPlan&, const MemoryPlan&) = default;
};

// For a person: a line a rank and what fits, each ending in a line break.
std::string MemoryText(const MemoryPlan& plan);

}  // namespace perigee::engine
