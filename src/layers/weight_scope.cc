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
  progress_->Add(tensor.bytes.size());
}

kernels::PackedWeight WeightScope::Linear(const std::vector<std::string>& names) const {
  std::vector<kernels::StoredMatrix> pieces;
  for (const std::string& n : names) pieces.push_back(AsMatrix(Get(n + ".weight")));
  kernels::PackedWeight packed = kernels::PackedWeight::Pack(pieces);
  for (const std::string& n : names) Done(Get(n + ".weight"));
  return packed;
}

void WeightScope::Matrix(const std::string& name,
                         const std::function<void(const kernels::StoredMatrix&)>& use) const {
  const StoredTensor& tensor = Get(name);
  use(AsMatrix(tensor));
  Done(tensor);
}

std::vector<float> WeightScope::Floats(const std::string& name) const {
  const StoredTensor& tensor = Get(name);
  std::vector<float> out(static_cast<size_t>(tensor.NumElements()));
  const auto* halves = reinterpret_cast<const uint16_t*>(tensor.bytes.data());
  for (size_t i = 0; i < out.size(); ++i) {
    switch (tensor.dtype) {
      case DType::kF32:
        out[i] = reinterpret_cast<const float*>(tensor.bytes.data())[i];
        break;
      case DType::kF16:
        out[i] = HalfToFloat(halves[i]);
        break;
      case DType::kBF16:
        out[i] = BFloat16ToFloat(halves[i]);
        break;
    }
  }
  Done(tensor);
  return out;
}

const StoredTensor& WeightScope::Mapped(const std::string& name) const {
  const StoredTensor& tensor = Get(name);
  progress_->Add(tensor.bytes.size());
  return tensor;
}

}  // namespace perigee::layers
