#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "kernels/gemm/gemm.h"
#include "tensor/matrix.h"

namespace perigee::kernels {

struct RouterOptions {
  int64_t top_k = 0;
  bool renormalize = true;
  float scaling_factor = 1;
};

// The chosen experts of every row, in ascending expert index. A view of the workspace (on the context's
// device).
struct Routing {
  int64_t top_k = 0;
  std::span<int32_t> experts;  // [rows, top_k]
  std::span<float> weights;    // [rows, top_k]
};

// kimi-linear specification 3.6: s = sigmoid(logits); the top_k largest s + bias are chosen (ties to the
// lower index); weights are the chosen s without the bias, divided by (their sum + 1e-20) if renormalize,
// times scaling_factor. The sum runs over ascending expert index. logits [rows, experts], bias [experts].
// Rows past the context's valid_rows choose no expert (index -1, weight 0).
Routing RouteTopK(const KernelContext& context, ConstMatrix logits, std::span<const float> bias,
                  const RouterOptions& options);

// A gated MLP: down(silu(gate(x)) * up(x)).
struct MlpWeights {
  PackedWeight gate_up;         // [2 * width, hidden]: gate rows, then up rows
  PackedWeight down;            // [hidden, width]
  std::vector<int64_t> bounds;  // parts in which the down product is summed, over this width
  int64_t first_part = 0;       // which part of a mixture's sum the first of them adds to
};

// y = MLP(x), the down product in parts. x, y [rows, hidden].
void GatedMlp(const KernelContext& context, const MlpWeights& weights, ConstMatrix x, Matrix y);

// A device's kernels find the experts by it (ListExperts); empty on the CPU.
struct ExpertTable {
  bool shared = false;  // the shared expert is listed after the others, which have its width
  Buffer addresses;     // [2][listed]: each one's gate_up, then each one's down
  Buffer maps;  // what the copy engine reads them by; none where the tensor cores' form cannot be used
};

// Experts [first_expert, first_expert + experts.size()) of the router's and the shared one. Entries of the
// routing that name other experts are left out (another rank adds them).
struct MoeWeights {
  int64_t first_expert = 0;
  std::vector<MlpWeights> experts;  // all of the same width
  MlpWeights shared;                // width 0: none
  int64_t parts = kSumParts;        // parts of the sum, a power of two
  ExpertTable table;
};

// Fills the table where the experts lie on a device. Once, when all of them and the shared one are there.
void ListExperts(MoeWeights& weights);

// y = sum over the chosen experts of weight * MLP_e(x), + MLP_shared(x). Summed in parts: inside part p the
// chosen experts in ascending index (their weight applied to the activation), then the shared expert; parts
// in a binary tree.
void MoeForward(const KernelContext& context, const MoeWeights& weights, const Routing& routing,
                ConstMatrix x, Matrix y);

// Room of a gated MLP [hidden -> width -> hidden] whose down product has `parts` parts, for up to `rows`
// rows.
void TallyGatedMlp(WorkspaceTally& tally, int64_t rows, int64_t hidden, int64_t width, int64_t parts);

// What decides the room of a mixture.
struct MoeSizes {
  int64_t hidden = 0;
  int64_t experts = 0;  // held by this rank
  int64_t top_k = 0;
  int64_t width = 0;         // of one expert here
  int64_t shared_width = 0;  // of the shared one here; 0: none
  int64_t parts = kSumParts;
};
void TallyMoe(WorkspaceTally& tally, const MoeSizes& sizes, int64_t rows);

}  // namespace perigee::kernels
