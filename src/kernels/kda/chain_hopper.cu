#include "kernels/kda/hopper-inl.cuh"
#include "kernels/kda/kda_prefill_hopper.h"

// Second kernel of the prefill: chunk after chunk of one piece, one head and one slab of 64 value channels.
// With the factors of prepare_hopper.cu and S the state before the chunk:
//   R = V - (E K) S,   N = X R,   O = ((E Q) S + P N) / sqrt(128),   S' = diag(E_end) S + (K decayed to the
//   end)^T N
//
// One warpgroup computes everything transposed: S^T [64 values, 128 keys] stays in the accumulators of wgmma,
// and S^T, R^T and N^T enter the next product as A operands from registers; only the factors, V and O pass
// through shared memory. A fifth warp keeps `kStages` chunks of factors and V in flight.
//
// Operands are 16-bit floats, whose eleven bits keep the error an eighth of bfloat16's. The factors never
// exceed 1 in magnitude: they are products of unit vectors and of decays, and X_ij is an entry of a product
// of contractions. State and values have no such bound, but the recurrence is linear in each value channel,
// so every channel runs in its own power-of-two unit: `unit` is chosen so that the largest of S and V in the
// chunk lies in [2^-4, 2^6], and is changed (exactly) when that stops being true. Within a chunk |S| then
// stays below sqrt(128) 2^6 + 64 * 2^6 < 2^13, far from 65504.

namespace perigee::kernels::kda_hopper {
namespace {

constexpr int kStages = 3;
constexpr int kThreads = 160;
constexpr int kValuePitch = 72;                      // 16-bit elements
constexpr float kQueryScale = 0.08838834764831845f;  // 128^-0.5

struct Stage {
  uint8_t factors[kDecayAt];
  float decay[kWidth];
  uint8_t pad[512];  // the swizzle wants stages at multiples of 1024 bytes
};

struct Shared {
  Stage stages[kStages];
  __nv_bfloat16 values[kStages][kChunk]
                      [kValuePitch];  // V, then O on its way out: a warp keeps to its own columns
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

constexpr int kLargest = 6, kSmallest = -4;  // exponents of the window

// Accumulators of S^T, and what belongs to the thread's two value channels (rows g and g + 8 of the warp's
// 16).
struct State {
  float s[16][4];
  int exponent[2];  // the unit of channel i is 2^exponent
};

__device__ __forceinline__ float PowerOfTwo(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

__device__ __forceinline__ void LoadState(const float* from, int channel, int lane, State& state) {
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 8 * n + 2 * (lane & 3) + (i & 1);
      state.s[n][i] = from[key * kWidth + channel + (i >> 1) * 8];
    }
  }
  state.exponent[0] = state.exponent[1] = 0;
}

__device__ __forceinline__ void StoreState(const State& state, int channel, int lane, float* to) {
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 8 * n + 2 * (lane & 3) + (i & 1);
      to[key * kWidth + channel + (i >> 1) * 8] = state.s[n][i] * PowerOfTwo(state.exponent[i >> 1]);
    }
  }
}

// The window must hold before the first conversion to 16 bits.
__device__ __forceinline__ void CentreState(State& state) {
  float largest[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) largest[i >> 1] = fmaxf(largest[i >> 1], fabsf(state.s[n][i]));
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    largest[c] = fmaxf(largest[c], __shfl_xor_sync(~0u, largest[c], 1));
    largest[c] = fmaxf(largest[c], __shfl_xor_sync(~0u, largest[c], 2));
    const int exponent = (__float_as_int(largest[c]) >> 23) - 127;
    state.exponent[c] = largest[c] > 0.0f ? max(-100, min(100, exponent)) : 0;
  }
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.s[n][i] *= PowerOfTwo(-state.exponent[i >> 1]);
  }
}

__device__ __forceinline__ __half2 AsHalf2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ __nv_bfloat162 AsBf162(uint32_t bits) {
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}

// Powers of two by which the two channels must be multiplied to be inside the window, given the chunk's
// operands.
__device__ __forceinline__ void FindShift(const uint32_t (&s)[8][4], const uint32_t (&v)[8][2],
                                          const State& state, int (&shift)[2]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    __half2 of_state = __habs2(AsHalf2(s[0][c]));
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      of_state = __hmax2(of_state, __habs2(AsHalf2(s[n][c])));
      of_state = __hmax2(of_state, __habs2(AsHalf2(s[n][2 + c])));
    }
    __nv_bfloat162 of_values = __habs2(AsBf162(v[0][c]));
