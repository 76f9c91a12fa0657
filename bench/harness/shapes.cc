#include "harness/shapes.h"

#include <array>

namespace perigee::bench {
namespace {

constexpr ModelShape kTiny{.hidden = 192,
                           .heads = 4,
                           .kda_dim = 128,
                           .mla_nope = 128,
                           .mla_rope = 64,
                           .mla_value = 128,
                           .mla_rank = 512,
                           .dense_width = 512,
                           .experts = 16,
                           .experts_used = 4,
                           .expert_width = 64,
                           .vocab = 2048};

constexpr ModelShape kLarge{.hidden = 2304,
                            .heads = 32,
                            .kda_dim = 128,
                            .mla_nope = 128,
                            .mla_rope = 64,
                            .mla_value = 128,
                            .mla_rank = 512,
                            .dense_width = 9216,
                            .experts = 16,
                            .experts_used = 8,
                            .expert_width = 1024,
                            .vocab = 16384};

}  // namespace

std::span<const ShapeSet> AllShapeSets() {
  static const std::array<ShapeSet, 4> sets = {
      {{.name = "tiny_prefill", .model = kTiny, .sequences = 1, .rows_each = 256},
       {.name = "tiny_decode", .model = kTiny, .sequences = 8, .rows_each = 1, .context = 300},
       {.name = "48b_layer_prefill_512", .model = kLarge, .sequences = 1, .rows_each = 512},
       {.name = "48b_layer_decode_b1", .model = kLarge, .sequences = 1, .rows_each = 1, .context = 4096}}};
  return sets;
}

}  // namespace perigee::bench
