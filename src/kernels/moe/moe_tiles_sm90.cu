#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/hopper-inl.cuh"
#include "kernels/moe/moe_sm90_parts.h"
#include "kernels/tensor_map.h"

// Grouped products with sizes on the device. The weights are the M side of the product and the entries of one
// expert the N side, whose extent a tile chooses in steps of 16: an expert with 530 entries takes three tiles
// of 176 or 192, where tiles of 128 rows would compute 640. A cluster of two blocks takes neighbouring tiles
// of weights and shares the entries' half of the traffic by multicast.
namespace perigee::kernels::cuda {
namespace {

namespace h = hopper;

constexpr int kTileM = 128;  // rows of weights of a block
constexpr int kTileN = 256;  // entries at most
constexpr int kTileK = 64;
constexpr int kStages = 4;
constexpr int kWeightBytes = kTileM * kTileK * 2;
constexpr int kStageBytes = kWeightBytes + kTileN * kTileK * 2;
constexpr int kWarps = 8;            // that compute; one more warpgroup copies
constexpr int kStagingBytes = 2048;  // of a warp: results on their way to rows
constexpr int kSharedBytes = kStages * kStageBytes + kWarps * kStagingBytes + 1024;
constexpr int kThreads = (kWarps + 4) * 32;
constexpr int kBoxes = 5;  // boxes of 128, 64, 32, 16, 8 entries

struct EntryMaps {
  CUtensorMap box[kBoxes];
};

struct TileParams {
  const CUtensorMap* weights;  // of each expert, in device memory
  const MoeTile* tiles;
  const int32_t* num_tiles;
  __nv_bfloat16* out;  // [entries, columns]
  int columns;
  int pairs;  // of tiles of weights: ceil(rows of weights / 256)
  int steps;  // of kTileK
};

// State of the ring of stages, of the side that fills it or of the one that empties it.
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

struct Shared {
  uint32_t stages;
  uint32_t staging;
  uint32_t full;
  uint32_t empty;
  __device__ uint32_t Full(int s) const { return full + 8 * s; }
  __device__ uint32_t Empty(int s) const { return empty + 8 * s; }
};

// The tile of weights `m` of expert maps: for the up product kTileM / 2 columns, gate and up alternating.
template <bool kUp>
__device__ void LoadWeights(uint32_t to, const CUtensorMap* map, uint32_t barrier, int k, int m) {
  if constexpr (kUp) {
    h::TensorLoad4(to, map, barrier, k, 0, 0, m * (kTileM / 16));
  } else {
    h::TensorLoad2(to, map, barrier, k, m * kTileM);
  }
}

// One thread fills stages for every tile of this cluster.
template <bool kUp>
__device__ void Produce(const EntryMaps& entries, const TileParams& p, const Shared& shared, uint32_t rank) {
  Ring ring;
  const int total = *p.num_tiles * p.pairs;
  for (int t = blockIdx.x / 2; t < total; t += gridDim.x / 2) {
    const MoeTile tile = p.tiles[t / p.pairs];
    const int m = t % p.pairs * 2 + static_cast<int>(rank);
    const CUtensorMap* weights = p.weights + tile.expert;
    // The map was written by a copy, not by this kernel's parameters: see it through the copy engine.
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(weights) : "memory");
    const int half = tile.blocks * 8;  // entries that this block loads for both
    const int first = tile.first + static_cast<int>(rank) * half;
    for (int step = 0; step < p.steps; ++step, ring.Next()) {
      h::BarrierWait(shared.Empty(ring.stage), ring.phase ^ 1);
      const uint32_t full = shared.Full(ring.stage);
      const uint32_t stage = shared.stages + ring.stage * kStageBytes;
      h::BarrierExpect(full, kWeightBytes + tile.blocks * 16 * kTileK * 2);
      LoadWeights<kUp>(stage, weights, full, step * kTileK, m);
      uint32_t to = stage + kWeightBytes + rank * half * kTileK * 2;
      int at = first;
#pragma unroll
      for (int b = 0; b < kBoxes; ++b) {
        const int rows = 128 >> b;
        if ((half & rows) == 0) continue;
        h::TensorLoad2Multicast(to, &entries.box[b], full, 3, step * kTileK, at);
        to += rows * kTileK * 2;
        at += rows;
      }
    }
  }
}

__device__ __forceinline__ float SiluMul(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

__device__ __forceinline__ void StoreTransposed2(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
               : "memory");
}

__device__ __forceinline__ uint4 LoadShared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Results of a warp to rows of entries: 8 columns (up, after SwiGLU) or 16 (down) of kN entries.
template <bool kUp, int kN>
__device__ void StoreTile(const float* acc, const MoeTile& tile, int column, const TileParams& p,
                          uint32_t staging) {
  constexpr int kRowBytes = kUp ? 16 : 32;
  constexpr int kPieces = kRowBytes / 16;
  constexpr int kEntries = kStagingBytes / kRowBytes;  // that the staging room holds
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int base = 0; base < kN; base += kEntries) {
    const int here = min(kEntries, kN - base);
#pragma unroll
    for (int j = base / 8; j < (base + kEntries) / 8 && j < kN / 8; j += kUp ? 2 : 1) {
      const float* d = acc + 4 * j;
      if constexpr (kUp) {
        const uint32_t low = h::PackBf16(SiluMul(d[0], d[2]), SiluMul(d[1], d[3]));
        const uint32_t high = h::PackBf16(SiluMul(d[4], d[6]), SiluMul(d[5], d[7]));
        StoreTransposed2(staging + (j * 8 - base + lane % 16) * kRowBytes, low, high);
      } else {
        StoreTransposed2(staging + (j * 8 - base + lane % 8) * kRowBytes + lane / 8 % 2 * 16,
                         h::PackBf16(d[0], d[1]), h::PackBf16(d[2], d[3]));
      }
    }
    __syncwarp();
    for (int i = lane; i < here * kPieces; i += 32) {
      const int entry = base + i / kPieces;
      const int col = column + i % kPieces * 8;
      if (entry < tile.count && col < p.columns) {
        *reinterpret_cast<uint4*>(p.out + static_cast<int64_t>(tile.first + entry) * p.columns + col) =
            LoadShared16(staging + i * 16);
      }
    }
    __syncwarp();
  }
}

