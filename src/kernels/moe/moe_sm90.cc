#include "kernels/moe/moe_sm90.h"

#include <algorithm>

#include "kernels/moe/moe_sm90_parts.h"
#include "kernels/tensor_map.h"

namespace perigee::kernels::cuda {
namespace {

constexpr int64_t kRowBlock = 16384;

// Hands out aligned pieces; with no memory it only measures.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <typename T>
  T* Take(int64_t count) {
    std::byte* at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  size_t used() const { return used_; }

 private:
  std::byte* memory_;
  size_t used_ = 0;
};

MoePlan Layout(const MoeShape& shape, int64_t rows, int top_k, Pieces& pieces) {
  const int64_t entries = rows * (top_k + (shape.shared ? 1 : 0));
  MoePlan plan;
  plan.counts = pieces.Take<int32_t>(shape.held());
  plan.next = pieces.Take<int32_t>(shape.held());
  plan.num_tiles = pieces.Take<int32_t>(1);
  plan.tiles = pieces.Take<MoeTile>(shape.held() + entries / 256 + 1);
  plan.place = pieces.Take<int32_t>(rows * (top_k + 1));
  plan.row_of = pieces.Take<int32_t>(entries);
  plan.rows = pieces.Take<__nv_bfloat16>(entries * shape.hidden);
  plan.act = pieces.Take<__nv_bfloat16>(entries * shape.width);
  return plan;
}

bool Aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

bool Valid(const MoeForwardArgs& a) {
  return MoeTakes(a.shape) && a.rows >= 0 && a.top_k > 0 && a.top_k <= kMoeMaxTopK && a.x_stride % 8 == 0 &&
         a.y_stride % 8 == 0 && Aligned(a.x) && Aligned(a.y) && Aligned(a.addend) &&
         reinterpret_cast<uintptr_t>(a.workspace) % 256 == 0;
}

cudaError_t ForwardBlock(const MoeForwardArgs& args, cudaStream_t stream) {
  Pieces pieces(args.workspace);
  const MoePlan plan = Layout(args.shape, args.rows, args.top_k, pieces);
  if (args.rows <= kMoeSmallRows) return MoeStream(args, plan, stream);
  cudaError_t error = MoePlanTiles(args, plan, stream);
  if (error == cudaSuccess) error = MoeTiles(args, plan, stream);
  return error == cudaSuccess ? MoeCombine(args, plan, stream) : error;
}

}  // namespace

bool MoeTakes(const MoeShape& shape) {
  return shape.experts > 0 && shape.held() <= kMoeMaxExperts && shape.hidden > 0 && shape.hidden % 8 == 0 &&
         shape.width > 0 && shape.width % 8 == 0;
}

size_t MoeWorkspaceBytes(const MoeShape& shape, int64_t rows, int top_k) {
  Pieces pieces(nullptr);
  Layout(shape, std::min(rows, kRowBlock), top_k, pieces);
  return pieces.used();
}

cudaError_t MoeTensorMaps(const MoeShape& shape, std::span<const __nv_bfloat16* const> gate_up,
                          std::span<const __nv_bfloat16* const> down, std::vector<std::byte>& maps) {
  const auto held = static_cast<size_t>(shape.held());
  if (gate_up.size() != held || down.size() != held) return cudaErrorInvalidValue;
  maps.resize(2 * held * sizeof(CUtensorMap));
  const auto h = static_cast<uint64_t>(shape.hidden);
  const auto w = static_cast<uint64_t>(shape.width);
  for (size_t e = 0; e < held; ++e) {
    alignas(64) CUtensorMap map;
    // Groups of 8 gate rows and the 8 up rows of the same columns alternate in shared memory, so that one
    // thread of the product holds both.
    cudaError_t error =
        EncodeTensorMap(&map, gate_up[e], {h, 8, 2, w / 8}, {h * 2, w * h * 2, 8 * h * 2}, {64, 8, 2, 8});
    if (error != cudaSuccess) return error;
    std::copy_n(reinterpret_cast<const std::byte*>(&map), sizeof(map), maps.data() + e * sizeof(map));
    error = EncodeTensorMap(&map, down[e], {w, h}, {w * 2}, {64, 128});
    if (error != cudaSuccess) return error;
    std::copy_n(reinterpret_cast<const std::byte*>(&map), sizeof(map),
                maps.data() + (held + e) * sizeof(map));
  }
  return cudaSuccess;
}

cudaError_t MoeForward(const MoeForwardArgs& args, cudaStream_t stream) {
  if (!Valid(args)) return cudaErrorInvalidValue;
  for (int64_t row = 0; row < args.rows; row += kRowBlock) {
    MoeForwardArgs block = args;
    block.rows = std::min(kRowBlock, args.rows - row);
    block.x += row * args.x_stride;
    block.y += row * args.y_stride;
    block.chosen += row * args.top_k;
    block.weights += row * args.top_k;
    if (args.addend != nullptr) block.addend += row * args.shape.hidden;
    if (const cudaError_t error = ForwardBlock(block, stream); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace perigee::kernels::cuda