#pragma unroll
    for (int n = 1; n < 8; ++n) of_values = __hmax2(of_values, __habs2(AsBf162(v[n][c])));
    const float values =
        fmaxf(__low2float(of_values), __high2float(of_values)) * PowerOfTwo(-state.exponent[c]);
    float largest = fmaxf(fmaxf(__low2float(of_state), __high2float(of_state)), values);
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const int exponent = (__float_as_int(largest) >> 23) - 127;
    const bool outside = largest > 0.0f && (exponent >= kLargest || exponent < kSmallest);
    shift[c] = outside ? max(-100, min(100, state.exponent[c] + exponent)) - state.exponent[c] : 0;
  }
}

__device__ __forceinline__ void Shift(const int (&shift)[2], float (&r)[8][4], float (&o)[8][4],
                                      State& state) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Two factors: one alone could leave the range of the exponent.
    const float half = PowerOfTwo(-(shift[i >> 1] / 2));
    const float rest = PowerOfTwo(-(shift[i >> 1] - shift[i >> 1] / 2));
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      r[n][i] = r[n][i] * half * rest;
      o[n][i] = o[n][i] * half * rest;
    }
#pragma unroll
    for (int n = 0; n < 16; ++n) state.s[n][i] = state.s[n][i] * half * rest;
  }
  state.exponent[0] += shift[0];
  state.exponent[1] += shift[1];
}

// V^T of the warp's 16 channels as pairs of rows: v[n][c] has rows 8 n + 2 (lane % 4) and the next of channel
// c.
__device__ __forceinline__ void LoadValues(const __nv_bfloat16 (&values)[kChunk][kValuePitch], int warp,
                                           int lane, uint32_t (&v)[8][2]) {
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    uint32_t x[4];
    LoadMatrix4Transposed(
        x, SharedAddress(&values[(n + (lane >> 4)) * 8 + (lane & 7)][16 * warp + ((lane >> 3) & 1) * 8]));
    v[n][0] = x[0];
    v[n][1] = x[1];
    v[n + 1][0] = x[2];
    v[n + 1][1] = x[3];
  }
}

// A operand of 16 columns from two groups of accumulators.
__device__ __forceinline__ void Operand(const float (&low)[4], const float (&high)[4], uint32_t (&a)[4]) {
  a[0] = PackHalf(low[0], low[1]);
  a[1] = PackHalf(low[2], low[3]);
  a[2] = PackHalf(high[0], high[1]);
  a[3] = PackHalf(high[2], high[3]);
}

// R = V - (E K) S in units of the channels, as the next A operand.
__device__ __forceinline__ void Residual(const float (&r)[8][4], const uint32_t (&v)[8][2],
                                         const State& state, uint32_t (&a)[4][4]) {
  const float scale[2] = {PowerOfTwo(-state.exponent[0]), PowerOfTwo(-state.exponent[1])};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float first = __uint_as_float(v[n][c] << 16);
      const float second = __uint_as_float(v[n][c] & 0xFFFF0000u);
      a[n >> 1][(n & 1) * 2 + c] =
          PackHalf(fmaf(first, scale[c], -r[n][2 * c]), fmaf(second, scale[c], -r[n][2 * c + 1]));
    }
  }
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 b = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&b);
}

// O^T in the units of the output.
__device__ __forceinline__ void PackOutput(const float (&o)[8][4], const int (&exponent)[2],
                                           uint32_t (&packed)[8][2]) {
  const float scale[2] = {kQueryScale * PowerOfTwo(exponent[0]), kQueryScale * PowerOfTwo(exponent[1])};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) packed[n][c] = PackBf16(o[n][2 * c] * scale[c], o[n][2 * c + 1] * scale[c]);
  }
}

// O, transposed into the warp's own columns of the tile.
__device__ __forceinline__ void StageOutput(const uint32_t (&packed)[8][2], int warp, int lane,
                                            __nv_bfloat16 (&tile)[kChunk][kValuePitch]) {
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    StoreMatrix4Transposed(
        SharedAddress(&tile[(n + (lane >> 4)) * 8 + (lane & 7)][16 * warp + ((lane >> 3) & 1) * 8]),
        packed[n][0], packed[n][1], packed[n + 1][0], packed[n + 1][1]);
  }
  __syncwarp();
}

