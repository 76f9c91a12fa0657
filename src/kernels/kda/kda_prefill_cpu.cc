#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda/kda_prefill_cpu.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "kernels/gemm/tile-inl.h"
#include "kernels/kda/kda_cpu.h"
#include "kernels/kda/kda_rows-inl.h"

// The chunk form (specification 3.4.7) for one head, chunk after chunk. What differs from the text: the
// decays between two rows of a chunk are not differences of sums but running products (every row multiplies
// the keys before it by its own decay), so that any gate is exact and nothing can overflow; and N is solved
// for directly, as the state is at hand.

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kBlock = 16;  // rows of a diagonal block; also the lanes of a panel

struct Chunk {
  Chunk(float* scratch, int64_t keys, int64_t values)
      : key_dim(keys), key_pad(AlignUp<int64_t>(keys, 16)), value_pad(AlignUp<int64_t>(values, 16)) {
    const auto take = [&](int64_t count) {
      float* room = scratch;
      scratch += count;
      return room;
    };
    state = take(keys * value_pad);
    decayed_keys = take(keys * kKdaChunk);
    neg_l = take(kKdaChunk * kKdaChunk);
    p = take(kKdaChunk * kKdaChunk);
    keys_in = take(kKdaChunk * key_pad);
    queries_in = take(kKdaChunk * key_pad);
    decay = take(kKdaChunk * key_pad);
    total_keys = take(kKdaChunk * key_pad);
    total_queries = take(kKdaChunk * key_pad);
    n = take(kKdaChunk * value_pad);
    o = take(kKdaChunk * value_pad);
    total = take(key_pad);
  }

  int64_t key_dim, key_pad, value_pad;
  float* state;          // S [key_dim, value_pad]
  float* decayed_keys;   // [key_dim, 64]: column j is k_j decayed by every row after j so far
  float* neg_l;          // -L [64, 64], strictly lower
  float* p;              // P [64, 64], lower with diagonal
  float* keys_in;        // normalised k [64, key_pad]
  float* queries_in;     // normalised and scaled q
  float* decay;          // exp(g)
  float* total_keys;     // E * k, E the decay since the start of the chunk
  float* total_queries;  // E * q
  float* n;              // N [64, value_pad]
  float* o;              // outputs [64, value_pad]
  float* total;          // E of the last row
};

// Row `i` against the 16 keys of block `jb`: decays them, and adds up L and P of the row. kOwn: the block
// holds the row's own key, which enters P undecayed.
template <bool kOwn>
HWY_INLINE void PairBlock(const Chunk& c, int64_t i, int64_t jb, float* HWY_RESTRICT l_row,
                          float* HWY_RESTRICT p_row) {
  const D d;
  constexpr int kV = 16 / kStep;
  const float* decay = c.decay + i * c.key_pad;
  const float* key = c.keys_in + i * c.key_pad;
  const float* query = c.queries_in + i * c.key_pad;
  hn::Vec<D> l[kV], p[kV];
  hn::Mask<D> own[kV];
#pragma GCC unroll 16
  for (int v = 0; v < kV; ++v) {
    l[v] = p[v] = hn::Zero(d);
    own[v] = hn::Eq(hn::Iota(d, static_cast<float>(v * kStep)), hn::Set(d, static_cast<float>(i % kBlock)));
  }
  for (int64_t ch = 0; ch < c.key_dim; ++ch) {
    float* HWY_RESTRICT column = c.decayed_keys + ch * kKdaChunk + jb * kBlock;
    const auto e = hn::Set(d, decay[ch]);
    const auto k = hn::Set(d, key[ch]);
    const auto q = hn::Set(d, query[ch]);
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) {
      auto x = hn::Mul(hn::LoadU(d, column + v * kStep), e);
      l[v] = hn::MulAdd(k, x, l[v]);
      if constexpr (kOwn) x = hn::IfThenElse(own[v], k, x);
      p[v] = hn::MulAdd(q, x, p[v]);
      hn::StoreU(x, d, column + v * kStep);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kV; ++v) {
    hn::StoreU(l[v], d, l_row + jb * kBlock + v * kStep);
    hn::StoreU(p[v], d, p_row + jb * kBlock + v * kStep);
  }
}

// Loads the chunk's rows; fills L, P, E * k, E * q and the keys decayed to the end of the chunk.
HWY_INLINE void Pairs(const KdaArgs& a, int64_t row, int64_t rows, int64_t head, Chunk& c) {
  const D d;
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.key_dim));
  std::fill_n(c.total, c.key_pad, 1.0f);
  std::fill_n(c.decayed_keys, c.key_dim * kKdaChunk, 0.0f);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = head * a.key_dim;
    float* key = c.keys_in + i * c.key_pad;
    float* query = c.queries_in + i * c.key_pad;
    float* decay = c.decay + i * c.key_pad;
    NormaliseHead(a.k.Row(row + i) + at, a.key_dim, 1.0f, key);
    NormaliseHead(a.q.Row(row + i) + at, a.key_dim, scale, query);
    ExpHead(a.g.Row(row + i) + at, a.key_dim, decay);
    for (int64_t ch = 0; ch < c.key_pad; ch += kStep) {
      const auto total = hn::Mul(hn::LoadU(d, c.total + ch), hn::LoadU(d, decay + ch));
      hn::StoreU(total, d, c.total + ch);
      hn::StoreU(hn::Mul(total, hn::LoadU(d, key + ch)), d, c.total_keys + i * c.key_pad + ch);
      hn::StoreU(hn::Mul(total, hn::LoadU(d, query + ch)), d, c.total_queries + i * c.key_pad + ch);
    }
    float* l_row = c.neg_l + i * kKdaChunk;
    float* p_row = c.p + i * kKdaChunk;
    for (int64_t jb = 0; jb < i / kBlock; ++jb) PairBlock<false>(c, i, jb, l_row, p_row);
    PairBlock<true>(c, i, i / kBlock, l_row, p_row);
    const auto neg_beta = hn::Set(d, -a.beta.Row(row + i)[head]);
    for (int64_t j = 0; j < AlignUp(i + 1, kBlock); j += kStep) {
      hn::StoreU(hn::Mul(neg_beta, hn::LoadU(d, l_row + j)), d, l_row + j);
    }
  }
}

