#include <memory>
#include <vector>

#include "harness/bench.h"
#include "kernels/benches.h"
#include "kernels/sampling/sampling.h"

namespace perigee::bench {

void AddSamplingBenches(const ShapeSet& set) {
  // Logits exist for one row a sequence, whatever the step.
  const int64_t rows = set.sequences, vocab = set.model.vocab;
  const Work all{.bytes = static_cast<double>(rows * vocab) * sizeof(float)};
  const Work one{.bytes = static_cast<double>(vocab) * sizeof(float)};
  AddBench("log_sum_exp", set, [=](const kernels::KernelContext& context) {
    auto logits = std::make_shared<BenchMatrix>(rows, vocab, -15.f, 15.f);
    auto lse = std::make_shared<std::vector<float>>(static_cast<size_t>(rows));
    return Prepared{all, [=] { kernels::LogSumExp(context, logits->view(), *lse); }};
  });
  AddBench("top_20", set, [=](const kernels::KernelContext&) {
    auto logits = std::make_shared<BenchMatrix>(1, vocab, -15.f, 15.f);
    return Prepared{one, [=] { kernels::TopK(logits->data(), 20); }};
  });
  for (const auto& [name, choice] : {std::pair{"sample_greedy", kernels::SamplingChoice{.temperature = 0}},
                                     std::pair{"sample_plain", kernels::SamplingChoice{}},
                                     std::pair{"sample_top_p", kernels::SamplingChoice{.top_p = 0.95f}}}) {
    AddBench(name, set, [=, choice = choice](const kernels::KernelContext&) {
      auto logits = std::make_shared<BenchMatrix>(1, vocab, -15.f, 15.f);
      auto token = std::make_shared<uint64_t>(0);
      return Prepared{one, [=] {
                        kernels::SampleToken(logits->data(), choice, kernels::UniformFromKey(1, 0, ++*token));
                      }};
    });
  }
}

}  // namespace perigee::bench
