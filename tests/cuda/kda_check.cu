// Holds the CUDA kernels of KDA against the recurrence in double. Prints one line per case; exit status 1
// when a case is off, 2 on a CUDA error. `kda_check small` leaves out the long cases (for
// compute-sanitizer).
#include <cstring>
#include <random>
#include <string>

#include "device_buffer.h"
#include "kda_reference.h"
#include "kernels/conv/conv_hopper.h"
#include "kernels/kda/kda_hopper.h"

namespace perigee::tests {
namespace {

using kernels::KdaCudaCheckpoint;
using kernels::KdaCudaPrefillArgs;
using kernels::KdaCudaRun;

int failures = 0;

// Relative root of the summed squares; NaN counts as infinite.
double Error(const std::vector<double>& expected, const std::vector<double>& got) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  const double error = std::sqrt(difference / std::max(size, 1e-300));
  return std::isfinite(error) ? error : INFINITY;
}

void Report(const std::string& name, std::initializer_list<double> errors, double bound) {
  bool good = true;
  std::printf("%-58s", name.c_str());
  for (const double e : errors) {
    std::printf(" %.2e", e);
    good = good && e <= bound;
  }
  std::printf(" %s\n", good ? "ok" : "WRONG");
  if (!good) ++failures;
}

struct PrefillCase {
  std::string name;
  std::vector<int64_t> lengths;
  int heads = 2;
  int key_dim = 128;
  int value_dim = 128;
  Gates gates = Gates::kHeavy;
  Keys keys = Keys::kIndependent;
  double state_size = 1.0;
  double value_size = 1.0;
  int64_t pass_chunks = 1 << 20;
  bool overlap = false;
  int64_t checkpoint_every = 0;  // rows, a multiple of 64
  bool from_z = false;
  double bound = 5e-3;
};

// What the double recurrence expects of a case, and its device arguments.
void RunPrefill(const PrefillCase& c, uint64_t seed) {
  constexpr int64_t kGap = 3;  // rows of nobody before every run
  int64_t rows = 0, chunks = 0;
  std::vector<int64_t> begins;
  for (const int64_t length : c.lengths) {
    rows += kGap;
    begins.push_back(rows);
    rows += length;
    chunks += (length + 63) / 64;
  }
  KdaInputs in = DrawKda(rows, c.heads, c.key_dim, c.value_dim, c.gates, c.keys, seed);
  for (float& x : in.v) x = RoundToBf16(x * static_cast<float>(c.value_size));
  const size_t keys = static_cast<size_t>(c.heads) * c.key_dim,
               values = static_cast<size_t>(c.heads) * c.value_dim;
  std::mt19937_64 bits(seed);
  std::normal_distribution<float> normal;
  std::vector<float> z, bias(keys), slope(c.heads);
  if (c.from_z) {
    for (float& x : bias) x = normal(bits);
    for (float& x : slope) x = -std::exp(2.0f * normal(bits));
    z.resize(in.g.size());
    for (size_t i = 0; i < z.size(); ++i) {
      z[i] = RoundToBf16(3.0f * normal(bits));
      in.g[i] = slope[i % keys / c.key_dim] * std::log1p(std::exp(z[i] + bias[i % keys]));
    }
  }
  const size_t state_count = static_cast<size_t>(c.heads) * c.key_dim * c.value_dim;
  std::vector<double> out(rows * values, NAN), expected_states, expected_checkpoints;
  std::vector<float> states;
  std::vector<KdaCudaRun> runs;
  std::vector<KdaCudaCheckpoint> checkpoints;
  for (size_t i = 0; i < c.lengths.size(); ++i) {
    std::vector<double> state(state_count);
    for (double& x : state) {
      states.push_back(static_cast<float>(c.state_size) * normal(bits));
      x = states.back();
    }
    std::vector<int64_t> at;
    for (int64_t r = c.checkpoint_every; c.checkpoint_every > 0 && r <= c.lengths[i];
         r += c.checkpoint_every) {
      at.push_back(r);
      checkpoints.push_back({static_cast<int64_t>(i), r, nullptr});
    }
    std::vector<std::vector<double>> copies;
    KdaRecurrence(in, begins[i], c.lengths[i], state, out, at, &copies);
    expected_states.insert(expected_states.end(), state.begin(), state.end());
    for (const auto& x : copies) expected_checkpoints.insert(expected_checkpoints.end(), x.begin(), x.end());
  }

  const size_t pad = c.key_dim == 128 && c.value_dim == 128 ? 8 : 1;
  DeviceBuffer<__nv_bfloat16> q(ToBf16(in.q, keys, keys + pad)), k(ToBf16(in.k, keys, keys + 2 * pad)),
      v(ToBf16(in.v, values, values + pad)), y(rows * (values + 3 * pad)), dz(ToBf16(z, keys, keys + pad));
  DeviceBuffer<float> g(Strided(in.g, keys, keys + 2 * pad)), beta(Strided(in.beta, c.heads, c.heads + 1)),
      s(states), copies(checkpoints.size() * state_count), dbias(bias), dslope(slope);
  for (size_t i = 0; i < c.lengths.size(); ++i)
    runs.push_back({begins[i], c.lengths[i], s.data() + i * state_count});
  for (size_t i = 0; i < checkpoints.size(); ++i) checkpoints[i].state = copies.data() + i * state_count;
  DeviceBuffer<char> workspace(
      kernels::KdaCudaPrefillWorkspaceBytes(c.heads, std::min(chunks + 1, c.pass_chunks)));

  KdaCudaPrefillArgs args;
  args.num_heads = c.heads;
  args.key_dim = c.key_dim;
  args.value_dim = c.value_dim;
  args.q = q.data();
  args.q_stride = static_cast<int64_t>(keys + pad);
  args.k = k.data();
  args.k_stride = static_cast<int64_t>(keys + 2 * pad);
  args.v = v.data();
  args.v_stride = static_cast<int64_t>(values + pad);
  if (c.from_z)
    args.decay = {nullptr, 0, dz.data(), static_cast<int64_t>(keys + pad), dbias.data(), dslope.data()};
  else
    args.decay = {g.data(), static_cast<int64_t>(keys + 2 * pad), nullptr, 0, nullptr, nullptr};
  args.beta = beta.data();
  args.beta_stride = c.heads + 1;
  args.runs = runs;
  args.checkpoints = checkpoints;
  args.out = y.data();
  args.out_stride = static_cast<int64_t>(values + 3 * pad);
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();
  kernels::KdaCudaOverlap overlap;
  if (c.overlap) {
    Check(kernels::KdaCudaCreateOverlap(&overlap), "overlap");
    args.overlap = &overlap;
  }
  Check(kernels::KdaCudaPrefill(args, nullptr), c.name.c_str());
  Check(cudaDeviceSynchronize(), c.name.c_str());
  kernels::KdaCudaDestroyOverlap(&overlap);

  const auto got = y.Get();
  std::vector<double> expected, found;
  bool untouched = true;
  for (int64_t r = 0; r < rows; ++r) {
    for (size_t j = 0; j < values + 3 * pad; ++j) {
      const float x = __bfloat162float(got[r * (values + 3 * pad) + j]);
      if (j < values && !std::isnan(out[r * values + j])) {
        expected.push_back(out[r * values + j]);
        found.push_back(x);
      } else {
        untouched = untouched && std::isnan(x);
      }
    }
  }
  const auto found_states = s.Get(), found_copies = copies.Get();
  Report(c.name + (untouched ? "" : " (wrote where it must not)"),
         {untouched ? Error(expected, found) : INFINITY,
          Error(expected_states, {found_states.begin(), found_states.end()}),
          Error(expected_checkpoints, {found_copies.begin(), found_copies.end()})},
         c.bound);
}

const char* Name(Gates gates) {
  switch (gates) {
    case Gates::kHeavy:
      return "heavy";
    case Gates::kSlow:
      return "slow";
    case Gates::kBounded:
      return "bounded";
    case Gates::kExtreme:
      return "0..-2000";
  }
  return "";
}

void CheckPrefill(bool small) {
  std::printf("prefill: relative RMSE of output, final state, checkpoints\n");
  uint64_t seed = 1;
  for (const Gates gates : {Gates::kHeavy, Gates::kSlow, Gates::kBounded, Gates::kExtreme}) {
    for (const int64_t length : {1, 2, 17, 63, 64, 65, 128, 200}) {
      if (small && length != 1 && length != 65) continue;
      PrefillCase c{std::string(Name(gates)) + ", " + std::to_string(length) + " rows", {length}};
      c.gates = gates;
      c.checkpoint_every = 64;
      RunPrefill(c, seed++);
    }
  }
  PrefillCase packed{"packed 1, 63, 64, 65, 0, 130, 2", {1, 63, 64, 65, 0, 130, 2}, 3};
  packed.checkpoint_every = 64;
  RunPrefill(packed, seed++);
  packed.name = "the same in passes of 3 chunks";
  packed.pass_chunks = 3;
  RunPrefill(packed, seed++);
  packed.name = "passes of 3 chunks, overlapped";
  packed.pass_chunks = 6;
  packed.overlap = true;
  RunPrefill(packed, seed++);
  packed.name = "decay from z";
  packed.from_z = true;
  RunPrefill(packed, seed++);
  for (const auto& [key_dim, value_dim] :
       {std::pair{64, 128}, std::pair{128, 96}, std::pair{24, 40}, std::pair{256, 5}}) {
    PrefillCase c{"plain path " + std::to_string(key_dim) + " x " + std::to_string(value_dim), {1, 65, 20}};
    c.key_dim = key_dim;
    c.value_dim = value_dim;
    c.checkpoint_every = 64;
    c.from_z = key_dim == 24;
    RunPrefill(c, seed++);
  }
  if (small) return;
  for (const Gates gates : {Gates::kHeavy, Gates::kSlow, Gates::kBounded, Gates::kExtreme}) {
    for (const Keys keys : {Keys::kIndependent, Keys::kCorrelated}) {
      PrefillCase c{
          std::string(Name(gates)) + (keys == Keys::kCorrelated ? ", correlated keys, 3000" : ", 3000"),
          {3000}};
      c.gates = gates;
      c.keys = keys;
      c.checkpoint_every = 640;
      c.pass_chunks = 16;
      c.overlap = keys == Keys::kCorrelated;
      RunPrefill(c, seed++);
    }
    for (const double size : {1e-6, 1e4}) {
      PrefillCase c{std::string(Name(gates)) + ", values times " + std::to_string(size), {700}};
      c.gates = gates;
      c.value_size = size;
      RunPrefill(c, seed++);
    }
    PrefillCase c{std::string(Name(gates)) + ", state times 100", {100}};
    c.gates = gates;
    c.state_size = 100.0;
    RunPrefill(c, seed++);
  }
  PrefillCase many{"64 sequences", {}, 4};
  for (int64_t i = 0; i < 64; ++i) many.lengths.push_back(1 + i * 37 % 400);
  many.pass_chunks = 100;
  many.overlap = true;
  RunPrefill(many, seed++);
  for (const Gates gates : {Gates::kHeavy, Gates::kSlow, Gates::kBounded}) {
    PrefillCase c{std::string(Name(gates)) + ", 131072 rows, 4 heads", {131072}, 4};
    c.gates = gates;
    c.pass_chunks = 256;
    c.overlap = true;
    RunPrefill(c, seed++);
  }
}

double Sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

std::vector<float> Draw(size_t count, double size, std::mt19937_64& bits, bool bf16 = true) {
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& v : x) {
    v = static_cast<float>(size) * normal(bits);
    if (bf16) v = RoundToBf16(v);
  }
  return x;
}

