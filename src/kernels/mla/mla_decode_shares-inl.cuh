#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/mla/mla_sm90.h"

// How the tiles of all rows of a decode step are cut into shares of blocks. Included by mla_decode_sm90.cu
// only.
namespace perigee::kernels::cuda {
namespace {

constexpr int kKeys = 64;                // of a tile
constexpr int kDecodeThreads = 3 * 128;  // two warpgroups compute, one copies

struct DecodeParams {
  MlaRuns runs;
  const __nv_bfloat16* q;
  int rows;
  int num_heads;
  int block_tokens;
  float scale_log2;
  int32_t* first_tile;  // [rows + 1]: tiles of 64 keys before each row
  float* max;           // [slots, num_heads], of scores times scale_log2
  float* sum;           // [slots, num_heads]
  float* out;           // [slots, num_heads, kRank], not divided by the sum
};

// What every thread of a block knows of the step.
struct Table {
  int* visible;      // keys of a row
  int* first_block;  // place of its block table
  int* first_tile;
};

// Reads the runs into the table; the sums by the first warp.
__device__ void MakeTable(const DecodeParams& p, const Table& table) {
  for (int r = threadIdx.x; r < p.rows; r += kDecodeThreads) table.visible[r] = 0;
  __syncthreads();
  for (int s = threadIdx.x; s < p.runs.count; s += kDecodeThreads) {
    const Segment run = p.runs.list[s];
    for (int64_t i = 0; i < run.q_len; ++i) {
      const int64_t r = run.q_begin + i;
      if (r >= p.rows) break;
      table.visible[r] = static_cast<int>(max(run.kv_len - run.q_len + i + 1, int64_t{0}));
      table.first_block[r] = run.first_block;
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int before = 0;
    for (int base = 0; base < p.rows; base += 32) {
      int tiles = base + lane < p.rows ? (table.visible[base + lane] + kKeys - 1) / kKeys : 0;
      const int own = tiles;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFu, tiles, step);
        if (lane >= step) tiles += other;
      }
      if (base + lane < p.rows) table.first_tile[base + lane] = before + tiles - own;
      before += __shfl_sync(0xFFFFFFFFu, tiles, 31);
    }
    if (lane == 0) table.first_tile[p.rows] = before;
  }
  __syncthreads();
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    for (int r = threadIdx.x; r <= p.rows; r += kDecodeThreads) p.first_tile[r] = table.first_tile[r];
  }
}

// A block's share of one row's tiles.
struct Share {
  int row;
  int begin;  // tiles of the row
  int end;
};

// Blocks that have a share: no more than there are tiles, so that none between two others is empty.
__device__ __forceinline__ int64_t Sharers(int64_t total, int blocks) {
  return total < blocks ? total : blocks;
}

// Walks the shares of block `block` of `blocks`: with n = Sharers, tiles [total * block / n, total * (block +
// 1) / n) of all rows together.
class Shares {
 public:
  __device__ Shares(const Table& table, int rows, int block, int blocks) : table_(table) {
    const int64_t total = table.first_tile[rows];
    const int64_t sharers = Sharers(total, blocks);
    at_ = block < sharers ? static_cast<int>(total * block / sharers) : 0;
    end_ = block < sharers ? static_cast<int>(total * (block + 1) / sharers) : 0;
    int low = 0, high = rows;  // the last row that begins at or before at_
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (table.first_tile[middle] <= at_ ? low : high) = middle;
    }
    row_ = low;
  }
  __device__ bool Next(Share& share) {
    if (at_ >= end_) return false;
    while (table_.first_tile[row_ + 1] <= at_) ++row_;
    const int first = table_.first_tile[row_];
    const int until = min(end_, table_.first_tile[row_ + 1]);
    share = {row_, at_ - first, until - first};
    at_ = until;
    return true;
  }

 private:
  const Table& table_;
  int at_, end_, row_;
};

}  // namespace
}  // namespace perigee::kernels::cuda
