// One chunk of 64 rows of one head (specification 3.4.7), shared by the prefill form and the summaries of
// segments. What differs from the text: the decays between two rows of a chunk are not differences of sums
// but running products (every row multiplies the keys before it by its own decay), so that any gate is exact
// and nothing can overflow; and N is solved for directly, as the state is at hand. Included once per Highway
// target.
#if defined(PERIGEE_KERNELS_KDA_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PERIGEE_KERNELS_KDA_CHUNK_INL_H_
#undef PERIGEE_KERNELS_KDA_CHUNK_INL_H_
#else
#define PERIGEE_KERNELS_KDA_CHUNK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "kernels/gemm/tile-inl.h"
#include "kernels/kda/kda_cpu.h"
#include "kernels/kda/kda_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace perigee::kernels {
namespace HWY_NAMESPACE {

inline constexpr int64_t kBlock = 16;  // rows of a diagonal block; also the lanes of a panel

struct Chunk {
  // columns: of the state.
  Chunk(float* scratch, int64_t keys, int64_t columns)
      : key_dim(keys), key_pad(AlignUp<int64_t>(keys, 16)), width(AlignUp<int64_t>(columns, 16)) {
    const auto take = [&](int64_t count) {
      float* room = scratch;
      scratch += count;
      return room;
    };
    state = take(keys * width);
    decayed_keys = take(keys * kKdaChunk);
    neg_l = take(kKdaChunk * kKdaChunk);
    p = take(kKdaChunk * kKdaChunk);
    keys_in = take(kKdaChunk * key_pad);
    queries_in = take(kKdaChunk * key_pad);
    decay = take(kKdaChunk * key_pad);
    total_keys = take(kKdaChunk * key_pad);
    total_queries = take(kKdaChunk * key_pad);
    n = take(kKdaChunk * width);
    o = take(kKdaChunk * width);
    total = take(key_pad);
  }

  int64_t key_dim, key_pad, width;
  float* state;          // S [key_dim, width]
  float* decayed_keys;   // [key_dim, 64]: column j is k_j decayed by every row after j so far
  float* neg_l;          // -L [64, 64], strictly lower
  float* p;              // P [64, 64], lower with diagonal
  float* keys_in;        // normalised k [64, key_pad]
  float* queries_in;     // normalised and scaled q
  float* decay;          // exp(g)
  float* total_keys;     // E * k, E the decay since the start of the chunk
  float* total_queries;  // E * q
  float* n;              // N [64, width]
  float* o;              // outputs [64, width]
  float* total;          // E of the last row
};

// Row `i` against the 16 keys of block `jb`: decays them, and adds up L and P of the row. kOwn: the block
// holds the row's own key, which enters P undecayed. kQueries: P is wanted.
template <bool kOwn, bool kQueries>
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
    const auto q = hn::Set(d, kQueries ? query[ch] : 0.0f);
#pragma GCC unroll 16
    for (int v = 0; v < kV; ++v) {
      auto x = hn::Mul(hn::LoadU(d, column + v * kStep), e);
      l[v] = hn::MulAdd(k, x, l[v]);
      if constexpr (kOwn) x = hn::IfThenElse(own[v], k, x);
      if constexpr (kQueries) p[v] = hn::MulAdd(q, x, p[v]);
      hn::StoreU(x, d, column + v * kStep);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kV; ++v) {
    hn::StoreU(l[v], d, l_row + jb * kBlock + v * kStep);
    if constexpr (kQueries) hn::StoreU(p[v], d, p_row + jb * kBlock + v * kStep);
  }
}

