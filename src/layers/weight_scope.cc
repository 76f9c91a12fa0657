#include "layers/weight_scope.h"

namespace perigee::layers {

void WeightScope::Done(const std::string& name) const {
  source_->Release(name);
  progress_->Add(name, source_->Bytes(name));
}

kernels::PackedWeight WeightScope::Linear(const std::vector<Rows>& pieces) const {
  std::vector<MatrixPart> parts;
  for (const Rows& p : pieces) parts.push_back({prefix_ + p.name + ".weight", p.range, std::nullopt});
  kernels::PackedWeight packed = source_->Pack(parts, device_, ledger_);
  for (const MatrixPart& part : parts) Done(part.name);
  return packed;
}

kernels::PackedWeight WeightScope::LinearCols(const std::string& name, Range range) const {
  const MatrixPart part{prefix_ + name + ".weight", std::nullopt, range};
  kernels::PackedWeight packed = source_->Pack({&part, 1}, device_, ledger_);
  Done(part.name);
  return packed;
}

void WeightScope::Matrix(const std::string& name, Range rows,
                         const std::function<void(const kernels::StoredMatrix&)>& use) const {
  source_->Use({prefix_ + name, rows, std::nullopt}, use);
  Done(prefix_ + name);
}

std::vector<float> WeightScope::Floats(const std::string& name) const {
  return Floats(name, {0, source_->NumElements(prefix_ + name)});
}

std::vector<float> WeightScope::Floats(const std::string& name, Range range) const {
  std::vector<float> floats = source_->Floats(prefix_ + name, range);
  Done(prefix_ + name);
  return floats;
}

WeightTable WeightScope::Table(const std::string& name) const {
  WeightTable table = source_->Table(prefix_ + name, device_, ledger_);
  progress_->Add(prefix_ + name, source_->Bytes(prefix_ + name));
  return table;
}

}  // namespace perigee::layers
