#include "kernels/activation/activation_cuda.h"
#include "kernels/elementwise_cuda.cuh"

namespace perigee::kernels::cuda {
namespace {

template <typename T>
struct SiluMulAt {
  View<const T> gate, up;
  View<T> y;
  __device__ void operator()(int64_t r, int64_t c) const {
    const float z = Load(gate.Row(r) + c);
    Store(z * SigmoidOf(z) * Load(up.Row(r) + c), y.Row(r) + c);
  }
};

template <typename T>
struct AddAt {
  View<const T> source;
  View<T> target;
  __device__ void operator()(int64_t r, int64_t c) const {
    Store(Load(target.Row(r) + c) + Load(source.Row(r) + c), target.Row(r) + c);
  }
};

}  // namespace

void SiluMul(const KernelContext& context, ConstMatrix gate, ConstMatrix up, Matrix y) {
  PERIGEE_CHECK(gate.dtype == y.dtype && up.dtype == y.dtype);
  WithType(y.dtype, [&]<typename T>(T*) {
    ForElements(context, y.rows, y.cols, SiluMulAt<T>{ViewOf<T>(gate), ViewOf<T>(up), ViewOf<T>(y)});
  });
}

void AddInPlace(const KernelContext& context, ConstMatrix source, Matrix target) {
  PERIGEE_CHECK(source.dtype == target.dtype);
  WithType(target.dtype, [&]<typename T>(T*) {
    ForElements(context, target.rows, target.cols, AddAt<T>{ViewOf<T>(source), ViewOf<T>(target)});
  });
}

}  // namespace perigee::kernels::cuda
