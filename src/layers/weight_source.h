#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/rows/rows.h"
#include "parallel/shard.h"
#include "tensor/buffer.h"
#include "tensor/safetensors.h"

namespace perigee::layers {

using parallel::Range;

// Rows (outputs) and columns (inputs) of a tensor that is a matrix; absent: all.
struct MatrixPart {
  std::string name;
  std::optional<Range> rows;
  std::optional<Range> cols;
};

// A table on the device that was asked for; the owner is empty where it lies in a mapped file.
struct WeightTable {
  kernels::StoredTable view;
  std::shared_ptr<const Buffer> owner;
};

// Where the tensors of a model come from. Names and shapes have been checked: a missing name is a defect of
// ours. Immutable; the ranks of a process use one at the same time.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual uint64_t TotalBytes() const = 0;
  virtual uint64_t Bytes(const std::string& name) const = 0;
  virtual DType Type(const std::string& name) const = 0;
  virtual int64_t NumElements(const std::string& name) const = 0;

  // The rows of the parts one after another.
  virtual kernels::PackedWeight Pack(std::span<const MatrixPart> parts, Device device,
                                     MemoryLedger* ledger) const = 0;
  // A part on the host, for as long as `use` runs.
  virtual void Use(const MatrixPart& part,
                   const std::function<void(const kernels::StoredMatrix&)>& use) const = 0;
  // Elements in stored order.
  virtual std::vector<float> Floats(const std::string& name, Range range) const = 0;
  // On the CPU the ranks of a process share it, and none counts it; elsewhere it is counted in the ledger.
  virtual WeightTable Table(const std::string& name, Device device, MemoryLedger* ledger) const = 0;
  // What was asked for of this tensor will not be asked for again.
  virtual void Release(const std::string& name) const = 0;
};

// The tensors of a checkpoint that has passed its check. Mapped pages are given back on Release.
class CheckpointWeights final : public WeightSource {
 public:
  explicit CheckpointWeights(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  uint64_t TotalBytes() const override { return checkpoint_.TotalBytes(); }
  uint64_t Bytes(const std::string& name) const override { return Get(name).bytes.size(); }
  DType Type(const std::string& name) const override { return Get(name).dtype; }
  int64_t NumElements(const std::string& name) const override { return Get(name).NumElements(); }
  kernels::PackedWeight Pack(std::span<const MatrixPart> parts, Device device,
                             MemoryLedger* ledger) const override;
  void Use(const MatrixPart& part,
           const std::function<void(const kernels::StoredMatrix&)>& use) const override;
  std::vector<float> Floats(const std::string& name, Range range) const override;
  WeightTable Table(const std::string& name, Device device, MemoryLedger* ledger) const override;
  void Release(const std::string& name) const override { checkpoint_.Release(Get(name)); }

 private:
  const StoredTensor& Get(const std::string& name) const;
  kernels::StoredMatrix Cut(const MatrixPart& part) const;

  Checkpoint checkpoint_;
};

// A tensor without a file: uniform in [low, high), by its own seed.
struct DrawnTensor {
  std::vector<int64_t> shape;
  DType dtype = DType::kBF16;  // F32 elements are not rounded to BF16
  uint64_t seed = 0;
  float low = 0;
  float high = 0;

  int64_t NumElements() const;
};

// Random weights. Matrices are drawn where they are wanted: on a device without the host.
class DrawnWeights final : public WeightSource {
 public:
  explicit DrawnWeights(std::map<std::string, DrawnTensor> tensors) : tensors_(std::move(tensors)) {}

  uint64_t TotalBytes() const override;
  uint64_t Bytes(const std::string& name) const override;
  DType Type(const std::string& name) const override { return Get(name).dtype; }
  int64_t NumElements(const std::string& name) const override { return Get(name).NumElements(); }
  kernels::PackedWeight Pack(std::span<const MatrixPart> parts, Device device,
                             MemoryLedger* ledger) const override;
  void Use(const MatrixPart& part,
           const std::function<void(const kernels::StoredMatrix&)>& use) const override;
  std::vector<float> Floats(const std::string& name, Range range) const override;
  WeightTable Table(const std::string& name, Device device, MemoryLedger* ledger) const override;
  void Release(const std::string&) const override {}

 private:
  const DrawnTensor& Get(const std::string& name) const;
  kernels::DrawnMatrix Cut(const MatrixPart& part) const;

  std::map<std::string, DrawnTensor> tensors_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::map<std::string, std::shared_ptr<const Buffer>> host_tables_;
};

}  // namespace perigee::layers