// Convolution of one row in double; shifts the tail [3, channels].
std::vector<double> Step(const float* x, const float* taps, std::vector<double>& tail, int channels) {
  std::vector<double> y(channels);
  for (int c = 0; c < channels; ++c) {
    double sum = taps[3 * channels + c] * static_cast<double>(x[c]);
    for (int m = 0; m < 3; ++m) sum += taps[m * channels + c] * tail[m * channels + c];
    for (int m = 0; m < 2; ++m) tail[m * channels + c] = tail[(m + 1) * channels + c];
    tail[2 * channels + c] = x[c];
    y[c] = sum * Sigmoid(sum);
  }
  return y;
}

void RunDecode(int batch, int heads) {
  std::mt19937_64 bits(77 + batch);
  constexpr int kSteps = 5;
  const int channels = heads * 128, slots = batch + 2;
  const auto taps = Draw(3 * 4 * channels, 0.5, bits, false);
  const auto bias = Draw(channels, 1.0, bits, false), norm = Draw(128, 1.0, bits, false);
  auto slope = Draw(heads, 1.5, bits, false);
  for (float& x : slope) x = -std::exp(x);
  auto state = Draw(static_cast<size_t>(slots) * heads * 128 * 128, 0.3, bits, false);
  const auto tails = Draw(static_cast<size_t>(slots) * 9 * channels, 1.0, bits);
  std::vector<int32_t> slot(batch);
  for (int b = 0; b < batch; ++b) slot[b] = b == 1 ? -1 : batch + 1 - b;
  std::vector<double> s(state.begin(), state.end());
  std::vector<std::vector<double>> tail;
  for (int i = 0; i < slots * 3; ++i)
    tail.emplace_back(tails.begin() + i * 3 * channels, tails.begin() + (i + 1) * 3 * channels);

  DeviceBuffer<float> d_taps(taps), d_bias(bias), d_norm(norm), d_slope(slope), d_state(state);
  DeviceBuffer<__nv_bfloat16> d_tails(ToBf16(tails, channels, channels));
  DeviceBuffer<int32_t> d_slots(slot);
  std::vector<double> expected, found;
  bool padding = true;
  for (int step = 0; step < kSteps; ++step) {
    const auto x = Draw(static_cast<size_t>(batch) * 5 * channels, 1.0, bits);  // q, k, v, z, gate of a row
    const auto logits = Draw(static_cast<size_t>(batch) * heads, 1.0, bits);
    DeviceBuffer<__nv_bfloat16> d_x(ToBf16(x, channels, channels)), d_logits(ToBf16(logits, heads, heads)),
        d_out(static_cast<size_t>(batch) * channels);
    kernels::KdaCudaDecodeArgs a;
    a.batch = batch;
    a.num_heads = heads;
    a.q = d_x.data();
    a.k = a.q + channels;
    a.v = a.k + channels;
    a.z = a.v + channels;
    a.gate = a.z + channels;
    a.q_stride = a.k_stride = a.v_stride = a.z_stride = a.gate_stride = 5 * channels;
    a.taps_q = d_taps.data();
    a.taps_k = a.taps_q + 4 * channels;
    a.taps_v = a.taps_k + 4 * channels;
    a.taps_stride = channels;
    a.slots = d_slots.data();
    a.tail_q = d_tails.data();
    a.tail_k = a.tail_q + 3 * channels;
    a.tail_v = a.tail_k + 3 * channels;
    a.tail_stride = channels;
    a.tail_slot_stride = 9 * channels;
    a.state = d_state.data();
    a.state_slot_stride = static_cast<int64_t>(channels) * 128;
    a.dt_bias = d_bias.data();
    a.neg_exp_a = d_slope.data();
    a.beta_logits = d_logits.data();
    a.beta_stride = heads;
    a.norm_weight = d_norm.data();
    a.out = d_out.data();
    a.out_stride = channels;
    Check(kernels::KdaCudaDecode(a, nullptr), "decode");
    Check(cudaDeviceSynchronize(), "decode");
    const auto got = d_out.Get();
    for (int b = 0; b < batch; ++b) {
      if (slot[b] < 0) {
        for (int c = 0; c < channels; ++c)
          padding = padding && __bfloat162float(got[b * channels + c]) == 0.0f;
        continue;
      }
      const float* row = &x[static_cast<size_t>(b) * 5 * channels];
      std::vector<double> u[3];
      for (int i = 0; i < 3; ++i)
        u[i] = Step(row + i * channels, &taps[i * 4 * channels], tail[slot[b] * 3 + i], channels);
      for (int h = 0; h < heads; ++h) {
        double* sh = &s[(static_cast<size_t>(slot[b]) * heads + h) * 128 * 128];
        const double *q = &u[0][h * 128], *k = &u[1][h * 128], *v = &u[2][h * 128];
        double qq = 1e-6, kk = 1e-6, oo = 0.0, o[128] = {};
        for (int i = 0; i < 128; ++i) qq += q[i] * q[i], kk += k[i] * k[i];
        const double qs = 1.0 / std::sqrt(qq * 128.0), ks = 1.0 / std::sqrt(kk);
        for (int i = 0; i < 128; ++i) {
          const double zi = row[3 * channels + h * 128 + i] + bias[h * 128 + i];
          const double e = std::exp(slope[h] * std::log1p(std::exp(zi)));
          for (int j = 0; j < 128; ++j) sh[i * 128 + j] *= e;
        }
        for (int j = 0; j < 128; ++j) {
          double p = 0.0;
          for (int i = 0; i < 128; ++i) p += ks * k[i] * sh[i * 128 + j];
          const double n = Sigmoid(logits[b * heads + h]) * (v[j] - p);
          for (int i = 0; i < 128; ++i) {
            sh[i * 128 + j] += ks * k[i] * n;
            o[j] += qs * q[i] * sh[i * 128 + j];
          }
          oo += o[j] * o[j];
        }
        for (int j = 0; j < 128; ++j) {
          expected.push_back(o[j] / std::sqrt(oo / 128.0 + 1e-5) * norm[j] *
                             Sigmoid(row[4 * channels + h * 128 + j]));
          found.push_back(__bfloat162float(got[b * channels + h * 128 + j]));
        }
      }
    }
  }
  const auto end_state = d_state.Get();
  const auto end_tails = d_tails.Get();
  std::vector<double> expected_tails, found_tails;
  for (const auto& t : tail) expected_tails.insert(expected_tails.end(), t.begin(), t.end());
  for (const auto& t : end_tails) found_tails.push_back(__bfloat162float(t));
  Report(
      "decode, batch " + std::to_string(batch) + ", " + std::to_string(heads) + " heads: out, state, tails",
      {padding ? Error(expected, found) : INFINITY, Error(s, {end_state.begin(), end_state.end()}) * 1e2,
       Error(expected_tails, found_tails) * 1e3},
      3e-3);
}