// The first `rows` rows of the warp's columns of the tile.
__device__ __forceinline__ void StoreOutput(int rows, int warp, int lane,
                                            const __nv_bfloat16 (&tile)[kChunk][kValuePitch],
                                            __nv_bfloat16* out, int64_t stride) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int row = step * 16 + (lane >> 1);
    const int column = 16 * warp + (lane & 1) * 8;
    if (row < rows) {
      *reinterpret_cast<uint4*>(out + row * stride + column) =
          *reinterpret_cast<const uint4*>(&tile[row][column]);
    }
  }
}

__device__ __forceinline__ void Produce(const KdaCudaPrefillArgs& args, const Piece& piece, int head,
                                        int slab, int lane, Shared& s) {
  const uint8_t* factors = static_cast<const uint8_t*>(args.workspace) +
                           (static_cast<int64_t>(piece.chunk) * args.num_heads + head) * kFactorStride;
  const int64_t step = static_cast<int64_t>(args.num_heads) * kFactorStride;
  const __nv_bfloat16* v = args.v + piece.row * args.v_stride + head * kWidth + slab * kSlab;
  for (int first = 0, stage = 0, round = 0; first < piece.rows; first += kChunk) {
    if (round > 0) BarrierWait(SharedAddress(&s.empty[stage]), (round - 1) & 1);
    const int rows = min(kChunk, piece.rows - first);
    const uint32_t full = SharedAddress(&s.full[stage]);
    if (lane == 0) {
      BarrierExpect(full, kFactorBytes);
      CopyBulk(SharedAddress(&s.stages[stage]), factors, kFactorBytes, full);
    }
    // Rows of V are short and far apart: one bulk copy each would take longer than the chunk's products.
    const int piece_at = (lane & 7) * 8;
#pragma unroll
    for (int i = 0; i < kChunk; i += 4) {
      const int row = i + (lane >> 3);
      const __nv_bfloat16* from = v + min(first + row, piece.rows - 1) * args.v_stride + piece_at;
      Copy16(SharedAddress(&s.values[stage][row][piece_at]), from, row < rows ? 16 : 0);
    }
    BarrierArriveCopies(full);
    factors += step;
    if (++stage == kStages) {
      stage = 0;
      ++round;
    }
  }
}

// The two products with the state of the chunk in `stage`: R from the decayed keys, O from the decayed
// queries.
__device__ __forceinline__ void MultiplyState(float (&d)[8][4], const uint32_t (&s16)[8][4],
                                              uint32_t factors) {
  WgmmaFence();
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    Wgmma64x64(d, s16[n], OperandB(factors + (n >> 2) * 8192 + (n & 3) * 32, 16), n > 0);
  }
  WgmmaCommit();
}

__device__ __forceinline__ void ToOperands(const State& state, uint32_t (&s16)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) Operand(state.s[2 * n], state.s[2 * n + 1], s16[n]);
}

// Decay of the chunk for the thread's key channels, and its effect on the state.
__device__ __forceinline__ void LoadDecay(const float (&decay)[kWidth], int lane, float2 (&e)[16]) {
#pragma unroll
  for (int n = 0; n < 16; ++n) e[n] = *reinterpret_cast<const float2*>(&decay[8 * n + 2 * (lane & 3)]);
}

__device__ __forceinline__ void Decay(const float2 (&e)[16], State& state) {
#pragma unroll
  for (int n = 0; n < 16; ++n) {
    state.s[n][0] *= e[n].x;
    state.s[n][1] *= e[n].y;
    state.s[n][2] *= e[n].x;
    state.s[n][3] *= e[n].y;
  }
}

