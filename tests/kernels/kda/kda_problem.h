#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/kda/kda.h"
#include "ref/kda_ref.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"

namespace perigee::test {

using KdaKernel = void (*)(const kernels::KernelContext&, const kernels::KdaArgs&);

// One sequence's inputs and its state, [tokens, ...] each.
struct KdaSequence {
  int64_t tokens = 0;
  std::vector<float> q, k, v, g, beta, state;
};

// How inputs are drawn. Keys that share a direction make the chunk's triangular system far from the
// identity.
struct KdaInputs {
  GateKind gates = GateKind::kModel;
  double key_scale = 1;
  double shared_direction = 0;
};

inline KdaSequence RandomKdaSequence(Random& random, const ref::KdaShape& shape, int64_t tokens,
                                     const KdaInputs& inputs) {
  const int64_t keys = shape.heads * shape.key_dim, values = shape.heads * shape.value_dim;
  KdaSequence s{.tokens = tokens};
  s.q = random.Normals(tokens * keys, inputs.key_scale);
  s.k = random.Normals(tokens * keys, inputs.key_scale);
  const std::vector<float> direction = random.Normals(keys, inputs.key_scale * inputs.shared_direction);
  for (size_t i = 0; i < s.k.size(); ++i) s.k[i] += direction[i % direction.size()];
  s.v = random.Normals(tokens * values);
  s.g = RandomGates(random, tokens * keys, inputs.gates);
  s.beta = random.Uniforms(tokens * shape.heads, 0.01, 0.99);
  s.state = random.Normals(keys * shape.value_dim, 0.5);
  return s;
}

struct KdaResult {
  std::vector<float> out;
  std::vector<float> state;
};

// Rows [begin, begin + count) of a sequence as a sequence with the given state.
inline KdaSequence KdaPiece(const ref::KdaShape& shape, const KdaSequence& s, int64_t begin, int64_t count,
                            const std::vector<float>& state) {
  const auto rows = [&](const std::vector<float>& x, int64_t width) {
    return std::vector<float>(x.begin() + begin * width, x.begin() + (begin + count) * width);
  };
  const int64_t keys = shape.heads * shape.key_dim;
  return {.tokens = count,
          .q = rows(s.q, keys),
          .k = rows(s.k, keys),
          .v = rows(s.v, shape.heads * shape.value_dim),
          .g = rows(s.g, keys),
          .beta = rows(s.beta, shape.heads),
          .state = state};
}

// Runs the sequences as one packed batch with a row between them that belongs to none, and checks that such
// rows of the output, the gaps between rows and the room between states stay as they were. Segments are
// handed over in the order `order` (all in turn when empty).
inline std::vector<KdaResult> RunKda(KdaKernel kernel, const ref::KdaShape& shape,
                                     const std::vector<KdaSequence>& sequences, int threads = 2,
                                     std::vector<size_t> order = {}) {
  const int64_t keys = shape.heads * shape.key_dim, values = shape.heads * shape.value_dim;
  const int64_t state_size = keys * shape.value_dim;
  const float kUnwritten = 777;
  std::vector<float> q, k, v, g, beta, states(7, kUnwritten);
  std::vector<Segment> segments;
  int64_t rows = 0;
  const auto append = [](std::vector<float>& to, const std::vector<float>& from, int64_t blank) {
    to.insert(to.end(), from.begin(), from.end());
    to.insert(to.end(), static_cast<size_t>(blank), std::numeric_limits<float>::quiet_NaN());
  };
  for (const KdaSequence& s : sequences) {
    append(q, s.q, keys);
    append(k, s.k, keys);
    append(v, s.v, values);
    append(g, s.g, keys);
    append(beta, s.beta, shape.heads);
    segments.push_back({.q_begin = rows, .q_len = s.tokens, .slot = static_cast<int32_t>(segments.size())});
    rows += s.tokens + 1;
    states.insert(states.end(), s.state.begin(), s.state.end());
    states.insert(states.end(), 7, kUnwritten);
  }
  const StateView view{.recurrent = &states[7], .recurrent_stride = state_size + 7};
  std::vector<Segment> handed;
  for (size_t i = 0; i < segments.size(); ++i) handed.push_back(segments[order.empty() ? i : order[i]]);

  const PaddedMatrix qm(rows, keys, q), km(rows, keys, k), vm(rows, values, v), gm(rows, keys, g);
  const PaddedMatrix bm(rows, shape.heads, beta);
  PaddedMatrix out(rows, values, std::vector<float>(static_cast<size_t>(rows * values), kUnwritten));
  KernelRunner runner(threads);
  kernel(runner.context(), {.num_heads = shape.heads,
                            .key_dim = shape.key_dim,
                            .value_dim = shape.value_dim,
                            .q = qm.view(),
                            .k = km.view(),
                            .v = vm.view(),
                            .g = gm.view(),
                            .beta = bm.view(),
                            .segments = handed,
                            .states = view,
                            .out = out.view()});
  EXPECT_TRUE(out.GapsUntouched());
  std::vector<KdaResult> results;
  for (size_t i = 0; i < segments.size(); ++i) {
    const float* state = view.Recurrent(segments[i].slot);
    KdaResult r{.out = {}, .state = {state, state + state_size}};
    for (int64_t t = 0; t < segments[i].q_len; ++t) {
      const std::vector<float> row = out.row(segments[i].q_begin + t);
      r.out.insert(r.out.end(), row.begin(), row.end());
    }
    EXPECT_EQ(out.row(segments[i].q_begin + segments[i].q_len),
              std::vector<float>(static_cast<size_t>(values), kUnwritten))
        << "a row of no segment was written";
    for (int64_t j = 0; j < 7; ++j) EXPECT_EQ(state[j - 7], kUnwritten) << "written before a state";
    for (int64_t j = 0; j < 7; ++j) EXPECT_EQ(state[state_size + j], kUnwritten) << "written past a state";
    results.push_back(std::move(r));
  }
  return results;
}

struct KdaExpected {
  std::vector<double> out;
  std::vector<double> state;
};

inline KdaExpected KdaReference(const ref::KdaShape& shape, const KdaSequence& s) {
  KdaExpected e{.out = {}, .state = ToDouble(s.state)};
  e.out =
      ref::Kda(shape, ToDouble(s.q), ToDouble(s.k), ToDouble(s.v), ToDouble(s.g), ToDouble(s.beta), e.state);
  return e;
}

}  // namespace perigee::test
