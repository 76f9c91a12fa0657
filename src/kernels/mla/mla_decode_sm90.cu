#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/hopper-inl.cuh"
#include "kernels/mla/mla_decode_shares-inl.cuh"
#include "kernels/mla/mla_sm90.h"
#include "kernels/tensor_map.h"

// Absorbed decode. All heads read the same records, so a tile of 64 keys is the M side of both products and
// the heads the N side: S^T [64 keys, heads] = C [64, 576] Q^T, then O^T [512, heads] += C^T [512, 64] P^T,
// both with the tile as it lies in shared memory. With 32 heads nothing is padded (heads on the M side would
// waste half the tensor cores). Two warpgroups take alternate tiles with a running maximum each; one warp
// copies. Time is the reading of the records.
namespace perigee::kernels::cuda {
namespace {

namespace h = hopper;

constexpr int kRank = 512;
constexpr int kRecord = 576;
constexpr int kPanels = kRecord / 64;  // of 64 columns (128 bytes) of a tile
constexpr int kPanelBytes = kKeys * 128;
constexpr int kTileBytes = kPanels * kPanelBytes;
constexpr int kGroups =
    kDecodeThreads / 128 - 1;  // warpgroups that compute; each has its own room for a tile
constexpr int kMaxHeads = 32;  // of a block
constexpr float kLog2e = 1.4426950408889634f;

// Shared memory of a block for kN heads.
template <int kN>
struct Layout {
  static constexpr int kQuery = kGroups * kTileBytes;            // kPanels panels of kN rows of 128 bytes
  static constexpr int kScores = kQuery + kPanels * kN * 128;    // [kGroups][kN] rows of 64 keys
  static constexpr int kHandoverBytes = 8 * (kN / 2) * 128 * 4;  // over queries and scores: a group's O^T
  static constexpr int kExchange = kQuery + kHandoverBytes;      // [kGroups][4 warps][kN] floats
  static constexpr int kOther =
      kExchange + kGroups * 4 * kN * 4;                 // [2][kN]: maximum and sum of the second group
  static constexpr int kVisible = kOther + 2 * kN * 4;  // [kMlaDecodeRows]
  static constexpr int kFirstBlock = kVisible + kMlaDecodeRows * 4;    // [kMlaDecodeRows]
  static constexpr int kFirstTile = kFirstBlock + kMlaDecodeRows * 4;  // [kMlaDecodeRows + 1]
  static constexpr int kBytes = kFirstTile + (kMlaDecodeRows + 1) * 4;
  static constexpr int kDynamic = kBytes + 1024;  // room to align
};

// One thread copies the tiles of all shares in turn into the rooms of the groups.
__device__ void Produce(const CUtensorMap* records, const DecodeParams& p, const Table& table, uint32_t tiles,
                        uint32_t full, uint32_t empty) {
  Shares shares(table, p.rows, blockIdx.x, gridDim.x);
  Share share;
  uint32_t count = 0;
  while (shares.Next(share)) {
    const int32_t* blocks = p.runs.block_tables + table.first_block[share.row];
    for (int t = share.begin; t < share.end; ++t, ++count) {
      const int key = t * kKeys;
      const int record = blocks[key / p.block_tokens] * p.block_tokens + key % p.block_tokens;
      const uint32_t group = count % kGroups;
      h::BarrierWait(empty + 8 * group, (count / kGroups & 1) ^ 1);
      h::BarrierExpect(full + 8 * group, kTileBytes);
      h::TensorLoad3(tiles + group * kTileBytes, records, full + 8 * group, 0, record, 0);
    }
  }
}

// Largest (kMax) or sum of every thread's values of a head over the 64 keys of the group's tile. values[2 j +
// i] is of head 8 j + 2 (lane % 4) + i. `room`: [4][kN] floats, free again after the group's next barrier.
template <int kN, bool kMax>
__device__ void ReduceKeys(float (&values)[kN / 4], float* room, int barrier) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, values[i], step);
      values[i] = kMax ? fmaxf(values[i], other) : values[i] + other;
    }
    if (lane < 4) room[warp * kN + i / 2 * 8 + lane * 2 + i % 2] = values[i];
  }
  h::NamedBarrier(barrier, 128);
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
    const float* of = room + i / 2 * 8 + lane % 4 * 2 + i % 2;
    values[i] = kMax ? fmaxf(fmaxf(of[0], of[kN]), fmaxf(of[2 * kN], of[3 * kN]))
                     : of[0] + of[kN] + (of[2 * kN] + of[3 * kN]);
  }
}

