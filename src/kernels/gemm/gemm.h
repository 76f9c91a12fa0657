#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "kernels/draw/draw.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"
#include "tensor/matrix.h"

namespace perigee::kernels {

// A matrix as it lies in a checkpoint (or a slice of one): row-major [rows = out, cols = in], not owned.
struct StoredMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;  // elements

  StoredMatrix Rows(int64_t begin, int64_t count) const;
  StoredMatrix Cols(int64_t begin, int64_t count) const;
};

// A weight [out, in] in the order that the device's kernels read it. On the CPU: panels of 16 outputs, each
// [in][16], so that outputs are vector lanes and every output element is one chain of multiply-adds over
// ascending input index; BF16 stays BF16, F16 and F32 and pieces of several types become F32. On CUDA:
// row-major in BF16, whatever was stored. Owns its storage; immutable, so ranks and threads may share it.
class PackedWeight {
 public:
  static constexpr int64_t kPanel = 16;

  PackedWeight() = default;
  // The pieces' rows one after another (fused projections). All have the same number of columns.
  // Counted in `ledger` (may be null) as weights.
  static PackedWeight Pack(std::span<const StoredMatrix> pieces, Device device = Device::kCpu,
                           MemoryLedger* ledger = nullptr);
  static PackedWeight Pack(const StoredMatrix& matrix, Device device = Device::kCpu,
                           MemoryLedger* ledger = nullptr) {
    return Pack({&matrix, 1}, device, ledger);
  }
  // The same of matrices that are drawn: on a device in their place, without the host.
  static PackedWeight Draw(std::span<const DrawnMatrix> pieces, Device device,
                           MemoryLedger* ledger = nullptr);
  // The transpose of a matrix: [out = matrix.cols, in = matrix.rows]. CPU only.
  static PackedWeight PackTransposed(const StoredMatrix& matrix, MemoryLedger* ledger = nullptr);
  // Bytes of a weight packed on the CPU.
  static uint64_t PackedBytes(int64_t out, int64_t in, bool is_bf16);

  int64_t out() const { return out_; }
  int64_t in() const { return in_; }
  bool is_bf16() const { return is_bf16_; }
  int64_t panels() const { return (out_ + kPanel - 1) / kPanel; }
  const uint16_t* Bf16Panel(int64_t panel) const { return data_.As<uint16_t>() + panel * in_ * kPanel; }
  const float* F32Panel(int64_t panel) const { return data_.As<float>() + panel * in_ * kPanel; }
  // Row-major [out, in], of a device other than the CPU.
  const BFloat16* Rows() const { return data_.As<BFloat16>(); }
  Device device() const { return data_.device(); }
  uint64_t Bytes() const { return data_.bytes(); }

 private:
  static PackedWeight PackRows(std::span<const StoredMatrix> pieces, int64_t out, Device device,
                               MemoryLedger* ledger);
  PackedWeight(int64_t out, int64_t in, bool is_bf16, MemoryLedger* ledger);
  void Set(int64_t o, int64_t i, const StoredMatrix& from, int64_t r, int64_t c);

  int64_t out_ = 0;
  int64_t in_ = 0;
  bool is_bf16_ = false;
  Buffer data_;  // CPU: [panels][in][16], missing outputs of the last panel are zero
};

// y[r, o] = sum_i x[r, i] * weight[o, i]. x [rows, in], y [rows, out]. On the CPU in ascending i: the bits of
// an element depend on its row of x and row of weight only.
void Gemm(const KernelContext& context, ConstMatrix x, const PackedWeight& weight, Matrix y);

// Room on the CPU of the products of up to `rows` rows with a weight [out, in]; parts: 0 for Gemm.
void TallyGemm(WorkspaceTally& tally, int64_t rows, int64_t out, int64_t in, int64_t parts = 0);

// Number of parts in which a row-parallel product (o_proj, down_proj) is summed, whatever the rank count
// (context parallelism: the parts are spread over ranks and must add up to the same bits).
inline constexpr int64_t kSumParts = 8;

// Bounds [0, ..., width] of the 8 parts of an inner size: bound p = floor(p * width / 8).
std::vector<int64_t> SumPartBounds(int64_t width);

// The same product summed in parts: part p is the chain over inputs [bounds[p], bounds[p + 1]), and the parts
// are added in a binary tree of neighbours: ((p0 + p1) + (p2 + p3)) + ... bounds has a power of two of parts.
// They may cover some of the weight's inputs only, [bounds.front(), bounds.back()): x then holds just those
// columns. On CUDA only the columns count: the order of a sum there is the library's.
void GemmInParts(const KernelContext& context, ConstMatrix x, const PackedWeight& weight,
                 std::span<const int64_t> bounds, Matrix y);

}  // namespace perigee::kernels