void RunConv(int width, int channels, const std::vector<int64_t>& lengths) {
  std::mt19937_64 bits(5);
  int64_t rows = 0;
  std::vector<int64_t> begins;
  for (const int64_t n : lengths) {
    rows += 2;
    begins.push_back(rows);
    rows += n;
  }
  const size_t stride = channels + 8;
  const auto x = Draw(rows * channels, 1.0, bits),
             tails = Draw(lengths.size() * (width - 1) * channels, 1.0, bits);
  const auto taps = Draw(width * channels, 0.5, bits, false);
  DeviceBuffer<__nv_bfloat16> dx(ToBf16(x, channels, stride)), dy(rows * stride),
      dt(ToBf16(tails, channels, channels));
  DeviceBuffer<float> dw(taps);
  std::vector<kernels::ConvCudaRun> runs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    runs.push_back({begins[i], lengths[i], dt.data() + i * (width - 1) * channels});
  }
  kernels::ConvCudaArgs a{channels,  width, dx.data(), static_cast<int64_t>(stride),
                          dw.data(), runs,  dy.data(), static_cast<int64_t>(stride)};
  Check(kernels::CausalConv1dCuda(a, nullptr), "conv");
  Check(cudaDeviceSynchronize(), "conv");
  const auto y = dy.Get(), t = dt.Get();
  std::vector<double> expected, found, expected_tails, found_tails;
  std::vector<bool> inside(rows);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto input = [&](int64_t r, int c) {
      return r >= 0 ? x[(begins[i] + r) * channels + c]
                    : tails[(i * (width - 1) + r + width - 1) * channels + c];
    };
    for (int64_t r = 0; r < lengths[i]; ++r) {
      inside[begins[i] + r] = true;
      for (int c = 0; c < channels; ++c) {
        double sum = 0.0;
        for (int m = 0; m < width; ++m)
          sum += static_cast<double>(taps[m * channels + c]) * input(r - (width - 1) + m, c);
        expected.push_back(sum * Sigmoid(sum));
        found.push_back(__bfloat162float(y[(begins[i] + r) * stride + c]));
      }
    }
    for (int m = 0; m < width - 1; ++m) {
      for (int c = 0; c < channels; ++c) {
        expected_tails.push_back(input(lengths[i] - (width - 1) + m, c));
        found_tails.push_back(__bfloat162float(t[(i * (width - 1) + m) * channels + c]));
      }
    }
  }
  bool untouched = true;
  for (int64_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < stride; ++c) {
      if (!inside[r] || c >= static_cast<size_t>(channels)) {
        untouched = untouched && std::isnan(__bfloat162float(y[r * stride + c]));
      }
    }
  }
  Report("conv, width " + std::to_string(width) + ", " + std::to_string(channels) + " channels: out, tails",
         {untouched ? Error(expected, found) : INFINITY, Error(expected_tails, found_tails) * 1e6}, 3e-3);
}

