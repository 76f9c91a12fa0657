#include "layers/weight_source.h"

#include "base/check.h"
#include "base/strings.h"

namespace perigee::layers {
namespace {

int64_t Product(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t d : shape) product *= d;
  return product;
}

}  // namespace

const StoredTensor& CheckpointWeights::Get(const std::string& name) const {
  const StoredTensor* tensor = checkpoint_.Find(name);
  PERIGEE_CHECK_MSG(tensor != nullptr, StrCat("the checkpoint was checked without ", name));
  return *tensor;
}

// The first dimension as rows, the others folded into columns.
kernels::StoredMatrix CheckpointWeights::Cut(const MatrixPart& part) const {
  const StoredTensor& tensor = Get(part.name);
  PERIGEE_CHECK(!tensor.shape.empty() && tensor.shape[0] > 0);
  const int64_t cols = tensor.NumElements() / tensor.shape[0];
  kernels::StoredMatrix m{tensor.bytes.data(), tensor.dtype, tensor.shape[0], cols, cols};
  if (part.rows) m = m.Rows(part.rows->begin, part.rows->size());
  if (part.cols) m = m.Cols(part.cols->begin, part.cols->size());
  return m;
}

kernels::PackedWeight CheckpointWeights::Pack(std::span<const MatrixPart> parts, Device device,
                                              MemoryLedger* ledger) const {
  std::vector<kernels::StoredMatrix> matrices;
  for (const MatrixPart& part : parts) matrices.push_back(Cut(part));
  return kernels::PackedWeight::Pack(matrices, device, ledger);
}

void CheckpointWeights::Use(const MatrixPart& part,
                            const std::function<void(const kernels::StoredMatrix&)>& use) const {
  use(Cut(part));
}

std::vector<float> CheckpointWeights::Floats(const std::string& name, Range range) const {
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
  return out;
}

WeightTable CheckpointWeights::Table(const std::string& name, Device device, MemoryLedger* ledger) const {
  const StoredTensor& t = Get(name);
  WeightTable table{{t.bytes.data(), t.dtype, t.shape[0], t.shape[1]}, nullptr};
  if (device == Device::kCpu) return table;
  table.owner = std::make_shared<const Buffer>(
      Buffer::Of(t.bytes.data(), t.bytes.size(), device, {ledger, MemoryKind::kWeights}));
  table.view.data = table.owner->data();
  return table;
}

int64_t DrawnTensor::NumElements() const {
  return Product(shape);
}

const DrawnTensor& DrawnWeights::Get(const std::string& name) const {
  const auto found = tensors_.find(name);
  PERIGEE_CHECK_MSG(found != tensors_.end(), name);
  return found->second;
}

uint64_t DrawnWeights::Bytes(const std::string& name) const {
  const DrawnTensor& tensor = Get(name);
  return static_cast<uint64_t>(tensor.NumElements() * DTypeBytes(tensor.dtype));
}

uint64_t DrawnWeights::TotalBytes() const {
  uint64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += Bytes(name);
  return total;
}

kernels::DrawnMatrix DrawnWeights::Cut(const MatrixPart& part) const {
  const DrawnTensor& t = Get(part.name);
  const int64_t cols = t.NumElements() / t.shape[0];
  kernels::DrawnMatrix m{
      .seed = t.seed, .low = t.low, .high = t.high, .whole_cols = cols, .rows = t.shape[0], .cols = cols};
  if (part.rows) m = m.Rows(part.rows->begin, part.rows->size());
  if (part.cols) m = m.Cols(part.cols->begin, part.cols->size());
  return m;
}

kernels::PackedWeight DrawnWeights::Pack(std::span<const MatrixPart> parts, Device device,
                                         MemoryLedger* ledger) const {
  std::vector<kernels::DrawnMatrix> matrices;
  for (const MatrixPart& part : parts) matrices.push_back(Cut(part));
  return kernels::PackedWeight::Draw(matrices, device, ledger);
}

void DrawnWeights::Use(const MatrixPart& part,
                       const std::function<void(const kernels::StoredMatrix&)>& use) const {
  const kernels::DrawnMatrix m = Cut(part);
  std::vector<BFloat16> rows(static_cast<size_t>(m.rows * m.cols));
  kernels::Draw(m, rows.data(), Device::kCpu);
  use({rows.data(), DType::kBF16, m.rows, m.cols, m.cols});
}

std::vector<float> DrawnWeights::Floats(const std::string& name, Range range) const {
  const DrawnTensor& t = Get(name);
  PERIGEE_CHECK(range.begin >= 0 && range.end <= t.NumElements());
  std::vector<float> out;
  out.reserve(static_cast<size_t>(range.size()));
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float x = kernels::DrawnElement(t.seed, i, t.low, t.high);
    out.push_back(t.dtype == DType::kF32 ? x : BFloat16ToFloat(FloatToBFloat16(x)));
  }
  return out;
}

WeightTable DrawnWeights::Table(const std::string& name, Device device, MemoryLedger* ledger) const {
  const kernels::DrawnMatrix m = Cut({name, std::nullopt, std::nullopt});
  const auto draw = [&] {
    const auto bytes = static_cast<size_t>(m.rows * m.cols) * sizeof(BFloat16);
    auto buffer = std::make_shared<Buffer>(
        bytes, device,
        device == Device::kCpu ? MemoryAccount{} : MemoryAccount{ledger, MemoryKind::kWeights});
    kernels::Draw(m, buffer->As<BFloat16>(), device);
    return buffer;
  };
  std::shared_ptr<const Buffer> owner;
  if (device == Device::kCpu) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Buffer>& shared = host_tables_[name];
    if (shared == nullptr) shared = draw();
    owner = shared;
  } else {
    owner = draw();
  }
  return {{owner->data(), DType::kBF16, m.rows, m.cols}, owner};
}

}  // namespace perigee::layers
