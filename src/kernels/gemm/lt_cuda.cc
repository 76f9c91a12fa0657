#include "kernels/gemm/lt_cuda.h"

#include <cublasLt.h>

#include <array>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/strings.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/library_cuda.h"
#include "tensor/cuda_check.h"

namespace perigee::kernels::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

void Check(cublasStatus_t status) {
  PERIGEE_CHECK_MSG(status == CUBLAS_STATUS_SUCCESS, cublasLtGetStatusString(status));
}

// Everything that the choice of an algorithm depends on: sizes, strides, types, alignments.
using Key = std::array<int64_t, 15>;

int64_t AlignmentOf(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<int64_t>(address & -address & 0xff) == 0
             ? 256
             : static_cast<int64_t>(address & -address & 0xff);
}

Key KeyOf(const Product& p) {
  return {p.x.rows,
          p.x.cols,
          p.y.cols,
          p.x.stride,
          p.weight_stride,
          p.y.stride,
          p.transposed,
          static_cast<int64_t>(p.y.dtype),
          p.batches,
          p.x_step,
          p.weight_step,
          p.y_step,
          AlignmentOf(p.x.data),
          AlignmentOf(p.weight),
          AlignmentOf(p.y.data)};
}

struct Layout {
  cublasLtMatrixLayout_t handle = nullptr;

  // Column-major as cuBLAS counts: `cols` columns of `rows`, `stride` apart.
  Layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride, int64_t batches, int64_t step) {
    Check(cublasLtMatrixLayoutCreate(&handle, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols),
                                     stride));
    if (batches == 1) return;
    const auto count = static_cast<int32_t>(batches);
    Check(cublasLtMatrixLayoutSetAttribute(handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    Check(cublasLtMatrixLayoutSetAttribute(handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                           sizeof step));
  }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  ~Layout() { cublasLtMatrixLayoutDestroy(handle); }
};

}  // namespace

class Products::Impl {
 public:
  Impl() { Check(cublasLtCreate(&handle_)); }
  ~Impl() { cublasLtDestroy(handle_); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void Run(const KernelContext& context, const Product& p) {
    const cudaDataType_t out_type = p.y.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    // Row-major y = x w^T is column-major y^T = w x^T.
    const int64_t weight_rows = p.transposed ? p.y.cols : p.x.cols;
    const int64_t weight_cols = p.transposed ? p.x.cols : p.y.cols;
    const Layout a(CUDA_R_16BF, weight_rows, weight_cols, p.weight_stride, p.batches, p.weight_step);
    const Layout b(CUDA_R_16BF, p.x.cols, p.x.rows, p.x.stride, p.batches, p.x_step);
    const Layout c(out_type, p.y.cols, p.y.rows, p.y.stride, p.batches, p.y_step);
    cublasLtMatmulDesc_t description = nullptr;
    Check(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t op = p.transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
    Check(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op));
    const cublasLtMatmulAlgo_t algorithm = Choose(p, description, a, b, c);
    const Workspace::Scope scope(*context.workspace);
    const float one = 1, zero = 0;
    Check(cublasLtMatmul(handle_, description, &one, p.weight, a.handle, p.x.data, b.handle, &zero, p.y.data,
                         c.handle, p.y.data, c.handle, &algorithm, context.workspace->Bytes(kWorkspaceBytes),
                         kWorkspaceBytes, static_cast<cudaStream_t>(context.stream.handle)));
    cublasLtMatmulDescDestroy(description);
  }

 private:
  cublasLtMatmulAlgo_t Choose(const Product& p, cublasLtMatmulDesc_t description, const Layout& a,
                              const Layout& b, const Layout& c) {
    const Key key = KeyOf(p);
    if (const auto found = algorithms_.find(key); found != algorithms_.end()) return found->second;
    cublasLtMatmulPreference_t preference = nullptr;
    Check(cublasLtMatmulPreferenceCreate(&preference));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      Check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(AlignmentOf(p.weight)));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(AlignmentOf(p.x.data)));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(AlignmentOf(p.y.data)));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(AlignmentOf(p.y.data)));
    cublasLtMatmulHeuristicResult_t result;
    int count = 0;
    Check(cublasLtMatmulAlgoGetHeuristic(handle_, description, a.handle, b.handle, c.handle, c.handle,
                                         preference, 1, &result, &count));
    cublasLtMatmulPreferenceDestroy(preference);
    PERIGEE_CHECK_MSG(count > 0,
                      StrCat("cuBLASLt has no product for ", p.x.rows, " x ", p.x.cols, " -> ", p.y.cols));
    return algorithms_.emplace(key, result.algo).first->second;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

Products::Products() : impl_(std::make_unique<Impl>()) {}
Products::~Products() = default;

void Products::Run(const KernelContext& context, const Product& product) {
  impl_->Run(context, product);
}

void RunProduct(const KernelContext& context, const Product& product) {
  PERIGEE_CHECK(product.x.dtype == DType::kBF16);
  context.handles->products().Run(context, product);
}

void Gemm(const KernelContext& context, ConstMatrix x, const PackedWeight& weight, Matrix y) {
  RunProduct(context, {.x = x, .weight = weight.Rows(), .weight_stride = weight.in(), .y = y});
}

void GemmInParts(const KernelContext& context, ConstMatrix x, const PackedWeight& weight,
                 std::span<const int64_t> bounds, Matrix y) {
  RunProduct(context,
             {.x = x, .weight = weight.Rows() + bounds.front(), .weight_stride = weight.in(), .y = y});
}

}  // namespace perigee::kernels::cuda
