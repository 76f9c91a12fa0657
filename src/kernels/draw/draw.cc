#include "kernels/draw/draw.h"

#include "base/check.h"
#include "kernels/dispatch.h"
#include "kernels/draw/draw_cuda.h"
#include "kernels/draw/draw_element.h"

namespace perigee::kernels {
namespace {

void DrawOnHost(const DrawnMatrix& m, BFloat16* out) {
  for (int64_t r = 0; r < m.rows; ++r) {
    const int64_t first = (m.first_row + r) * m.whole_cols + m.first_col;
    for (int64_t c = 0; c < m.cols; ++c)
      *out++ = {FloatToBFloat16(DrawnElement(m.seed, first + c, m.low, m.high))};
  }
}

}  // namespace

DrawnMatrix DrawnMatrix::Rows(int64_t begin, int64_t count) const {
  PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= rows);
  DrawnMatrix part = *this;
  part.first_row += begin;
  part.rows = count;
  return part;
}

DrawnMatrix DrawnMatrix::Cols(int64_t begin, int64_t count) const {
  PERIGEE_CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
  DrawnMatrix part = *this;
  part.first_col += begin;
  part.cols = count;
  return part;
}

float DrawnElement(uint64_t seed, int64_t place, float low, float high) {
  return Between(low, high, UniformAt(seed, static_cast<uint64_t>(place)));
}

void Draw(const DrawnMatrix& matrix, BFloat16* out, Device device) {
  const KernelContext where{.device = device};
  PERIGEE_DISPATCH(where, DrawOnHost(matrix, out), cuda::Draw(matrix, out));
}

}  // namespace perigee::kernels
