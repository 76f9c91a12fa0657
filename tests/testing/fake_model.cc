#include "testing/fake_model.h"

#include <limits>
#include <span>

#include "base/check.h"

namespace perigee {
namespace {

constexpr int64_t kLayers = 2;
constexpr int64_t kConvTokens = 3;

uint64_t Mix(uint64_t h, uint64_t value) {
  h ^= value + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

// A 64-bit value in four floats of 16 bits each, which hold it exactly.
void Store(uint64_t value, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<float>((value >> (16 * i)) & 0xffff);
}

uint64_t Load(const float* in) {
  uint64_t value = 0;
  for (int i = 0; i < 4; ++i) value |= static_cast<uint64_t>(in[i]) << (16 * i);
  return value;
}

// Takes one token into the slot's state and says what the state is afterwards.
uint64_t UpdateState(const StateView& view, int64_t slot, int64_t layer, uint64_t token, uint64_t form) {
  float* conv = view.Conv(slot);
  uint64_t h = Mix(Load(view.Recurrent(slot)), token * 64 + form);
  for (int64_t i = 0; i < kConvTokens; ++i)
    h = Mix(h, static_cast<uint64_t>(conv[i]) + static_cast<uint64_t>(layer));
  for (int64_t i = 0; i + 1 < kConvTokens; ++i) conv[i] = conv[i + 1];
  conv[kConvTokens - 1] = static_cast<float>(token + 1);
  Store(h, view.Recurrent(slot));
  return h;
}

}  // namespace

model::CacheShape FakeModel::cache_shape() const {
  return {.kv_layers = kLayers,
          .kv_width = 4,
          .state_layers = kLayers,
          .recurrent_floats = 4,
          .conv_floats = kConvTokens};
}

Status FakeModel::Forward(const kernels::KernelContext&, const batch::ForwardBatch& batch,
                          const parallel::StepLayout&, const parallel::ParallelContext&,
                          const model::Caches& caches, Matrix hidden) const {
  if (!options_.failure.ok() && calls_++ > 0) return options_.failure;
  if (options_.on_forward) options_.on_forward(batch);
  size_t wanted = 0;
  for (const batch::SeqSpan& span : batch.spans) {
    const auto seq = static_cast<size_t>(span.seq);
    const std::span<const int32_t> table = batch.BlockTable(span.seq);
    const uint64_t form = batch.phase == batch::Phase::kDecode
                              ? 99
                              : static_cast<uint64_t>(span.prefix() % cache::kBlockTokens);
    for (int64_t i = 0; i < span.q_len; ++i) {
      const int64_t position = span.prefix() + i;
      const int32_t token = batch.token_ids[static_cast<size_t>(span.q_begin + i)];
      uint64_t h = static_cast<uint64_t>(position);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const StateView states = caches.states->View(layer);
        h = Mix(h, UpdateState(states, batch.state_slots[seq], layer, static_cast<uint64_t>(token), form));
        const PagedKvView latents = caches.kv->View(layer);
        Store(h, latents.Record(table, position));
        for (int64_t t = 0; t <= position; ++t) h = Mix(h, Load(latents.Record(table, t)));
      }
      if (wanted < batch.wanted_rows.size() && batch.wanted_rows[wanted] == span.q_begin + i) {
        float* out = hidden.As<float>().Row(static_cast<int64_t>(wanted++));
        Store(h, out);
        out[4] = options_.poison == token ? 1.0f : 0.0f;
      }
    }
  }
  PERIGEE_CHECK(wanted == batch.wanted_rows.size());
  return Status::Ok();
}

void FakeModel::Logits(const kernels::KernelContext&, ConstMatrix hidden_rows, Matrix logit_rows) const {
  const ConstMatrixF hidden = hidden_rows.As<float>();
  const MatrixF logits = logit_rows.As<float>();
  for (int64_t r = 0; r < hidden.rows; ++r) {
    const uint64_t h = Load(hidden.Row(r));
    for (int64_t v = 0; v < kVocab; ++v) {
      const auto bits = static_cast<float>(Mix(h, static_cast<uint64_t>(v)) >> 40);
      logits.Row(r)[v] = bits / static_cast<float>(1 << 24) * 8.0f - 4.0f;
    }
    if (hidden.Row(r)[4] != 0.0f) logits.Row(r)[7] = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace perigee
