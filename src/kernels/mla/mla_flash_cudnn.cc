#include "kernels/mla/mla_flash_cudnn.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/strings.h"
#include "kernels/mla/mla_flash_runs.h"

namespace perigee::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kLenQ,
  kLenK,
  kOffQ,
  kOffK,
  kOffV,
  kOffO,
  kOffStats,
  kScale
};

constexpr size_t kAlign = 256;
constexpr size_t kLensBytes = MlaFlash::kMaxRuns * sizeof(int32_t);
constexpr size_t kOffsetsBytes = (MlaFlash::kMaxRuns + 1) * sizeof(int64_t);
constexpr size_t kIndexBytes = (2 * kLensBytes + 5 * kOffsetsBytes + kAlign - 1) / kAlign * kAlign;

// What a plan is for. Ragged: any runs of at most these lengths; exact: one run of these.
struct Lengths {
  int64_t runs, q, k;
  bool exact;
  auto operator<=>(const Lengths&) const = default;
};

int64_t UpToPower(int64_t n, int64_t least) {
  return std::max(least, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))));
}

Lengths Ragged(int64_t runs, int64_t q, int64_t k) {
  return {UpToPower(runs, 1), UpToPower(q, 128), UpToPower(k, 128), false};
}

StatusOr<cudnnHandle_t> NewHandle() {
  cudnnHandle_t handle = nullptr;
  const cudnnStatus_t status = cudnnCreate(&handle);
  if (status == CUDNN_STATUS_SUCCESS) return handle;
  return Unavailable(StrCat("device cuda: cuDNN does not start: ", cudnnGetErrorString(status),
                            "; needed: all libcudnn*.so.9 of one release where the loader finds them"));
}

MlaFlashIndex IndexAt(void* memory) {
  MlaFlashIndex index;
  char* at = static_cast<char*>(memory);
  for (int64_t** offsets : {&index.q, &index.k, &index.v, &index.out, &index.lse}) {
    *offsets = reinterpret_cast<int64_t*>(at);
    at += kOffsetsBytes;
  }
  index.q_len = reinterpret_cast<int32_t*>(at);
  index.k_len = reinterpret_cast<int32_t*>(at + kLensBytes);
  return index;
}

}  // namespace