// N of (I + L) N = beta (V - (E * K) S), by forward substitution.
HWY_INLINE void Solve(const KdaArgs& a, int64_t row, int64_t rows, int64_t head, Chunk& c) {
  const D d;
  const PanelMatrix<float> state{c.state, 16, c.value_pad};
  const PanelMatrix<float> solved{c.n, 16, c.value_pad};
  MatMul<false>(c.total_keys, c.key_pad, rows, state, c.key_dim, c.n, c.value_pad, c.value_pad);
  for (int64_t i = 0; i < rows; ++i) {
    const float* value = a.v.Row(row + i) + head * a.value_dim;
    const auto beta = hn::Set(d, a.beta.Row(row + i)[head]);
    float* n = c.n + i * c.value_pad;
    for (int64_t j = 0; j < c.value_pad; j += kStep) {
      const auto v =
          j < a.value_dim ? LoadUpTo(value + j, static_cast<size_t>(a.value_dim - j)) : hn::Zero(d);
      hn::StoreU(hn::Mul(beta, hn::Sub(v, hn::LoadU(d, n + j))), d, n + j);
    }
  }
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, rows);
    MatMul<true>(c.neg_l + begin * kKdaChunk, kKdaChunk, end - begin, solved, begin,
                 c.n + begin * c.value_pad, c.value_pad, c.value_pad);
    const PanelMatrix<float> block{c.n + begin * c.value_pad, 16, c.value_pad};
    for (int64_t i = begin + 1; i < end; ++i) {
      MatMul<true>(c.neg_l + i * kKdaChunk + begin, kKdaChunk, 1, block, i - begin, c.n + i * c.value_pad,
                   c.value_pad, c.value_pad);
    }
  }
}

// O = (E * Q) S + P N, then S = diag(E) S + (decayed K)^T N.
HWY_INLINE void OutputAndState(const KdaArgs& a, int64_t row, int64_t rows, int64_t head, Chunk& c) {
  const D d;
  const PanelMatrix<float> state{c.state, 16, c.value_pad};
  const PanelMatrix<float> solved{c.n, 16, c.value_pad};
  MatMul<false>(c.total_queries, c.key_pad, rows, state, c.key_dim, c.o, c.value_pad, c.value_pad);
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, rows);
    MatMul<true>(c.p + begin * kKdaChunk, kKdaChunk, end - begin, solved, end, c.o + begin * c.value_pad,
                 c.value_pad, c.value_pad);
  }
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(c.o + i * c.value_pad, a.value_dim, a.out.Row(row + i) + head * a.value_dim);
  }
  for (int64_t ch = 0; ch < c.key_dim; ++ch) {
    const auto e = hn::Set(d, c.total[ch]);
    float* s = c.state + ch * c.value_pad;
    for (int64_t j = 0; j < c.value_pad; j += kStep) hn::StoreU(hn::Mul(e, hn::LoadU(d, s + j)), d, s + j);
  }
  MatMul<true>(c.decayed_keys, kKdaChunk, c.key_dim, solved, rows, c.state, c.value_pad, c.value_pad);
}

void PrefillHead(const KdaArgs& a, const KdaSegment& segment, int64_t head, float* scratch) {
  Chunk c(scratch, a.key_dim, a.value_dim);
  float* stored = segment.state + head * a.key_dim * a.value_dim;
  for (int64_t ch = 0; ch < a.key_dim; ++ch) {
    CopyPadded(stored + ch * a.value_dim, a.value_dim, c.state + ch * c.value_pad);
  }
  for (int64_t begin = 0; begin < segment.q_len; begin += kKdaChunk) {
    const int64_t row = segment.q_begin + begin;
    const int64_t rows = std::min(kKdaChunk, segment.q_len - begin);
    Pairs(a, row, rows, head, c);
    Solve(a, row, rows, head, c);
    OutputAndState(a, row, rows, head, c);
  }
  for (int64_t ch = 0; ch < a.key_dim; ++ch) {
    std::copy_n(c.state + ch * c.value_pad, a.value_dim, stored + ch * a.value_dim);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace perigee::kernels {

HWY_EXPORT(PrefillHead);

int64_t KdaChunkScratchFloats(int64_t key_dim, int64_t value_dim) {
  const int64_t keys = AlignUp<int64_t>(key_dim, 16);
  const int64_t values = AlignUp<int64_t>(value_dim, 16);
  return keys * values + key_dim * kKdaChunk + 2 * kKdaChunk * kKdaChunk + 5 * kKdaChunk * keys +
         2 * kKdaChunk * values + keys;
}

void KdaPrefillHead(const KdaArgs& args, const KdaSegment& segment, int64_t head, float* scratch) {
  HWY_DYNAMIC_DISPATCH(PrefillHead)(args, segment, head, scratch);
}

}  // namespace perigee::kernels
#endif  // HWY_ONCE