// Loads the chunk's rows; fills L, E * k and the keys decayed to the end of the chunk, and with kQueries P
// and E * q.
template <bool kQueries>
HWY_INLINE void Pairs(const cpu::KdaArgs& a, int64_t row, int64_t rows, int64_t head, Chunk& c) {
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
    if constexpr (kQueries) NormaliseHead(a.q.Row(row + i) + at, a.key_dim, scale, query);
    ExpHead(a.g.Row(row + i) + at, a.key_dim, decay);
    for (int64_t ch = 0; ch < c.key_pad; ch += kStep) {
      const auto total = hn::Mul(hn::LoadU(d, c.total + ch), hn::LoadU(d, decay + ch));
      hn::StoreU(total, d, c.total + ch);
      hn::StoreU(hn::Mul(total, hn::LoadU(d, key + ch)), d, c.total_keys + i * c.key_pad + ch);
      if constexpr (kQueries) {
        hn::StoreU(hn::Mul(total, hn::LoadU(d, query + ch)), d, c.total_queries + i * c.key_pad + ch);
      }
    }
    float* l_row = c.neg_l + i * kKdaChunk;
    float* p_row = c.p + i * kKdaChunk;
    for (int64_t jb = 0; jb < i / kBlock; ++jb) PairBlock<false, kQueries>(c, i, jb, l_row, p_row);
    PairBlock<true, kQueries>(c, i, i / kBlock, l_row, p_row);
    const auto neg_beta = hn::Set(d, -a.beta.Row(row + i)[head]);
    for (int64_t j = 0; j < AlignUp(i + 1, kBlock); j += kStep) {
      hn::StoreU(hn::Mul(neg_beta, hn::LoadU(d, l_row + j)), d, l_row + j);
    }
  }
}

// N of (I + L) N = beta (V - (E * K) S), by forward substitution. The state's columns from `value_begin` (a
// multiple of 16) on belong to the values; for those before it V is zero.
HWY_INLINE void Solve(const cpu::KdaArgs& a, int64_t row, int64_t rows, int64_t head, int64_t value_begin,
                      Chunk& c) {
  const D d;
  const PanelMatrix<float> state{c.state, 16, c.width};
  const PanelMatrix<float> solved{c.n, 16, c.width};
  MatMul<false>(c.total_keys, c.key_pad, rows, state, c.key_dim, c.n, c.width, c.width);
  for (int64_t i = 0; i < rows; ++i) {
    const float* value = a.v.Row(row + i) + head * a.value_dim;
    const auto beta = hn::Set(d, a.beta.Row(row + i)[head]);
    float* n = c.n + i * c.width;
    for (int64_t j = 0; j < c.width; j += kStep) {
      const int64_t at = j - value_begin;
      const auto v = at >= 0 && at < a.value_dim ? LoadUpTo(value + at, static_cast<size_t>(a.value_dim - at))
                                                 : hn::Zero(d);
      hn::StoreU(hn::Mul(beta, hn::Sub(v, hn::LoadU(d, n + j))), d, n + j);
    }
  }
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, rows);
    MatMul<true>(c.neg_l + begin * kKdaChunk, kKdaChunk, end - begin, solved, begin, c.n + begin * c.width,
                 c.width, c.width);
    const PanelMatrix<float> block{c.n + begin * c.width, 16, c.width};
    for (int64_t i = begin + 1; i < end; ++i) {
      MatMul<true>(c.neg_l + i * kKdaChunk + begin, kKdaChunk, 1, block, i - begin, c.n + i * c.width,
                   c.width, c.width);
    }
  }
}

// O = (E * Q) S + P N, of the state before the chunk.
HWY_INLINE void Output(const cpu::KdaArgs& a, int64_t row, int64_t rows, int64_t head, Chunk& c) {
  const PanelMatrix<float> state{c.state, 16, c.width};
  const PanelMatrix<float> solved{c.n, 16, c.width};
  MatMul<false>(c.total_queries, c.key_pad, rows, state, c.key_dim, c.o, c.width, c.width);
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, rows);
    MatMul<true>(c.p + begin * kKdaChunk, kKdaChunk, end - begin, solved, end, c.o + begin * c.width, c.width,
                 c.width);
  }
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(c.o + i * c.width, a.value_dim, a.out.Row(row + i) + head * a.value_dim);
  }
}

// S = diag(E) S + (decayed K)^T N.
HWY_INLINE void AdvanceState(int64_t rows, Chunk& c) {
  const D d;
  const PanelMatrix<float> solved{c.n, 16, c.width};
  for (int64_t ch = 0; ch < c.key_dim; ++ch) {
    const auto e = hn::Set(d, c.total[ch]);
    float* s = c.state + ch * c.width;
    for (int64_t j = 0; j < c.width; j += kStep) hn::StoreU(hn::Mul(e, hn::LoadU(d, s + j)), d, s + j);
  }
  MatMul<true>(c.decayed_keys, kKdaChunk, c.key_dim, solved, rows, c.state, c.width, c.width);
}

}  // namespace HWY_NAMESPACE
}  // namespace perigee::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