// One warpgroup's 64 rows of weights against kN entries.
template <bool kUp, int kN>
__device__ void ComputeTile(const MoeTile& tile, int m, const TileParams& p, const Shared& shared,
                            Ring& ring) {
  const int warp = threadIdx.x / 32;
  const int group = warp / 4;
  float acc[kN / 2];
  // Not by the first product's flag: registers without a first value would be live in every other size's
  // code.
#pragma unroll
  for (float& a : acc) a = 0;
  int previous = -1;
  const auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) {
      h::BarrierArriveAt(shared.Empty(stage), 0);
      h::BarrierArriveAt(shared.Empty(stage), 1);
    }
  };
  for (int step = 0; step < p.steps; ++step, ring.Next()) {
    h::BarrierWait(shared.Full(ring.stage), ring.phase);
    const uint32_t weights = shared.stages + ring.stage * kStageBytes + group * (kWeightBytes / 2);
    const uint32_t entries = shared.stages + ring.stage * kStageBytes + kWeightBytes;
    h::WgmmaFence();
#pragma unroll
    for (int k = 0; k < kTileK / 16; ++k) {
      h::Wgmma<kN, 0>(acc, h::Operand(weights + k * 32), h::Operand(entries + k * 32));
    }
    h::WgmmaCommit();
    h::WgmmaWait<1>();
    if (previous >= 0) release(previous);
    previous = ring.stage;
  }
  h::WgmmaWait<0>();
  release(previous);
  constexpr int kColumns = kUp ? kTileM / 2 : kTileM;
  StoreTile<kUp, kN>(acc, tile, m * kColumns + warp * (kColumns / kWarps), p,
                     shared.staging + warp * kStagingBytes);
}

