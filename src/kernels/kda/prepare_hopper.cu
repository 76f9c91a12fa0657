#include "kernels/kda/hopper-inl.cuh"
#include "kernels/kda/kda_prefill_hopper.h"
#include "kernels/kda/prepare_rows-inl.cuh"

// First kernel of the prefill: everything of a chunk that needs no state, one block of 256 threads for one
// chunk of one head. With a = exp(g), E the running product of a since the start of the chunk and D_ij the
// product of a over the rows j + 1 .. i, all per key channel:
//   L_ij = beta_i sum k_i k_j D_ij (j < i),   P_ij = sum q_i k_j D_ij (j <= i),   X = (I + L)^-1 diag(beta)
// and the keys and queries times E, and the keys times the decay from their row to the end of the chunk.
//
// D is never a quotient or a difference of sums. For halves of 1, 2, 4, 8, 16 and 32 rows, the later half
// holds the product since its own first row (on q and k) and the earlier half the product from the row after
// to its own last row (on k): each pair i > j meets in exactly one such pair of halves, and every factor is
// <= 1. What underflows is what is zero.
//
// A thread owns two neighbouring key channels of 16 rows, so that all products of decays stay in its
// registers: warp w has rows 16 (w / 2) and channels 64 (w % 2).

namespace perigee::kernels::kda_hopper {
namespace {

constexpr int kThreads = 256;
constexpr int kPrefetchBlocks = 2 * 132;  // blocks that run side by side
constexpr int kScratchPitch = 72;         // 16-bit floats; 8 rows of 16 bytes fall into different banks
constexpr int kLevelPitch = 136;
constexpr int kSquarePitch = 68;  // floats

struct Inverse {
  __half x[kChunk][kScratchPitch];  // (I + L)^-1
  __half l[kChunk][kScratchPitch];
};

struct Shared {
  union {
    __half scratch[8][24][kScratchPitch];  // per warp: operands of halves of 1 to 8 rows
    __half level[2][96][kLevelPitch];      // operands of halves of 16 and of 32 rows
    Inverse inverse;
  };
  float l[kChunk][kSquarePitch];  // without beta
  float p[kChunk][kSquarePitch];
  float4 sums[2][kChunk];       // q q, k k, q k of half the channels
  float2 norms[kChunk];         // 1 / |q|, 1 / |k|
  float2 total[4][kWidth / 2];  // decay of 16 rows
  float beta[kChunk];
};

__device__ __forceinline__ void Store(__half* to, uint32_t pair) {
  *reinterpret_cast<uint32_t*>(to) = pair;
}

// Sums over the lanes of 2 kHalf values: every step exchanges half of them with the lane across, so that lane
// l ends with the sum of value l / 2.
template <int kHalf = kBlockRows / 2>
__device__ __forceinline__ float ReduceRows(float (&v)[kBlockRows], int lane) {
  if constexpr (kHalf == 0) {
    return v[0] + __shfl_xor_sync(~0u, v[0], 1);
  } else {
    const bool upper = lane & (2 * kHalf);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float send = upper ? v[i] : v[i + kHalf];
      const float keep = upper ? v[i + kHalf] : v[i];
      v[i] = keep + __shfl_xor_sync(~0u, send, 2 * kHalf);
    }
    return ReduceRows<kHalf / 2>(v, lane);
  }
}

// Keeps the compiler from carrying products of decays from one stage to the next: it would spill them.
__device__ __forceinline__ void ForgetProducts(Rows& r) {
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) asm volatile("" : "+f"(r.a[i].x), "+f"(r.a[i].y));
}

// Sums of products of the thread's rows over the warp's channels, and the decay of the rows.
__device__ __forceinline__ void RowSums(const Rows& r, int block, int half, int lane, int pair, Shared& s) {
  float qq[kBlockRows], kk[kBlockRows], qk[kBlockRows];
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) {
    const float2 q = FromBf16(r.q[i]);
    const float2 k = FromBf16(r.k[i]);
    qq[i] = q.x * q.x + q.y * q.y;
    kk[i] = k.x * k.x + k.y * k.y;
    qk[i] = q.x * k.x + q.y * k.y;
  }
  const float4 sum{ReduceRows(qq, lane), ReduceRows(kk, lane), ReduceRows(qk, lane), 0.0f};
  if ((lane & 1) == 0) s.sums[half][block * kBlockRows + lane / 2] = sum;
  float2 total{1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) total = total * r.a[i];
  s.total[block][pair] = total;
}

