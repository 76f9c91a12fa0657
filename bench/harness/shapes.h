#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace perigee::bench {

// The sizes of a model that kernels see.
struct ModelShape {
  int64_t hidden = 0;
  int64_t heads = 0;  // of KDA and of MLA
  int64_t kda_dim = 0;
  int64_t conv_width = 4;
  int64_t mla_nope = 0, mla_rope = 0, mla_value = 0, mla_rank = 0;
  int64_t dense_width = 0;
  int64_t experts = 0, experts_used = 0, expert_width = 0;
  int64_t vocab = 0;

  int64_t kda_width() const { return heads * kda_dim; }
};

// One named step: `sequences` sequences with `rows_each` new rows, each on top of `context` cached tokens.
struct ShapeSet {
  std::string name;
  ModelShape model;
  int64_t sequences = 1;
  int64_t rows_each = 1;
  int64_t context = 0;

  int64_t rows() const { return sequences * rows_each; }
  bool is_decode() const { return rows_each == 1; }
};

// tiny_*: the bundled model. 48b_layer_*: one layer of Kimi-Linear-48B with 16 of its 256 experts and a tenth
// of its vocabulary.
std::span<const ShapeSet> AllShapeSets();

}  // namespace perigee::bench
