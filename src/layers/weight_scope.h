#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tensor/safetensors.h"

namespace perigee::layers {

// Counts the bytes of weights that have been read, for a progress display.
struct LoadProgress {
  uint64_t done = 0;
  uint64_t total = 0;
  std::function<void(uint64_t done, uint64_t total)> report;  // may be empty

  void Add(uint64_t bytes) {
    done += bytes;
    if (report) report(done, total);
  }
};

// A prefix view on the tensors of a checkpoint that has passed its check (names and shapes): a missing name
// here is a defect of ours. A tensor is read once; its mapped pages are released as soon as it has been
// repacked. One thread.
class WeightScope {
 public:
  WeightScope(const Checkpoint& checkpoint, LoadProgress& progress, std::string prefix = "")
      : checkpoint_(&checkpoint), progress_(&progress), prefix_(std::move(prefix)) {}

  // The scope "prefix.name.".
  WeightScope In(const std::string& name) const { return {*checkpoint_, *progress_, prefix_ + name + "."}; }
  bool Has(const std::string& name) const { return checkpoint_->Find(prefix_ + name) != nullptr; }

  // One linear layer, or the rows of several one after another: [sum of out, in].
  kernels::PackedWeight Linear(const std::vector<std::string>& names) const;
  // Repacks a matrix by a function of its own (a tensor that is needed in more than one form).
  void Matrix(const std::string& name, const std::function<void(const kernels::StoredMatrix&)>& use) const;
  // All elements as floats, in stored order.
  std::vector<float> Floats(const std::string& name) const;
  // A tensor that stays in the file and is read where it lies (the embedding).
  const StoredTensor& Mapped(const std::string& name) const;

 private:
  const StoredTensor& Get(const std::string& name) const;
  void Done(const StoredTensor& tensor) const;

  const Checkpoint* checkpoint_;
  LoadProgress* progress_;
  std::string prefix_;
};

// A stored tensor with its first dimension as rows and the others folded into columns.
kernels::StoredMatrix AsMatrix(const StoredTensor& tensor);

}  // namespace perigee::layers