__device__ __forceinline__ void NormaliseRows(int block, const Shared& s, Rows& r) {
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) {
    const float2 norm = s.norms[block * kBlockRows + i];
    r.q[i] = ToHalf(FromBf16(r.q[i]) * float2{norm.x, norm.x});
    r.k[i] = ToHalf(FromBf16(r.k[i]) * float2{norm.y, norm.y});
  }
}

// Halves of kHalf rows inside the warp's 16 rows, over the warp's 64 channels. The eight rows of the later
// halves are rows 0-7 (q) and 8-15 (k) of the left operand, those of the earlier halves the right operand.
template <int kHalf>
__device__ __forceinline__ void InnerLevel(const Rows& r, __half (&scratch)[24][kScratchPitch], int lane,
                                           float (&sum)[4]) {
  __syncwarp();
#pragma unroll
  for (int pair = 0; pair < 8 / kHalf; ++pair) {
    float2 since{1.0f, 1.0f}, until{1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const int row = (2 * pair + 1) * kHalf + i;
      since = since * r.a[row];
      const uint32_t factor = ToHalf(since);
      Store(&scratch[pair * kHalf + i][2 * lane], MulHalf2(r.q[row], factor));
      Store(&scratch[8 + pair * kHalf + i][2 * lane], MulHalf2(r.k[row], factor));
    }
#pragma unroll
    for (int i = kHalf - 1; i >= 0; --i) {
      const int row = 2 * pair * kHalf + i;
      Store(&scratch[16 + pair * kHalf + i][2 * lane], MulHalf2(r.k[row], ToHalf(until)));
      until = until * r.a[row];
    }
  }
  __syncwarp();
  const uint32_t left = SharedAddress(&scratch[lane & 15][(lane >> 4) * 8]);
  const uint32_t right = SharedAddress(&scratch[16 + (lane & 7)][(lane >> 3) * 8]);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
#pragma unroll
  for (int at = 0; at < 64; at += 32) {
    uint32_t a[4], b[4];
    LoadMatrix4(b, right + at * 2);
    LoadMatrix4(a, left + at * 2);
    Mma16816(sum, a, b[0], b[1]);
    LoadMatrix4(a, left + at * 2 + 32);
    Mma16816(sum, a, b[2], b[3]);
  }
}

// The pairs of an inner level into the squares; `add`: the other half of the channels is there already.
template <int kHalf>
__device__ __forceinline__ void StoreInner(const float (&sum)[4], int block, int lane, bool add, Shared& s) {
  const int i = lane >> 2;
  const int row = block * kBlockRows + (2 * (i / kHalf) + 1) * kHalf + i % kHalf;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int j = 2 * (lane & 3) + n;
    if (j / kHalf != i / kHalf) continue;
    const int column = block * kBlockRows + 2 * (j / kHalf) * kHalf + j % kHalf;
    s.p[row][column] = add ? s.p[row][column] + sum[n] : sum[n];
    s.l[row][column] = add ? s.l[row][column] + sum[2 + n] : sum[2 + n];
  }
}

// Operands of the halves of 16 and 32 rows into shared memory; the decayed keys and queries to the workspace.
__device__ __forceinline__ void OuterOperands(const Rows& r, int block, int lane, int pair, uint8_t* factors,
                                              Shared& s) {
  float2 before{1.0f, 1.0f}, after{1.0f, 1.0f};
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    if (b < block) before = before * s.total[b][pair];
    if (b > block) after = after * s.total[b][pair];
  }
  uint8_t* image = factors + (pair / 32) * (kChunk * 128);
  const auto at = [&](int row) { return row * 128 + ((lane * 4) ^ ((row & 7) << 4)); };
  const auto store = [&](int base, int row, uint32_t value) {
    *reinterpret_cast<uint32_t*>(image + base + at(row)) = value;
  };
  auto& near = s.level[0];
  auto& far = s.level[1];
  const int near_row = (block / 2) * 48;
  float2 running{1.0f, 1.0f};
  const float2 far_before = block == 3 ? s.total[2][pair] : float2{1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) {
    const int row = block * kBlockRows + i;
    running = running * r.a[i];
    const uint32_t whole = ToHalf(before * running);
    store(kKeysAt, row, MulHalf2(r.k[i], whole));
    store(kQueriesAt, row, MulHalf2(r.q[i], whole));
    if (block & 1) {
      const uint32_t factor = ToHalf(running);
      Store(&near[near_row + i][2 * pair], MulHalf2(r.q[i], factor));
      Store(&near[near_row + 16 + i][2 * pair], MulHalf2(r.k[i], factor));
    }
    if (block >= 2) {
      const uint32_t factor = ToHalf(far_before * running);
      Store(&far[row - 32][2 * pair], MulHalf2(r.q[i], factor));
      Store(&far[row][2 * pair], MulHalf2(r.k[i], factor));
    }
  }
  if (block == 3) *reinterpret_cast<float2*>(factors + kDecayAt + pair * 8) = before * running;
  running = {1.0f, 1.0f};
  const float2 far_after = block == 0 ? s.total[1][pair] : float2{1.0f, 1.0f};