// The loop turns over where no product is in flight: the compiler gives up overlapping them otherwise.
__device__ __forceinline__ void Consume(const KdaCudaPrefillArgs& args, const Pass& pass, const Piece& piece,
                                        int head, int slab, int warp, int lane, Shared& s) {
  const int channel = slab * kSlab + 16 * warp + (lane >> 2);
  const int64_t head_at = static_cast<int64_t>(head) * kWidth * kWidth;
  __nv_bfloat16* out = args.out + piece.row * args.out_stride + head * kWidth + slab * kSlab;
  int checkpoint = piece.checkpoint;
  State state;
  LoadState(piece.state + head_at, channel, lane, state);
  CentreState(state);
  float r[8][4], o[8][4];
  uint32_t s16[8][4], v[8][2], packed[8][2];
  int shift[2];
  int stage = 0;
  uint32_t parity = 0;
  ToOperands(state, s16);
  BarrierWait(SharedAddress(&s.full[0]), 0);
  MultiplyState(r, s16, SharedAddress(s.stages[0].factors) + kKeysAt);
  MultiplyState(o, s16, SharedAddress(s.stages[0].factors) + kQueriesAt);
  LoadValues(s.values[0], warp, lane, v);
  FindShift(s16, v, state, shift);
  WgmmaWait<0>();
  int first = 0;
  while (true) {
    const uint32_t base = SharedAddress(s.stages[stage].factors);
    if (__any_sync(~0u, (shift[0] | shift[1]) != 0)) Shift(shift, r, o, state);
    uint32_t a[4][4];
    Residual(r, v, state, a);
    WgmmaFence();
#pragma unroll
    for (int n = 0; n < 4; ++n) Wgmma64x64(r, a[n], OperandB(base + kSolveAt + n * 32, 16), n > 0);
    WgmmaCommit();
    float2 decay[16];
    LoadDecay(s.stages[stage].decay, lane, decay);
    WgmmaWait<0>();
    Decay(decay, state);
#pragma unroll
    for (int n = 0; n < 4; ++n) Operand(r[2 * n], r[2 * n + 1], a[n]);
    WgmmaFence();
#pragma unroll
    for (int n = 0; n < 4; ++n) Wgmma64x128(state.s, a[n], OperandB(base + kKeysOutAt + n * 2048, 8192));
    WgmmaCommit();
#pragma unroll
    for (int n = 0; n < 4; ++n) Wgmma64x64(o, a[n], OperandB(base + kPairsAt + n * 32, 16), 1);
    WgmmaCommit();
    WgmmaWait<0>();
    if (checkpoint < piece.checkpoint_end && pass.checkpoints[checkpoint].chunks * kChunk == first + kChunk) {
      StoreState(state, channel, lane, pass.checkpoints[checkpoint].state + head_at);
      ++checkpoint;
    }
    if (first + kChunk >= piece.rows) break;

    // The next chunk's products with the state start before this chunk's output leaves.
    ToOperands(state, s16);
    const int done = stage;
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
    const uint32_t next = SharedAddress(s.stages[stage].factors);
    BarrierWait(SharedAddress(&s.full[stage]), parity);
    LoadValues(s.values[stage], warp, lane, v);
    MultiplyState(r, s16, next + kKeysAt);
    PackOutput(o, state.exponent, packed);
    StageOutput(packed, warp, lane, s.values[done]);
    FindShift(s16, v, state, shift);
    MultiplyState(o, s16, next + kQueriesAt);
    StoreOutput(kChunk, warp, lane, s.values[done], out + first * args.out_stride, args.out_stride);
    __syncwarp();
    if (lane == 0) BarrierArrive(SharedAddress(&s.empty[done]));
    WgmmaWait<0>();
    first += kChunk;
  }
  PackOutput(o, state.exponent, packed);
  StageOutput(packed, warp, lane, s.values[stage]);
  StoreOutput(piece.rows - first, warp, lane, s.values[stage], out + first * args.out_stride,
              args.out_stride);
  StoreState(state, channel, lane, piece.state + head_at);
}

// Grid: (heads x 2 slabs, pieces of the pass).
__global__ void __launch_bounds__(kThreads, 1)
    ChainKernel(const __grid_constant__ KdaCudaPrefillArgs args, const __grid_constant__ Pass pass) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const int head = blockIdx.x >> 1, slab = blockIdx.x & 1;
  const Piece& piece = pass.pieces[blockIdx.y];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(SharedAddress(&s.full[i]), 1 + 32);
      BarrierInit(SharedAddress(&s.empty[i]), 4);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (warp == 4)
    Produce(args, piece, head, slab, lane, s);
  else
    Consume(args, pass, piece, head, slab, warp, lane, s);
}

}  // namespace

cudaError_t LaunchChain(const KdaCudaPrefillArgs& args, const Pass& pass, cudaEvent_t started,
                        cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(ChainKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute record;
  record.id = cudaLaunchAttributeLaunchCompletionEvent;
  record.val.launchCompletionEvent.event = started;
  record.val.launchCompletionEvent.flags = 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2 * args.num_heads, pass.num_pieces);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &record;
  config.numAttrs = started != nullptr ? 1 : 0;
  return cudaLaunchKernelEx(&config, ChainKernel, args, pass);
}

}  // namespace perigee::kernels::kda_hopper