__device__ __forceinline__ void StoreTransposed2(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
               : "memory");
}

// Running softmax of one warpgroup over its tiles of a share.
template <int kN>
struct Running {
  float max[kN / 4];
  float sum[kN / 4];        // of this thread's keys alone
  float out[8 * (kN / 2)];  // O^T: 8 blocks of 64 latents

  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      max[i] = -INFINITY;
      sum[i] = 0;
    }
#pragma unroll
    for (float& x : out) x = 0;
  }
};

struct GroupRoom {
  uint32_t tile;
  uint32_t query;
  uint32_t scores;
  float* exchange;
  int barrier;
};

// Records beyond the visible keys may hold anything, NaN included, which a weight of zero would not silence.
__device__ void ClearRows(const GroupRoom& room, int visible) {
  const int chunks = (kKeys - visible) * 8;
  for (int i = threadIdx.x % 128; i < chunks * kPanels; i += 128) {
    const uint32_t at = room.tile + i / chunks * kPanelBytes + visible * 128 + i % chunks * 16;
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
  h::FenceAsyncProxy();
  h::NamedBarrier(room.barrier, 128);
}

// One tile of which `visible` keys are seen.
template <int kN>
__device__ void TakeTile(const GroupRoom& room, int visible, float scale_log2, Running<kN>& running) {
  if (visible < kKeys) ClearRows(room, visible);
  float s[kN / 2];
#pragma unroll
  for (float& x : s) x = 0;
  h::WgmmaFence();
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      h::Wgmma<kN, 0>(s, h::Operand(room.tile + p * kPanelBytes + k * 32),
                      h::Operand(room.query + p * kN * 128 + k * 32));
    }
  }
  h::WgmmaCommit();
  h::WgmmaWait<0>();

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  const int key = warp * 16 + lane / 4;  // and key + 8
  float largest[kN / 4];
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& x = s[4 * j + i];
      x = key + i / 2 * 8 < visible ? x * scale_log2 : -INFINITY;
    }
    largest[2 * j] = fmaxf(s[4 * j], s[4 * j + 2]);
    largest[2 * j + 1] = fmaxf(s[4 * j + 1], s[4 * j + 3]);
  }
  ReduceKeys<kN, true>(largest, room.exchange, room.barrier);
  float factor[kN / 4];
  bool same = true;
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
    const float max = fmaxf(running.max[i], largest[i]);
    factor[i] = exp2f(running.max[i] - max);
    same &= max == running.max[i];
    running.max[i] = max;
  }
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = exp2f(s[4 * j + i] - running.max[2 * j + i % 2]);
    running.sum[2 * j] = running.sum[2 * j] * factor[2 * j] + p[0] + p[2];
    running.sum[2 * j + 1] = running.sum[2 * j + 1] * factor[2 * j + 1] + p[1] + p[3];
    // Rows of heads with the keys along them, swizzled as the product reads them.
    const int head = j * 8 + lane % 8;
    const int chunk = warp * 2 + lane / 8 % 2;
    StoreTransposed2(room.scores + head * 128 + ((chunk ^ head % 8) * 16), h::PackBf16(p[0], p[1]),
                     h::PackBf16(p[2], p[3]));
  }
  if (__any_sync(0xFFFFFFFFu, !same)) {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) running.out[m * (kN / 2) + i] *= factor[i / 4 * 2 + i % 2];
    }
  }
  h::FenceAsyncProxy();
  h::NamedBarrier(room.barrier, 128);
  h::WgmmaFence();
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      h::Wgmma<kN, 1>(running.out + m * (kN / 2), h::Operand(room.tile + m * kPanelBytes + k * 2048),
                      h::Operand(room.scores + k * 32));
    }
  }
  h::WgmmaCommit();
  h::WgmmaWait<0>();
}

