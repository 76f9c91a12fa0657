#include "layers/weight_scope.h"

#include "base/check.h"
#include "base/strings.h"

namespace perigee::layers {

kernels::StoredMatrix AsMatrix(const StoredTensor& tensor) {
  PERIGEE_CHECK(!tensor.shape.empty() && tensor.shape[0] > 0);
  const int64_t cols = tensor.NumElements() / tensor.shape[0];
  return {tensor.bytes.data(), tensor.dtype, tensor.shape[0], cols, cols};
}

const StoredTensor& WeightScope::Get(const std::string& name) const {
  const StoredTensor* tensor = checkpoint_->Find(prefix_ + name);
  PERIGEE_CHECK_MSG(tensor != nullptr, StrCat("the checkpoint was checked without ", prefix_, name));
  return *tensor;
}

void WeightScope::Done(const StoredTensor& tensor) const {
  checkpoint_->Release(tensor);
  progress_->Add(tensor);
}

kernels::PackedWeight WeightScope::Linear(const std::vector<Rows>& pieces) const {
  std::vector<kernels::StoredMatrix> matrices;
  for (const Rows& p : pieces) {
    const kernels::StoredMatrix whole = AsMatrix(Get(p.name + ".weight"));
    matrices.push_back(p.range ? whole.Rows(p.range->begin, p.range->size()) : whole);
  }
  kernels::PackedWeight packed = kernels::PackedWeight::Pack(matrices, device_, ledger_);
  for (const Rows& p : pieces) Done(Get(p.name + ".weight"));
  return packed;
}

kernels::PackedWeight WeightScope::LinearCols(const std::string& name, Range range) const {
  const StoredTensor& tensor = Get(name + ".weight");
  const kernels::StoredMatrix part = AsMatrix(tensor).Cols(range.begin, range.size());
  kernels::PackedWeight packed = kernels::PackedWeight::Pack(part, device_, ledger_);
  Done(tensor);
  return packed;
}

void WeightScope::Matrix(const std::string& name, Range rows,
                         const std::function<void(const kernels::StoredMatrix&)>& use) const {
  const StoredTensor& tensor = Get(name);
  const kernels::StoredMatrix part = AsMatrix(tensor).Rows(rows.begin, rows.size());
  use(part);
  Done(tensor);
}

std::vector<float> WeightScope::Floats(const std::string& name) const {
  return Floats(name, {0, Get(name).NumElements()});
}

std::vector<float> WeightScope::Floats(const std::string& name, Range range) const {
  const StoredTensor& tensor = Get(name);
  PERIGEE_CHECK(range.begin >= 0 && range.end <= tensor.NumElements());
  std::vector<float> out(static_cast<size_t>(range.size()));
  const auto first = static_cast<size_t>(range.begin);
  const auto* halves = reinterpret_cast<const uint16_t*>(tensor.bytes.data());
  for (size_t i = 0; i < out.size(); ++i) {
    switch (tensor.dtype) {
      case DType::kF32:
        out[i] = reinterpret_cast<const float*>(tensor.bytes.data())[first + i];
        break;
      case DType::kF16:
        out[i] = HalfToFloat(halves[first + i]);
        break;
      case DType::kBF16:
        out[i] = BFloat16ToFloat(halves[first + i]);
        break;
    }
  }
  Done(tensor);
  return out;
}

const StoredTensor& WeightScope::Mapped(const std::string& name) const {
  const StoredTensor& tensor = Get(name);
  progress_->Add(tensor);
  return tensor;
}

}  // namespace perigee::layers