void RunGate() {
  std::mt19937_64 bits(9);
  constexpr int kHeads = 3, kKeys = 40, kRows = 70, kColumns = kHeads * kKeys;
  const auto z = Draw(kRows * kColumns, 8.0, bits), logits = Draw(kRows * kHeads, 3.0, bits);
  const auto bias = Draw(kColumns, 1.0, bits, false);
  const std::vector<float> slope{-0.1f, -4.0f, -200.0f};
  DeviceBuffer<__nv_bfloat16> dz(ToBf16(z, kColumns, kColumns)), dl(ToBf16(logits, kHeads, kHeads));
  DeviceBuffer<float> db(bias), ds(slope), g(kRows * kColumns), beta(kRows * kHeads);
  kernels::KdaCudaGateArgs a{kRows,    kHeads,   kKeys,     dz.data(), kColumns,    db.data(), ds.data(),
                             g.data(), kColumns, dl.data(), kHeads,    beta.data(), kHeads};
  Check(kernels::KdaCudaGate(a, nullptr), "gate");
  const auto found = g.Get(), found_beta = beta.Get();
  std::vector<double> expected, expected_beta;
  for (int i = 0; i < kRows * kColumns; ++i) {
    expected.push_back(slope[i % kColumns / kKeys] *
                       std::log1p(std::exp(static_cast<double>(z[i]) + bias[i % kColumns])));
  }
  for (const float x : logits) expected_beta.push_back(Sigmoid(x));
  Report("gate: g, beta",
         {Error(expected, {found.begin(), found.end()}),
          Error(expected_beta, {found_beta.begin(), found_beta.end()})},
         1e-5);
}

}  // namespace
}  // namespace perigee::tests

int main(int argc, char** argv) {
  using namespace perigee::tests;
  const bool small = argc > 1 && std::strcmp(argv[1], "small") == 0;
  RunGate();
  RunConv(4, 384, {1, 2, 3, 31, 32, 33, 100});
  RunConv(2, 8, {1, 40});
  RunConv(8, 1032, {5, 70});
  RunDecode(1, 2);
  RunDecode(3, 32);
  RunDecode(9, 16);
  CheckPrefill(small);
  std::printf("%s\n", failures == 0 ? "all right" : "WRONG");
  return failures == 0 ? 0 : 1;
}