// The share's queries of kN heads from `first_head` on into swizzled panels, by both groups.
template <int kN>
__device__ void LoadQuery(const DecodeParams& p, int row, int first_head, uint32_t query) {
  for (int i = threadIdx.x; i < kN * (kRecord / 8); i += kGroups * 128) {
    const int head = i / (kRecord / 8);
    const int chunk = i % (kRecord / 8);
    uint4 v = {0, 0, 0, 0};
    if (first_head + head < p.num_heads) {
      v = reinterpret_cast<const uint4*>(
          p.q)[(static_cast<int64_t>(row) * p.num_heads + first_head + head) * (kRecord / 8) + chunk];
    }
    const uint32_t at = query + chunk / 8 * (kN * 128) + head * 128 + ((chunk % 8 ^ head % 8) * 16);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  }
  h::FenceAsyncProxy();
}

constexpr int kBothBarrier = 3;

// Joins the two groups' results of a share and writes them to its slot. `handover`: room for a group's O^T,
// [kN * 4][128] floats; `other`: [2][kN].
template <int kN>
__device__ void JoinGroups(const DecodeParams& p, int slot, int first_head, int group, float* handover,
                           float* other, float* exchange, Running<kN>& running) {
  constexpr int kValues = 8 * (kN / 2);
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const int warp = thread / 32;
  ReduceKeys<kN, false>(running.sum, exchange, 1 + group);
  h::NamedBarrier(kBothBarrier,
                  kGroups * 128);  // nobody reads queries or scores any more: the handover's room
  if (group == 1) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) handover[i * 128 + thread] = running.out[i];
    if (thread < 4) {
#pragma unroll
      for (int i = 0; i < kN / 4; ++i) {
        other[i / 2 * 8 + lane * 2 + i % 2] = running.max[i];
        other[kN + i / 2 * 8 + lane * 2 + i % 2] = running.sum[i];
      }
    }
  }
  h::NamedBarrier(kBothBarrier, kGroups * 128);
  if (group != 0) return;
  float mine[kN / 4], theirs[kN / 4];
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
    const int head = i / 2 * 8 + lane % 4 * 2 + i % 2;
    const float max = fmaxf(running.max[i], other[head]);
    mine[i] = exp2f(running.max[i] - max);
    theirs[i] = exp2f(other[head] - max);
    running.max[i] = max;
    running.sum[i] = running.sum[i] * mine[i] + other[kN + head] * theirs[i];
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int of = i % (kN / 2) / 4 * 2 + i % 2;
    running.out[i] = running.out[i] * mine[of] + handover[i * 128 + thread] * theirs[of];
  }
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
    const int head = first_head + i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (head >= p.num_heads) continue;
    const int64_t at = static_cast<int64_t>(slot) * p.num_heads + head;
    if (thread < 4) {
      p.max[at] = running.max[i];
      p.sum[at] = running.sum[i];
    }
#pragma unroll
    for (int m = 0; m < 8; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        p.out[at * kRank + m * 64 + warp * 16 + r * 8 + lane / 4] =
            running.out[m * (kN / 2) + i / 2 * 4 + r * 2 + i % 2];
      }
    }
  }
}

