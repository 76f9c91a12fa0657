#include "kernels/activation/activation.h"

#include "base/check.h"
#include "kernels/activation/activation_cpu.h"
#include "kernels/activation/activation_cuda.h"
#include "kernels/dispatch.h"

namespace perigee::kernels {

void SiluMul(const KernelContext& context, ConstMatrix gate, ConstMatrix up, Matrix y) {
  PERIGEE_CHECK(gate.rows == y.rows && up.rows == y.rows && gate.cols == y.cols && up.cols == y.cols);
  PERIGEE_DISPATCH(context, cpu::SiluMul(context, gate.As<float>(), up.As<float>(), y.As<float>()),
                   cuda::SiluMul(context, gate, up, y));
}

void AddInPlace(const KernelContext& context, ConstMatrix source, Matrix target) {
  PERIGEE_CHECK(source.rows == target.rows && source.cols == target.cols);
  PERIGEE_DISPATCH(context, cpu::AddInPlace(context, source.As<float>(), target.As<float>()),
                   cuda::AddInPlace(context, source, target));
}

}  // namespace perigee::kernels