#pragma unroll
  for (int i = kBlockRows - 1; i >= 0; --i) {
    const int row = block * kBlockRows + i;
    store(kKeysOutAt, row, MulHalf2(r.k[i], ToHalf(running * after)));
    if ((block & 1) == 0) Store(&near[near_row + 32 + i][2 * pair], MulHalf2(r.k[i], ToHalf(running)));
    if (block < 2) Store(&far[64 + row][2 * pair], MulHalf2(r.k[i], ToHalf(running * far_after)));
    running = running * r.a[i];
  }
}

__device__ __forceinline__ void StoreTile(const float (&sum)[4], float (&square)[kChunk][kSquarePitch],
                                          int row, int column, int lane) {
  const int i = row + (lane >> 2);
  const int j = column + 2 * (lane & 3);
  *reinterpret_cast<float2*>(&square[i][j]) = {sum[0], sum[1]};
  *reinterpret_cast<float2*>(&square[i + 8][j]) = {sum[2], sum[3]};
}

// The products of the halves of 16 and 32 rows. Every warp has a 16 x 8 tile of the former and two of the
// latter.
__device__ __forceinline__ void OuterProducts(int warp, int lane, Shared& s) {
  float near[4] = {}, far[2][4] = {};
  const int pair = warp >> 2, side = (warp >> 1) & 1, tile = warp & 1;
  const int strip = warp >> 1;
  const int a_row = lane & 15, a_column = (lane >> 4) * 8;
  const uint32_t near_a = SharedAddress(&s.level[0][48 * pair + 16 * side + a_row][a_column]);
  const uint32_t near_b = SharedAddress(&s.level[0][48 * pair + 32 + 8 * tile + (lane & 7)][(lane >> 3) * 8]);
  const uint32_t far_a = SharedAddress(&s.level[1][16 * strip + a_row][a_column]);
  const uint32_t far_b =
      SharedAddress(&s.level[1][64 + 16 * tile + (lane & 7) + (lane >> 4) * 8][((lane >> 3) & 1) * 8]);
#pragma unroll
  for (int at = 0; at < kWidth; at += 32) {
    uint32_t a[4], b[4];
    LoadMatrix4(b, near_b + at * 2);
    LoadMatrix4(a, near_a + at * 2);
    Mma16816(near, a, b[0], b[1]);
    LoadMatrix4(a, near_a + at * 2 + 32);
    Mma16816(near, a, b[2], b[3]);
#pragma unroll
    for (int step = 0; step < 32; step += 16) {
      LoadMatrix4(a, far_a + (at + step) * 2);
      LoadMatrix4(b, far_b + (at + step) * 2);
      Mma16816(far[0], a, b[0], b[1]);
      Mma16816(far[1], a, b[2], b[3]);
    }
  }
  StoreTile(near, side ? s.l : s.p, 32 * pair + 16, 32 * pair + 8 * tile, lane);
  auto& square = strip >= 2 ? s.l : s.p;
#pragma unroll
  for (int n = 0; n < 2; ++n) StoreTile(far[n], square, 32 + 16 * (strip & 1), 16 * tile + 8 * n, lane);
}

