#include <memory>
#include <string>
#include <vector>

#include "harness/bench.h"
#include "kernels/benches.h"
#include "kernels/gemm/gemm.h"

namespace perigee::bench {
namespace {

// One projection [in -> out] on every row, whole or summed in parts.
void AddProduct(const std::string& name, const ShapeSet& set, int64_t rows, int64_t in, int64_t out,
                bool in_parts) {
  AddBench(name, set, [=](const kernels::KernelContext& context) {
    auto x = std::make_shared<BenchMatrix>(rows, in);
    auto y = std::make_shared<BenchMatrix>(rows, out);
    auto weight = std::make_shared<kernels::PackedWeight>(PackedBenchWeight(out, in));
    const std::vector<int64_t> bounds = kernels::SumPartBounds(in);
    const Work work{.flops = 2.0 * static_cast<double>(rows * in * out),
                    .bytes = static_cast<double>(weight->Bytes()) +
                             sizeof(float) * static_cast<double>(rows * (in + out))};
    return Prepared{work, [=] {
                      if (in_parts) {
                        kernels::GemmInParts(context, x->view(), *weight, bounds, y->view());
                      } else {
                        kernels::Gemm(context, x->view(), *weight, y->view());
                      }
                    }};
  });
}

}  // namespace

void AddGemmBenches(const ShapeSet& set) {
  const ModelShape& m = set.model;
  AddProduct("gemm_qkv", set, set.rows(), m.hidden, 3 * m.kda_width(), false);
  AddProduct("gemm_dense_up", set, set.rows(), m.hidden, 2 * m.dense_width, false);
  AddProduct("gemm_router", set, set.rows(), m.hidden, m.experts, false);
  AddProduct("gemm_head", set, set.sequences, m.hidden, m.vocab, false);
  AddProduct("gemm_parts_o_proj", set, set.rows(), m.kda_width(), m.hidden, true);
}

}  // namespace perigee::bench