template <int kN>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    DecodeKernel(const __grid_constant__ CUtensorMap records, const DecodeParams p) {
  using L = Layout<kN>;
  extern __shared__ uint8_t raw[];
  __shared__ uint64_t barriers[2 * kGroups];
  uint8_t* memory = raw + ((1024 - h::SharedAddress(raw) % 1024) % 1024);
  const uint32_t base = h::SharedAddress(memory);
  const Table table{reinterpret_cast<int*>(memory + L::kVisible),
                    reinterpret_cast<int*>(memory + L::kFirstBlock),
                    reinterpret_cast<int*>(memory + L::kFirstTile)};
  const uint32_t full = h::SharedAddress(barriers);
  const uint32_t empty = full + 8 * kGroups;
  if (threadIdx.x == 0) {
    for (int g = 0; g < kGroups; ++g) {
      h::BarrierInit(full + 8 * g, 1);
      h::BarrierInit(empty + 8 * g, 4);  // warps
    }
    h::BarrierInitFence();
  }
  MakeTable(p, table);
  const int group = threadIdx.x / 128;
  if (group == kGroups) {
    h::LowerRegisters<24>();
    if (threadIdx.x == kGroups * 128) Produce(&records, p, table, base, full, empty);
    return;
  }
  h::RaiseRegisters<240>();
  const GroupRoom room{base + group * kTileBytes, base + L::kQuery, base + L::kScores + group * kN * 128,
                       reinterpret_cast<float*>(memory + L::kExchange) + group * 4 * kN, 1 + group};
  const int first_head = blockIdx.y * kN;
  Running<kN> running;
  Shares shares(table, p.rows, blockIdx.x, gridDim.x);
  Share share;
  uint32_t count = 0;
  while (shares.Next(share)) {
    LoadQuery<kN>(p, share.row, first_head, room.query);
    h::NamedBarrier(kBothBarrier, kGroups * 128);
    running.Clear();
    const int visible = table.visible[share.row];
    for (int t = share.begin; t < share.end; ++t, ++count) {
      if (static_cast<int>(count % kGroups) != group) continue;
      h::BarrierWait(full + 8 * group, count / kGroups & 1);
      TakeTile<kN>(room, min(kKeys, visible - t * kKeys), p.scale_log2, running);
      if (threadIdx.x % 32 == 0) h::BarrierArrive(empty + 8 * group);
    }
    JoinGroups<kN>(p, blockIdx.x + share.row, first_head, group, reinterpret_cast<float*>(memory + L::kQuery),
                   reinterpret_cast<float*>(memory + L::kOther), room.exchange, running);
    h::NamedBarrier(kBothBarrier, kGroups * 128);
  }
}

constexpr int kMergeWarps = 8;
constexpr int kMergeColumns = 128;  // of a block

// One row, head and piece of the latents: shares in order, each warp every eighth, then the warps in order.
__global__ void __launch_bounds__(kMergeWarps * 32)
    MergeKernel(DecodeParams p, int blocks, __nv_bfloat16* out, float* lse) {
  __shared__ float4 partial[kMergeWarps][32];
  const int head = blockIdx.x;
  const int row = blockIdx.z;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t total = p.first_tile[p.rows];
  const int begin = p.first_tile[row];
  const int end = p.first_tile[row + 1];
  int first = 0, last = -1;  // blocks that hold its shares
  if (end > begin) {
    const int64_t sharers = Sharers(total, blocks);
    first = static_cast<int>(((begin + 1) * sharers - 1) / total);
    last = static_cast<int>((end * sharers - 1) / total);
  }
  float max = -INFINITY;
  for (int i = first + lane; i <= last; i += 32) {
    max = fmaxf(max, p.max[static_cast<int64_t>(i + row) * p.num_heads + head]);
  }
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, step));
  float4 sum = {0, 0, 0, 0};
  const int column = blockIdx.y * kMergeColumns + lane * 4;
#pragma unroll 4
  for (int i = first + warp; i <= last; i += kMergeWarps) {
    const int64_t at = static_cast<int64_t>(i + row) * p.num_heads + head;
    const float weight = exp2f(p.max[at] - max);
    const float4 v = *reinterpret_cast<const float4*>(p.out + at * kRank + column);
    sum.x += weight * v.x;
    sum.y += weight * v.y;
    sum.z += weight * v.z;
    sum.w += weight * v.w;
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp != 0) return;
  float exponentials = 0;
  for (int i = first; i <= last; ++i) {
    const int64_t at = static_cast<int64_t>(i + row) * p.num_heads + head;
    exponentials += exp2f(p.max[at] - max) * p.sum[at];
  }
  for (int w = 1; w < kMergeWarps; ++w) {
    const float4 v = partial[w][lane];
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  const float factor = last >= first ? 1.0f / exponentials : 0.0f;
  const int64_t of = static_cast<int64_t>(row) * p.num_heads + head;
  const uint2 packed = {h::PackBf16(sum.x * factor, sum.y * factor),
                        h::PackBf16(sum.z * factor, sum.w * factor)};
  *reinterpret_cast<uint2*>(out + of * kRank + column) = packed;
  if (lse != nullptr && blockIdx.y == 0 && lane == 0) {
    lse[of] = last >= first ? (max + log2f(exponentials)) / kLog2e : -INFINITY;
  }
}

