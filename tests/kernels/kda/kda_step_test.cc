#include "kernels/kda/kda_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ref/conv_ref.h"
#include "ref/kda_ref.h"
#include "ref/norm_ref.h"
#include "testing/kernel_fixture.h"
#include "testing/random.h"
#include "testing/tolerances.h"

namespace perigee::kernels {
namespace {

using namespace perigee::test;

struct Shape {
  int64_t heads, key, value, taps;
  int64_t keys() const { return heads * key; }
  int64_t values() const { return heads * value; }
  int64_t channels() const { return 2 * keys() + values(); }
  int64_t tail() const { return (taps - 1) * channels(); }
  int64_t state() const { return keys() * value; }
};

// One sequence's state and what it expects, in double.
struct Sequence {
  std::vector<double> tail, state;
};

std::vector<double> Columns(const std::vector<double>& x, int64_t begin, int64_t count) {
  return {x.begin() + begin, x.begin() + begin + count};
}

class KdaStepTest : public ::testing::Test {
 protected:
  void Draw(const Shape& shape, int64_t slots) {
    shape_ = shape;
    taps_ = random_.Normals(shape.taps * shape.channels(), 0.5);
    bias_ = random_.Normals(shape.keys());
    norm_ = random_.Normals(shape.value);
    slopes_.clear();
    a_log_.clear();
    for (int64_t h = 0; h < shape.heads; ++h) {
      a_log_.push_back(random_.Uniform(-3, 3));
      slopes_.push_back(static_cast<float>(-std::exp(a_log_.back())));
    }
    tails_ = random_.Normals(slots * shape.tail());
    states_ = random_.Normals(slots * shape.state(), 0.3);
    sequences_.clear();
    for (int64_t s = 0; s < slots; ++s) {
      sequences_.push_back({Columns(ToDouble(tails_), s * shape.tail(), shape.tail()),
                            Columns(ToDouble(states_), s * shape.state(), shape.state())});
    }
  }

  // A row in double: convolution, delta rule, gated norm.
  std::vector<double> Expected(Sequence& s, const std::vector<double>& qkv, const std::vector<double>& z,
                               const std::vector<double>& logits, const std::vector<double>& gate) const {
    const std::vector<double> u = ref::CausalConv(shape_.channels(), qkv, ToDouble(taps_), s.tail);
    std::vector<double> beta;
    for (const double x : logits) beta.push_back(ref::Sigmoid(x));
    const std::vector<double> o =
        ref::Kda({shape_.heads, shape_.key, shape_.value}, Columns(u, 0, shape_.keys()),
                 Columns(u, shape_.keys(), shape_.keys()), Columns(u, 2 * shape_.keys(), shape_.values()),
                 ref::KdaGate(z, ToDouble(bias_), a_log_), beta, s.state);
    return ref::GatedRmsNorm(o, gate, ToDouble(norm_), 1e-5);
  }

  std::vector<float> Step(const std::vector<Segment>& segments, const PaddedMatrix& qkv,
                          const PaddedMatrix& z, const PaddedMatrix& logits, const PaddedMatrix& gate) {
    const auto rows = static_cast<int64_t>(segments.size());
    PaddedMatrix out(rows, shape_.values());
    KdaStep(runner_.context(), {.num_heads = shape_.heads,
                                .key_dim = shape_.key,
                                .value_dim = shape_.value,
                                .qkv = qkv.view(),
                                .taps = {taps_.data(), shape_.taps, shape_.channels()},
                                .decay = {z.view(), bias_, slopes_},
                                .beta_logits = logits.view(),
                                .output_gate = gate.view(),
                                .norm_weight = norm_,
                                .norm_eps = 1e-5f,
                                .segments = segments,
                                .states = {.recurrent = states_.data(),
                                           .conv = tails_.data(),
                                           .recurrent_stride = shape_.state(),
                                           .conv_stride = shape_.tail()},
                                .out = out.view()});
    EXPECT_TRUE(out.GapsUntouched());
    return out.values();
  }

  Random random_{35};
  KernelRunner runner_;
  Shape shape_{};
  std::vector<float> taps_, bias_, norm_, slopes_, tails_, states_;
  std::vector<double> a_log_;
  std::vector<Sequence> sequences_;
};

// Rows 1 and 4 are padding: they touch no slot and give zeros.
TEST_F(KdaStepTest, SeveralStepsAgainstDoubleWithPaddingBetween) {
  for (const Shape& shape : {Shape{2, 128, 128, 4}, Shape{3, 20, 24, 4}, Shape{1, 16, 8, 2}}) {
    SCOPED_TRACE(::testing::Message() << shape.heads << " heads of " << shape.key);
    Draw(shape, 6);
    for (int step = 0; step < 4; ++step) {
      const std::vector<int32_t> slots = {3, -1, static_cast<int32_t>(step % 2), 5, -1};
      std::vector<Segment> segments;
      for (const int32_t slot : slots) {
        segments.push_back({.q_begin = static_cast<int64_t>(segments.size()),
                            .q_len = slot < 0 ? 0 : 1,
                            .kv_len = 0,
                            .slot = slot});
      }
      const auto draw = [&](int64_t cols, double scale) {
        return PaddedMatrix(5, cols, random_.Normals(5 * cols, scale));
      };
      const PaddedMatrix qkv = draw(shape.channels(), 1), z = draw(shape.keys(), 3),
                         logits = draw(shape.heads, 1), gate = draw(shape.values(), 1);
      const auto row = [&](const PaddedMatrix& m, int64_t r) { return ToDouble(m.row(r)); };
      std::vector<double> expected;
      for (int64_t r = 0; r < 5; ++r) {
        std::vector<double> y(static_cast<size_t>(shape.values()), 0.0);
        if (slots[static_cast<size_t>(r)] >= 0) {
          y = Expected(sequences_[static_cast<size_t>(slots[static_cast<size_t>(r)])], row(qkv, r), row(z, r),
                       row(logits, r), row(gate, r));
        }
        expected.insert(expected.end(), y.begin(), y.end());
      }
      EXPECT_TRUE(
          Near(Step(segments, qkv, z, logits, gate), expected, {.of_max = 1e-5, .relative_rmse = 5e-6}));
    }
    std::vector<double> states, tails;
    for (const Sequence& s : sequences_) {
      states.insert(states.end(), s.state.begin(), s.state.end());
      tails.insert(tails.end(), s.tail.begin(), s.tail.end());
    }
    EXPECT_TRUE(Near(states_, states, kKdaTolerance));
    EXPECT_TRUE(Near(tails_, tails, {}));
  }
}

}  // namespace
}  // namespace perigee::kernels
