#include "kernels/norm/norm.h"

#include "base/check.h"
#include "kernels/dispatch.h"
#include "kernels/norm/norm_cpu.h"
#include "kernels/norm/norm_cuda.h"

namespace perigee::kernels {
namespace {

bool SameShape(const ConstMatrix& a, const ConstMatrix& b) {
  return a.rows == b.rows && a.cols == b.cols;
}

}  // namespace

void RmsNorm(const KernelContext& context, ConstMatrix x, std::span<const float> weight, float eps,
             Matrix y) {
  PERIGEE_CHECK(SameShape(x, y) && static_cast<int64_t>(weight.size()) == x.cols);
  PERIGEE_DISPATCH(context, cpu::RmsNorm(context, x.As<float>(), weight, eps, y.As<float>()),
                   cuda::RmsNorm(context, x, weight, eps, y));
}

void AddRmsNorm(const KernelContext& context, ConstMatrix branch, Matrix residual,
                std::span<const float> weight, float eps, Matrix y) {
  PERIGEE_CHECK(SameShape(branch, residual) && SameShape(residual, y) &&
                static_cast<int64_t>(weight.size()) == y.cols);
  PERIGEE_DISPATCH(
      context, cpu::AddRmsNorm(context, branch.As<float>(), residual.As<float>(), weight, eps, y.As<float>()),
      cuda::AddRmsNorm(context, branch, residual, weight, eps, y));
}

void GatedRmsNorm(const KernelContext& context, ConstMatrix x, ConstMatrix gate,
                  std::span<const float> weight, float eps, Matrix y) {
  PERIGEE_CHECK(SameShape(x, gate) && SameShape(x, y));
  PERIGEE_CHECK(!weight.empty() && x.cols % static_cast<int64_t>(weight.size()) == 0);
  PERIGEE_DISPATCH(context,
                   cpu::GatedRmsNorm(context, x.As<float>(), gate.As<float>(), weight, eps, y.As<float>()),
                   cuda::GatedRmsNorm(context, x, gate, weight, eps, y));
}

}  // namespace perigee::kernels