template <int kN>
cudaError_t LaunchDecode(const CUtensorMap& records, const DecodeParams& params, int blocks, int head_blocks,
                         cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      DecodeKernel<kN>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout<kN>::kDynamic);
  if (error != cudaSuccess) return error;
  DecodeKernel<kN>
      <<<dim3(blocks, head_blocks), kDecodeThreads, Layout<kN>::kDynamic, stream>>>(records, params);
  return cudaGetLastError();
}

size_t Rounded(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// An upper bound of the blocks of a launch: multiprocessors of any part with this architecture.
constexpr int kMaxBlocks = 160;

}  // namespace

size_t MlaDecodeWorkspaceBytes(int rows, int num_heads) {
  const auto slots = static_cast<size_t>(kMaxBlocks + rows) * static_cast<size_t>(num_heads);
  return Rounded(static_cast<size_t>(rows + 1) * 4) + 2 * Rounded(slots * 4) + slots * kRank * 4;
}

cudaError_t MlaDecodeHopper(const MlaDecodeArgs& args, cudaStream_t stream) {
  const MlaPool& pool = args.pool;
  if (pool.rank != kRank || pool.rope != kRecord - kRank || pool.block_tokens <= 0 ||
      pool.block_tokens % kKeys != 0 || args.rows < 0 || args.rows > kMlaDecodeRows || args.num_heads <= 0 ||
      reinterpret_cast<uintptr_t>(args.q) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(args.workspace) % 256 != 0) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  alignas(64) CUtensorMap records;
  const auto tokens = static_cast<uint64_t>(pool.blocks * pool.block_tokens);
  cudaError_t error =
      EncodeTensorMap(&records, pool.data, {64, tokens, kPanels}, {kRecord * 2, 128}, {64, kKeys, kPanels});
  int device = 0, processors = 0;
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;

  const int heads = args.num_heads > 16 ? kMaxHeads : args.num_heads > 8 ? 16 : 8;
  const int head_blocks = (args.num_heads + heads - 1) / heads;
  const int blocks = std::max(1, std::min(processors, kMaxBlocks) / head_blocks);
  const auto slots = static_cast<size_t>(kMaxBlocks + args.rows) * static_cast<size_t>(args.num_heads);
  char* at = static_cast<char*>(args.workspace);
  DecodeParams params{args.runs,           args.q,  args.rows, args.num_heads, pool.block_tokens,
                      args.scale * kLog2e, nullptr, nullptr,   nullptr,        nullptr};
  params.first_tile = reinterpret_cast<int32_t*>(at);
  at += Rounded(static_cast<size_t>(args.rows + 1) * 4);
  params.max = reinterpret_cast<float*>(at);
  at += Rounded(slots * 4);
  params.sum = reinterpret_cast<float*>(at);
  at += Rounded(slots * 4);
  params.out = reinterpret_cast<float*>(at);
  error = heads == 32   ? LaunchDecode<32>(records, params, blocks, head_blocks, stream)
          : heads == 16 ? LaunchDecode<16>(records, params, blocks, head_blocks, stream)
                        : LaunchDecode<8>(records, params, blocks, head_blocks, stream);
  if (error != cudaSuccess) return error;
  MergeKernel<<<dim3(args.num_heads, kRank / kMergeColumns, args.rows), kMergeWarps * 32, 0, stream>>>(
      params, blocks, args.out, args.lse);
  return cudaGetLastError();
}

}  // namespace perigee::kernels::cuda