// Forward substitution of one 16 x 16 block on the diagonal; lane j has column j of the inverse.
__device__ __forceinline__ void InvertDiagonal(int block, int lane, Shared& s) {
  const int base = block * kBlockRows;
  const int column = lane & 15;
  float x[kBlockRows];
#pragma unroll
  for (int i = 0; i < kBlockRows; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < i; ++m) sum = fmaf(s.l[base + i][base + m], x[m], sum);
    x[i] = (i == column ? 1.0f : 0.0f) - s.beta[base + i] * sum;
  }
  if (lane < 16) {
#pragma unroll
    for (int i = 0; i < kBlockRows; ++i) s.inverse.x[base + i][base + column] = __float2half_rn(x[i]);
  }
}

// What warps 4-7 do meanwhile: P to the workspace, L as 16-bit floats below the diagonal blocks, zeros above
// them in X.
__device__ __forceinline__ void CopySquares(int thread, uint8_t* factors, Shared& s) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int at = thread + step * 128;
    const int i = at >> 3, piece = at & 7;
    const float beta = s.beta[i];
    uint32_t p[4], l[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int j = piece * 8 + 2 * n;
      const float2 value = *reinterpret_cast<const float2*>(&s.p[i][j]);
      p[n] = PackHalf(j <= i ? value.x : 0.0f, j + 1 <= i ? value.y : 0.0f);
      const float2 lower = *reinterpret_cast<const float2*>(&s.l[i][j]);
      l[n] = PackHalf(beta * lower.x, beta * lower.y);
    }
    *reinterpret_cast<uint4*>(factors + kPairsAt + i * 128 + ((piece ^ (i & 7)) << 4)) = {p[0], p[1], p[2],
                                                                                          p[3]};
    if (piece / 2 < i / 16) {
      *reinterpret_cast<uint4*>(&s.inverse.l[i][piece * 8]) = {l[0], l[1], l[2], l[3]};
    } else if (piece / 2 > i / 16) {
      *reinterpret_cast<uint4*>(&s.inverse.x[i][piece * 8]) = {0, 0, 0, 0};
    }
  }
}

// Rows [row, row + 16) of X, columns [column, column + 16 kTiles), from the inverses of the blocks on both
// sides:
//   X_21 = -(X_22 L_21) X_11,  X_22 from column row0, L_21 [16 kTiles, 16 kTiles] at (row0, column).
template <int kTiles>
__device__ __forceinline__ void MergeStrip(int row, int row0, int column, int lane, Inverse& m) {
  const int a_row = lane & 15, a_column = (lane >> 4) * 8;
  float t[2 * kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kTiles; ++step) {
    uint32_t a[4], b[4];
    LoadMatrix4(a, SharedAddress(&m.x[row + a_row][row0 + 16 * step + a_column]));
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      LoadMatrix4Transposed(b, SharedAddress(&m.l[row0 + 16 * step + a_row][column + 16 * n + a_column]));
      Mma16816(t[2 * n], a, b[0], b[1]);
      Mma16816(t[2 * n + 1], a, b[2], b[3]);
    }
  }
  float x[2 * kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kTiles; ++step) {
    const float(&low)[4] = t[2 * step];
    const float(&high)[4] = t[2 * step + 1];
    const uint32_t a[4] = {PackHalf(low[0], low[1]), PackHalf(low[2], low[3]), PackHalf(high[0], high[1]),
                           PackHalf(high[2], high[3])};
    uint32_t b[4];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      LoadMatrix4Transposed(b, SharedAddress(&m.x[column + 16 * step + a_row][column + 16 * n + a_column]));
      Mma16816(x[2 * n], a, b[0], b[1]);
      Mma16816(x[2 * n + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2 * kTiles; ++n) {
    __half* to = &m.x[row + (lane >> 2)][column + 8 * n + 2 * (lane & 3)];
    Store(to, PackHalf(-x[n][0], -x[n][1]));
    Store(to + 8 * kScratchPitch, PackHalf(-x[n][2], -x[n][3]));
  }
}

__device__ __forceinline__ void StoreSolve(int thread, uint8_t* factors, const Shared& s) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int at = thread + step * kThreads;
    const int i = at >> 3, piece = at & 7;
    const uint4 x = *reinterpret_cast<const uint4*>(&s.inverse.x[i][piece * 8]);
    const float* beta = &s.beta[piece * 8];
    const auto times = [&](uint32_t pair, int j) { return MulHalf2(pair, PackHalf(beta[j], beta[j + 1])); };
    *reinterpret_cast<uint4*>(factors + kSolveAt + i * 128 + ((piece ^ (i & 7)) << 4)) = {
        times(x.x, 0), times(x.y, 2), times(x.z, 4), times(x.w, 6)};
  }
}

