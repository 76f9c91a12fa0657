#pragma once

#include <cstdint>
#include <vector>

namespace perigee::ref {

struct MlaShape {
  int64_t heads = 0;
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value = 0;
  int64_t rank = 0;
};

// Multi-head latent attention of one sequence without positions, in double, keys and values of every head
// written out. q [queries, heads * (nope + rope)], latent [keys, rank] (normalised), shared_key [keys, rope],
// kv_b [heads * (nope + value), rank]. Query i sees keys [0, keys - queries + i]. Returns [queries, heads *
// value].
std::vector<double> Mla(const MlaShape& shape, const std::vector<double>& q,
                        const std::vector<double>& latent, const std::vector<double>& shared_key,
                        const std::vector<double>& kv_b);

}  // namespace perigee::ref
