#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "layers/weight_source.h"
#include "parallel/shard.h"
#include "tensor/parameter.h"

namespace perigee::layers {

using parallel::Shard;

// Counts the bytes of weights that have been read, for a progress display.
struct LoadProgress {
  uint64_t total = 0;
  std::function<void(uint64_t done, uint64_t total)> report;  // may be empty
  uint64_t done = 0;
  std::set<std::string> seen;

  // A tensor, or the part of it that is wanted here, was read. Counted whole, once.
  void Add(const std::string& name, uint64_t bytes) {
    if (!seen.insert(name).second) return;
    done += bytes;
    if (report) report(done, total);
  }
};

// A prefix view on the tensors of a source. Only what is asked for is read; what was repacked is released.
// One thread.
class WeightScope {
 public:
  // Weights come out on `device`, counted in `ledger` (may be null) for as long as they are held.
  WeightScope(const WeightSource& source, LoadProgress& progress, Device device,
              MemoryLedger* ledger = nullptr, std::string prefix = "")
      : source_(&source),
        progress_(&progress),
        device_(device),
        ledger_(ledger),
        prefix_(std::move(prefix)) {}

  // The scope "prefix.name.".
  WeightScope In(const std::string& name) const {
    return {*source_, *progress_, device_, ledger_, prefix_ + name + "."};
  }
  Device device() const { return device_; }
  MemoryLedger* ledger() const { return ledger_; }

  // Some outputs of a linear layer.
  struct Rows {
    std::string name;            // without ".weight"
    std::optional<Range> range;  // absent: all
  };
  // The rows of one or several linear layers one after another: [sum of rows, in].
  kernels::PackedWeight Linear(const std::vector<Rows>& pieces) const;
  // Some inputs of a linear layer: [out, range].
  kernels::PackedWeight LinearCols(const std::string& name, Range range) const;
  // Repacks some rows of a matrix by a function of its own (a tensor that is needed in more than one form).
  void Matrix(const std::string& name, Range rows,
              const std::function<void(const kernels::StoredMatrix&)>& use) const;
  // All elements as floats, in stored order; or some of them.
  Parameter Parameters(const std::string& name) const { return Hold(Floats(name)); }
  Parameter Parameters(const std::string& name, Range range) const { return Hold(Floats(name, range)); }
  // Parameters that were put together from several tensors.
  Parameter Hold(const std::vector<float>& values) const {
    return {values, device_, {ledger_, MemoryKind::kWeights}};
  }
  // The same on the host.
  std::vector<float> Floats(const std::string& name) const;
  std::vector<float> Floats(const std::string& name, Range range) const;
  // A tensor that is looked up row by row (the embedding).
  WeightTable Table(const std::string& name) const;

 private:
  void Done(const std::string& name) const;

  const WeightSource* source_;
  LoadProgress* progress_;
  Device device_;
  MemoryLedger* ledger_;
  std::string prefix_;
};

}  // namespace perigee::layers
