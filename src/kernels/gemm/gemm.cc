#include "kernels/gemm/gemm.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "kernels/dispatch.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/gemm/gemm_cuda.h"

namespace perigee::kernels {
namespace {

float Widen(const StoredMatrix& m, int64_t index) {
  switch (m.dtype) {
    case DType::kF32:
      return static_cast<const float*>(m.data)[index];
    case DType::kF16:
      return HalfToFloat(static_cast<const uint16_t*>(m.data)[index]);
    case DType::kBF16:
      return BFloat16ToFloat(static_cast<const uint16_t*>(m.data)[index]);
  }
  return 0;
}

const void* Offset(const StoredMatrix& m, int64_t elements) {
  return static_cast<const std::byte*>(m.data) + elements * DTypeBytes(m.dtype);
}

}  // namespace

StoredMatrix StoredMatrix::Rows(int64_t begin, int64_t count) const {
  PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= rows);
  return {Offset(*this, begin * row_stride), dtype, count, cols, row_stride};
}

StoredMatrix StoredMatrix::Cols(int64_t begin, int64_t count) const {
  PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
  return {Offset(*this, begin), dtype, rows, count, row_stride};
}

PackedWeight::PackedWeight(int64_t out, int64_t in, bool is_bf16, MemoryLedger* ledger)
    : out_(out), in_(in), is_bf16_(is_bf16) {
  data_ = Buffer(PackedBytes(out, in, is_bf16), Device::kCpu, {ledger, MemoryKind::kWeights});
}

uint64_t PackedWeight::PackedBytes(int64_t out, int64_t in, bool is_bf16) {
  return static_cast<uint64_t>(AlignUp(out, kPanel) * in) * (is_bf16 ? 2 : 4);
}

void PackedWeight::Set(int64_t o, int64_t i, const StoredMatrix& from, int64_t r, int64_t c) {
  const int64_t to = ((o / kPanel) * in_ + i) * kPanel + o % kPanel;
  const int64_t index = r * from.row_stride + c;
  if (is_bf16_) {
    data_.As<uint16_t>()[to] = static_cast<const uint16_t*>(from.data)[index];
  } else {
    data_.As<float>()[to] = Widen(from, index);
  }
}

PackedWeight PackedWeight::Pack(std::span<const StoredMatrix> pieces, Device device, MemoryLedger* ledger) {
  PERIGEE_CHECK(!pieces.empty());
  int64_t out = 0;
  bool all_bf16 = true;
  for (const StoredMatrix& m : pieces) {
    PERIGEE_CHECK(m.cols == pieces[0].cols);
    out += m.rows;
    all_bf16 = all_bf16 && m.dtype == DType::kBF16;
  }
  if (device != Device::kCpu) return PackRows(pieces, out, device, ledger);
  PackedWeight w(out, pieces[0].cols, all_bf16, ledger);
  int64_t o = 0;
  for (const StoredMatrix& m : pieces) {
    for (int64_t r = 0; r < m.rows; ++r, ++o) {
      for (int64_t c = 0; c < m.cols; ++c) w.Set(o, c, m, r, c);
    }
  }
  return w;
}

PackedWeight PackedWeight::PackRows(std::span<const StoredMatrix> pieces, int64_t out, Device device,
                                    MemoryLedger* ledger) {
  PackedWeight w;
  w.out_ = out;
  w.in_ = pieces[0].cols;
  w.is_bf16_ = true;
  std::vector<uint16_t> rows(static_cast<size_t>(w.out_ * w.in_));
  uint16_t* to = rows.data();
  for (const StoredMatrix& m : pieces) {
    for (int64_t r = 0; r < m.rows; ++r, to += w.in_) {
      if (m.dtype == DType::kBF16) {
        std::memcpy(to, Offset(m, r * m.row_stride), static_cast<size_t>(w.in_) * sizeof(uint16_t));
        continue;
      }
      for (int64_t c = 0; c < w.in_; ++c) to[c] = FloatToBFloat16(Widen(m, r * m.row_stride + c));
    }
  }
  w.data_ = Buffer::Of(rows.data(), rows.size() * sizeof(uint16_t), device, {ledger, MemoryKind::kWeights});
  return w;
}

PackedWeight PackedWeight::Draw(std::span<const DrawnMatrix> pieces, Device device, MemoryLedger* ledger) {
  PERIGEE_CHECK(!pieces.empty());
  int64_t out = 0;
  for (const DrawnMatrix& m : pieces) {
    PERIGEE_CHECK(m.cols == pieces[0].cols);
    out += m.rows;
  }
  const int64_t in = pieces[0].cols;
  const auto bytes = static_cast<size_t>(out * in) * sizeof(BFloat16);
  Buffer rows(bytes, device,
              device == Device::kCpu ? MemoryAccount{} : MemoryAccount{ledger, MemoryKind::kWeights});
  auto* to = rows.As<BFloat16>();
  for (const DrawnMatrix& m : pieces) {
    kernels::Draw(m, to, device);
    to += m.rows * in;
  }
  if (device == Device::kCpu)
    return Pack(StoredMatrix{rows.data(), DType::kBF16, out, in, in}, device, ledger);
  PackedWeight w;
  w.out_ = out;
  w.in_ = in;
  w.is_bf16_ = true;
  w.data_ = std::move(rows);
  return w;
}

PackedWeight PackedWeight::PackTransposed(const StoredMatrix& matrix, MemoryLedger* ledger) {
  PackedWeight w(matrix.cols, matrix.rows, matrix.dtype == DType::kBF16, ledger);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t c = 0; c < matrix.cols; ++c) w.Set(c, r, matrix, r, c);
  }
  return w;
}

std::vector<int64_t> SumPartBounds(int64_t width) {
  std::vector<int64_t> bounds;
  for (int64_t p = 0; p <= kSumParts; ++p) bounds.push_back(PartBegin(p, width, kSumParts));
  return bounds;
}

void Gemm(const KernelContext& context, ConstMatrix x, const PackedWeight& weight, Matrix y) {
  PERIGEE_CHECK(x.cols == weight.in() && y.cols == weight.out() && x.rows == y.rows);
  if (x.rows == 0) return;
  PERIGEE_CHECK(weight.device() == context.device);
  PERIGEE_DISPATCH(context, cpu::Gemm(context, x.As<float>(), weight, y.As<float>()),
                   cuda::Gemm(context, x, weight, y));
}

void GemmInParts(const KernelContext& context, ConstMatrix x, const PackedWeight& weight,
                 std::span<const int64_t> bounds, Matrix y) {
  PERIGEE_CHECK(std::has_single_bit(bounds.size() - 1) && bounds.front() >= 0 &&
                bounds.back() <= weight.in());
  PERIGEE_CHECK(x.cols == bounds.back() - bounds.front() && y.cols == weight.out() && x.rows == y.rows);
  if (x.rows == 0) return;
  PERIGEE_CHECK(weight.device() == context.device);
  PERIGEE_DISPATCH(context, cpu::GemmInParts(context, x.As<float>(), weight, bounds, y.As<float>()),
                   cuda::GemmInParts(context, x, weight, bounds, y));
}

}  // namespace perigee::kernels