__device__ __forceinline__ int FindPiece(const Pass& pass, int chunk) {
  int low = 0, high = pass.num_pieces - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (pass.pieces[middle].chunk <= chunk)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// Grid: (heads, chunks of the pass).
template <bool kFromZ>
__global__ void __launch_bounds__(kThreads, 2)
    PrepareKernel(const __grid_constant__ KdaCudaPrefillArgs args, const __grid_constant__ Pass pass) {
  extern __shared__ __align__(16) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int block = warp >> 1, half = warp & 1, pair = half * 32 + lane;
  const int head = blockIdx.x, chunk = blockIdx.y;
  const Piece& piece = pass.pieces[FindPiece(pass, chunk)];
  const int first = (chunk - piece.chunk) * kChunk;
  const int rows = min(kChunk, piece.rows - first);
  const int64_t row = piece.row + first;

  Rows r;
  LoadRows<kFromZ>(args, row + block * kBlockRows, rows - block * kBlockRows, head, pair, r);
  const int ahead = first + kPrefetchBlocks / args.num_heads * kChunk;
  PrefetchRows<kFromZ>(args, piece.row + ahead, min(kChunk, piece.rows - ahead), head, thread);
  ForgetProducts(r);
  if (thread < kChunk)
    s.beta[thread] = thread < rows ? args.beta[(row + thread) * args.beta_stride + head] : 0.0f;
  RowSums(r, block, half, lane, pair, s);
  __syncthreads();
  if (thread < kChunk) {
    const float4 x = s.sums[0][thread], y = s.sums[1][thread];
    const float2 norm{rsqrtf(x.x + y.x + 1e-6f), rsqrtf(x.y + y.y + 1e-6f)};
    s.norms[thread] = norm;
    s.p[thread][thread] = (x.z + y.z) * norm.x * norm.y;
  }
  __syncthreads();
  NormaliseRows(block, s, r);
  ForgetProducts(r);

  float inner[4][4];
  InnerLevel<1>(r, s.scratch[warp], lane, inner[0]);
  InnerLevel<2>(r, s.scratch[warp], lane, inner[1]);
  InnerLevel<4>(r, s.scratch[warp], lane, inner[2]);
  InnerLevel<8>(r, s.scratch[warp], lane, inner[3]);
  const auto store_inner = [&](bool add) {
    StoreInner<1>(inner[0], block, lane, add, s);
    StoreInner<2>(inner[1], block, lane, add, s);
    StoreInner<4>(inner[2], block, lane, add, s);
    StoreInner<8>(inner[3], block, lane, add, s);
  };
  if (half == 0) store_inner(false);
  __syncthreads();  // the scratch becomes the operands of the outer levels
  if (half == 1) store_inner(true);
  ForgetProducts(r);
  uint8_t* factors = static_cast<uint8_t*>(args.workspace) +
                     (static_cast<int64_t>(chunk) * args.num_heads + head) * kFactorStride;
  OuterOperands(r, block, lane, pair, factors, s);
  __syncthreads();
  OuterProducts(warp, lane, s);
  __syncthreads();  // those become L and X
  if (warp < 4)
    InvertDiagonal(warp, lane, s);
  else
    CopySquares(thread - 128, factors, s);
  __syncthreads();
  if (warp < 2) MergeStrip<1>(32 * warp + 16, 32 * warp + 16, 32 * warp, lane, s.inverse);
  __syncthreads();
  if (warp < 2) MergeStrip<2>(32 + 16 * warp, 32, 0, lane, s.inverse);
  __syncthreads();
  StoreSolve(thread, factors, s);
}

template <bool kFromZ>
cudaError_t Launch(const KdaCudaPrefillArgs& args, const Pass& pass, cudaStream_t stream) {
  const auto kernel = PrepareKernel<kFromZ>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (error != cudaSuccess) return error;
  kernel<<<dim3(args.num_heads, pass.num_chunks), kThreads, sizeof(Shared), stream>>>(args, pass);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchPrepare(const KdaCudaPrefillArgs& args, const Pass& pass, cudaStream_t stream) {
  return args.decay.g != nullptr ? Launch<false>(args, pass, stream) : Launch<true>(args, pass, stream);
}

}  // namespace perigee::kernels::kda_hopper