class MlaFlash::Impl {
 public:
  Impl(const MlaFlashShape& shape, cudnnHandle_t handle)
      : shape_(shape),
        handle_(handle),
        strides_{shape.q_stride, shape.k_stride, shape.v_stride, int64_t{shape.num_heads} * shape.value,
                 shape.num_heads} {}
  ~Impl() { cudnnDestroy(handle_); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  StatusOr<size_t> Prepare(const Lengths& lengths) {
    StatusOr<Plan*> plan = Find(lengths);
    if (!plan.ok()) return plan.status();
    return plan.value()->workspace + RoomBytes(lengths);
  }

  Status Launch(const MlaFlashArgs& args, std::span<const MlaFlashRun> runs, void* workspace, size_t bytes,
                cudaStream_t stream) {
    const Lengths exact{1, runs[0].q_len, runs[0].k_len, true};
    const bool is_exact = runs.size() == 1 && plans_.count(exact) != 0;
    Lengths lengths = exact;
    if (!is_exact) {
      int64_t q_len = 0, k_len = 0;
      for (const MlaFlashRun& run : runs) {
        q_len = std::max(q_len, run.q_len);
        k_len = std::max(k_len, run.k_len);
      }
      lengths = Ragged(static_cast<int64_t>(runs.size()), q_len, k_len);
    }
    StatusOr<Plan*> plan = Find(lengths);
    if (!plan.ok()) return plan.status();
    PERIGEE_CHECK(bytes >= plan.value()->workspace + RoomBytes(lengths));
    if (cudnnSetStream(handle_, stream) != CUDNN_STATUS_SUCCESS) return InternalError("cuDNN took no stream");
    return is_exact ? LaunchExact(args, runs[0], *plan.value(), workspace, stream)
                    : LaunchRagged(args, runs, lengths, *plan.value(), workspace, stream);
  }

 private:
  struct Plan {
    std::unique_ptr<fe::graph::Graph> graph;
    size_t workspace = 0;
  };

  using Pointers = std::unordered_map<int64_t, void*>;

  // Workspace of ours before cuDNN's: the index of ragged runs, or the log-sum-exp of one run head by head.
  size_t RoomBytes(const Lengths& l) const {
    const size_t lse = static_cast<size_t>(l.q) * static_cast<size_t>(shape_.num_heads) * sizeof(float);
    return l.exact ? (lse + kAlign - 1) / kAlign * kAlign : kIndexBytes;
  }

  Status LaunchRagged(const MlaFlashArgs& args, std::span<const MlaFlashRun> runs, const Lengths& lengths,
                      Plan& plan, void* workspace, cudaStream_t stream) {
    MlaFlashRuns batch{};
    std::copy(runs.begin(), runs.end(), batch.run);
    const MlaFlashIndex index = IndexAt(workspace);
    const cudaError_t error =
        MlaFlashFillIndex(batch, static_cast<int>(lengths.runs), strides_, index, stream);
    if (error != cudaSuccess)
      return InternalError(std::string("attention index: ") + cudaGetErrorString(error));
    float scale = args.scale;
    Pointers pointers = {{kQ, const_cast<__nv_bfloat16*>(args.q)},
                         {kK, const_cast<__nv_bfloat16*>(args.k)},
                         {kV, const_cast<__nv_bfloat16*>(args.v)},
                         {kO, args.out},
                         {kStats, args.lse},
                         {kLenQ, index.q_len},
                         {kLenK, index.k_len},
                         {kOffQ, index.q},
                         {kOffK, index.k},
                         {kOffV, index.v},
                         {kOffO, index.out},
                         {kOffStats, index.lse},
                         {kScale, &scale}};
    return Execute(plan, pointers, static_cast<char*>(workspace) + kIndexBytes);
  }

  Status LaunchExact(const MlaFlashArgs& args, const MlaFlashRun& run, Plan& plan, void* workspace,
                     cudaStream_t stream) {
    float scale = args.scale;
    auto* lse = static_cast<float*>(workspace);
    Pointers pointers = {{kQ, const_cast<__nv_bfloat16*>(args.q) + run.q_begin * strides_.q},
                         {kK, const_cast<__nv_bfloat16*>(args.k) + run.k_begin * strides_.k},
                         {kV, const_cast<__nv_bfloat16*>(args.v) + run.k_begin * strides_.v},
                         {kO, args.out + run.q_begin * strides_.out},
                         {kStats, lse},
                         {kScale, &scale}};
    const size_t room = RoomBytes({1, run.q_len, run.k_len, true});
    if (Status status = Execute(plan, pointers, static_cast<char*>(workspace) + room); !status.ok())
      return status;
    const cudaError_t error =
        MlaFlashTransposeLse(lse, run.q_len, shape_.num_heads, args.lse + run.q_begin * strides_.lse, stream);
    if (error != cudaSuccess) return InternalError(std::string("log-sum-exp: ") + cudaGetErrorString(error));
    return Status::Ok();
  }

  Status Execute(Plan& plan, Pointers& pointers, void* workspace) {
    auto status = plan.graph->execute(handle_, pointers, workspace);
    return status.is_bad() ? InternalError("cuDNN attention: " + status.get_message()) : Status::Ok();
  }

  StatusOr<Plan*> Find(const Lengths& lengths) {
    if (const auto found = plans_.find(lengths); found != plans_.end()) return &found->second;
    Plan plan{std::make_unique<fe::graph::Graph>(), 0};
    Describe(lengths, *plan.graph);
    auto status = plan.graph->build(handle_, {fe::HeurMode_t::A});
    if (status.is_bad()) {
      return InvalidArgument("cuDNN has no attention kernel for " + std::to_string(shape_.num_heads) +
                             " heads of " + std::to_string(shape_.qk) + " and " +
                             std::to_string(shape_.value) + " with " + std::to_string(lengths.k) +
                             " keys: " + status.get_message());
    }
    int64_t bytes = 0;
    if (plan.graph->get_workspace_size(bytes).is_bad()) return InternalError("cuDNN gave no workspace size");
    plan.workspace = static_cast<size_t>(bytes);
    return &plans_.emplace(lengths, std::move(plan)).first->second;
  }

  void Describe(const Lengths& l, fe::graph::Graph& graph) const {
    const int64_t h = shape_.num_heads;
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto index = [&](const char* name, int64_t uid, int64_t n, fe::DataType_t type) {
      return graph.tensor(fe::graph::Tensor_attributes()
                              .set_name(name)
                              .set_uid(uid)
                              .set_dim({n, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(type));
    };
    const auto offsets = [&](const char* name, int64_t uid) {
      return index(name, uid, l.runs + 1, fe::DataType_t::INT64);
    };
    const auto operand = [&](const char* name, int64_t uid, int64_t s, int64_t d, int64_t row, int64_t head,
                             int64_t offsets_uid) {
      auto t = fe::graph::Tensor_attributes()
                   .set_name(name)
                   .set_uid(uid)
                   .set_dim({l.runs, h, s, d})
                   .set_stride({s * row, head, row, 1});
      if (!l.exact) t.set_ragged_offset(offsets(name, offsets_uid));
      return graph.tensor(t);
    };
    auto q = operand("q", kQ, l.q, shape_.qk, strides_.q, shape_.qk, kOffQ);
    auto k = operand("k", kK, l.k, shape_.qk, strides_.k, shape_.k_head_stride, kOffK);
    auto v = operand("v", kV, l.k, shape_.value, strides_.v, shape_.v_head_stride, kOffV);
    auto scale = graph.tensor(fe::graph::Tensor_attributes()
                                  .set_name("scale")
                                  .set_uid(kScale)
                                  .set_dim({1, 1, 1, 1})
                                  .set_stride({1, 1, 1, 1})
                                  .set_is_pass_by_value(true)
                                  .set_data_type(fe::DataType_t::FLOAT));
    auto options =
        fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true).set_attn_scale(scale);
    if (shape_.causal) options.set_causal_mask_bottom_right(true);
    if (!l.exact) {
      options.set_padding_mask(true)
          .set_seq_len_q(index("q_len", kLenQ, l.runs, fe::DataType_t::INT32))
          .set_seq_len_kv(index("k_len", kLenK, l.runs, fe::DataType_t::INT32));
    }
    auto [out, stats] = graph.sdpa(q, k, v, options);
    out->set_output(true)
        .set_uid(kO)
        .set_dim({l.runs, h, l.q, shape_.value})
        .set_stride({l.q * strides_.out, shape_.value, strides_.out, 1});
    if (!l.exact) out->set_ragged_offset(offsets("out", kOffO));
    stats->set_output(true)
        .set_uid(kStats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({l.runs, h, l.q, 1})
        .set_stride(l.exact ? std::vector<int64_t>{l.q * h, l.q, 1, 1}
                            : std::vector<int64_t>{l.q * h, 1, h, 1});
    if (!l.exact) stats->set_ragged_offset(offsets("lse", kOffStats));
  }

  const MlaFlashShape shape_;
  const cudnnHandle_t handle_;
  const MlaFlashStrides strides_;
  std::map<Lengths, Plan> plans_;
};

MlaFlash::MlaFlash(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MlaFlash::~MlaFlash() = default;

Status MlaFlash::CheckLibrary() {
  StatusOr<cudnnHandle_t> handle = NewHandle();
  if (!handle.ok()) return handle.status();
  cudnnDestroy(*handle);
  return Status::Ok();
}

StatusOr<std::unique_ptr<MlaFlash>> MlaFlash::Create(const MlaFlashShape& shape) {
  PERIGEE_CHECK(shape.num_heads > 0 && shape.qk % 8 == 0 && shape.value % 8 == 0);
  PERIGEE_ASSIGN_OR_RETURN(cudnnHandle_t const handle, NewHandle());
  return std::unique_ptr<MlaFlash>(new MlaFlash(std::make_unique<Impl>(shape, handle)));
}

StatusOr<size_t> MlaFlash::Prepare(int64_t runs, int64_t q_len, int64_t k_len) {
  return impl_->Prepare(Ragged(std::min(runs, kMaxRuns), q_len, k_len));
}

StatusOr<size_t> MlaFlash::PrepareExact(int64_t q_len, int64_t k_len) {
  return impl_->Prepare({1, q_len, k_len, true});
}

Status MlaFlash::Run(const MlaFlashArgs& args, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  std::vector<MlaFlashRun> runs;
  std::copy_if(args.runs.begin(), args.runs.end(), std::back_inserter(runs),
               [](const MlaFlashRun& r) { return r.q_len > 0 && r.k_len > 0; });
  for (size_t i = 0; i < runs.size(); i += kMaxRuns) {
    const auto count = std::min<size_t>(kMaxRuns, runs.size() - i);
    const Status status =
        impl_->Launch(args, std::span(runs).subspan(i, count), workspace, workspace_bytes, stream);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace perigee::kernels::cuda
