#include "kernels/draw/draw_cuda.h"
#include "kernels/draw/draw_element.h"
#include "kernels/elementwise_cuda.cuh"
#include "tensor/device_memory.h"

namespace perigee::kernels::cuda {
namespace {

struct DrawAt {
  DrawnMatrix m;
  __nv_bfloat16* out;
  __device__ void operator()(int64_t r, int64_t c) const {
    const auto place = static_cast<uint64_t>((m.first_row + r) * m.whole_cols + m.first_col + c);
    Store(Between(m.low, m.high, UniformAt(m.seed, place)), out + r * m.cols + c);
  }
};

}  // namespace

void Draw(const DrawnMatrix& matrix, BFloat16* out) {
  const KernelContext context;
  ForElements(context, matrix.rows, matrix.cols, DrawAt{matrix, reinterpret_cast<__nv_bfloat16*>(out)});
  device_memory::Wait(context.stream);
}

}  // namespace perigee::kernels::cuda