template <bool kUp>
__device__ void Consume(const TileParams& p, const Shared& shared, uint32_t rank) {
  Ring ring;
  const int total = *p.num_tiles * p.pairs;
  for (int t = blockIdx.x / 2; t < total; t += gridDim.x / 2) {
    const MoeTile tile = p.tiles[t / p.pairs];
    const int m = t % p.pairs * 2 + static_cast<int>(rank);
    switch (tile.blocks) {
#define PERIGEE_TILE(blocks)                                 \
  case blocks:                                               \
    ComputeTile<kUp, 16 * blocks>(tile, m, p, shared, ring); \
    break;
      PERIGEE_TILE(1)
      PERIGEE_TILE(2)
      PERIGEE_TILE(3)
      PERIGEE_TILE(4)
      PERIGEE_TILE(5)
      PERIGEE_TILE(6)
      PERIGEE_TILE(7)
      PERIGEE_TILE(8)
      PERIGEE_TILE(9)
      PERIGEE_TILE(10)
      PERIGEE_TILE(11)
      PERIGEE_TILE(12)
      PERIGEE_TILE(13)
      PERIGEE_TILE(14)
      PERIGEE_TILE(15)
      PERIGEE_TILE(16)
#undef PERIGEE_TILE
      default:
        __trap();
    }
  }
}

template <bool kUp>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    TilesKernel(const __grid_constant__ EntryMaps entries, const TileParams p) {
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * kStages];
  Shared shared;
  shared.stages = (h::SharedAddress(memory) + 1023) & ~1023u;
  shared.staging = shared.stages + kStages * kStageBytes;
  shared.full = h::SharedAddress(barriers);
  shared.empty = shared.full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      h::BarrierInit(shared.Full(s), 1);
      h::BarrierInit(shared.Empty(s), 2 * kWarps);  // the warps of both blocks
    }
    h::BarrierInitFence();
  }
  h::ClusterSync();
  const uint32_t rank = h::ClusterRank();
  // 384 threads start with 168 registers each; the copying ones hand theirs over.
  if (threadIdx.x / 32 < kWarps) {
    h::RaiseRegisters<232>();
    Consume<kUp>(p, shared, rank);
  } else {
    h::LowerRegisters<40>();
    if (threadIdx.x == kWarps * 32) Produce<kUp>(entries, p, shared, rank);
  }
  __syncwarp();
  h::ClusterSync();  // no block leaves while the other may still write to it
}

cudaError_t MakeEntryMaps(const __nv_bfloat16* base, int64_t entries, int columns, EntryMaps& maps) {
  for (int b = 0; b < kBoxes; ++b) {
    const auto width = static_cast<uint64_t>(columns);
    const cudaError_t error = EncodeTensorMap(&maps.box[b], base, {width, static_cast<uint64_t>(entries)},
                                              {width * 2}, {kTileK, static_cast<uint32_t>(128 >> b)});
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <bool kUp>
cudaError_t Launch(const MoeForwardArgs& args, const MoePlan& plan, const __nv_bfloat16* in,
                   __nv_bfloat16* out, cudaStream_t stream) {
  const int held = args.shape.held();
  const int64_t entries = args.rows * (args.top_k + (args.shape.shared ? 1 : 0));
  const int inner = kUp ? args.shape.hidden : args.shape.width;
  const int columns = kUp ? args.shape.width : args.shape.hidden;
  EntryMaps maps;
  cudaError_t error = MakeEntryMaps(in, entries, inner, maps);
  if (error != cudaSuccess) return error;
  TileParams params;
  params.weights = static_cast<const CUtensorMap*>(args.maps) + (kUp ? 0 : held);
  params.tiles = plan.tiles;
  params.num_tiles = plan.num_tiles;
  params.out = out;
  params.columns = columns;
  const int pair_columns = kUp ? kTileM : 2 * kTileM;
  params.pairs = (columns + pair_columns - 1) / pair_columns;
  params.steps = (inner + kTileK - 1) / kTileK;
  int device = 0, processors = 0;
  error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(TilesKernel<kUp>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  }
  if (error != cudaSuccess) return error;
  TilesKernel<kUp><<<processors / 2 * 2, kThreads, kSharedBytes, stream>>>(maps, params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t MoeTiles(const MoeForwardArgs& args, const MoePlan& plan, cudaStream_t stream) {
  const cudaError_t error = Launch<true>(args, plan, plan.rows, plan.act, stream);
  return error == cudaSuccess ? Launch<false>(args, plan, plan.act, plan.rows, stream) : error;
}

}  // namespace perigee::kernels::cuda
