#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/gemm/lt_cuda.h"
#include "kernels/library_cuda.h"
#include "kernels/mla/mla_cuda_parts.h"
#include "kernels/rows/rows.h"
#include "tensor/cuda_check.h"

// Prompt rows: the keys of each sequence are expanded from its records, piece by piece, and cuDNN's kernel
// attends to them. Rows that see more than one piece have their shares merged in fp32.
namespace perigee::kernels::cuda {
namespace {

// Keys expanded at a time: some 0.9 GB for 32 heads of 192 and 128.
constexpr int64_t kRoundKeys = 32768;
// Lengths that are multiples of this recur (full chunks of long prompts): their plans are made for them.
constexpr int64_t kRecurringRows = 4096;

struct Sequence {
  int32_t first_block = 0;
  int64_t keys = 0;  // that some row of it sees
  std::vector<Segment> segments;
};

std::vector<Sequence> BySequence(std::span<const Segment> segments) {
  std::vector<Sequence> sequences;
  for (const Segment& s : segments) {
    if (s.q_len == 0) continue;
    const auto same = [&](const Sequence& x) { return x.first_block == s.first_block; };
    auto found = std::find_if(sequences.begin(), sequences.end(), same);
    if (found == sequences.end()) found = sequences.insert(found, {s.first_block, 0, {}});
    found->keys = std::max(found->keys, s.kv_len);
    found->segments.push_back(s);
  }
  return sequences;
}

// Keys of one sequence in a round: [first_key, first_key + count), expanded as rows from `at`.
struct Piece {
  const Sequence* sequence;
  int64_t first_key;
  int64_t count;
  int64_t at;
};

// A sequence's keys are in one round, or, if they are too many, in rounds of which it begins each.
std::vector<std::vector<Piece>> Rounds(const std::vector<Sequence>& sequences) {
  std::vector<std::vector<Piece>> rounds;
  int64_t room = 0;
  for (const Sequence& s : sequences) {
    for (int64_t key = 0; key < s.keys;) {
      const int64_t left = s.keys - key;
      if (left > room || key > 0) {
        rounds.emplace_back();
        room = kRoundKeys;
      }
      const int64_t count = std::min(left, room);
      rounds.back().push_back({&s, key, count, kRoundKeys - room});
      room -= count;
      key += count;
    }
  }
  return rounds;
}

// The rows that attend to a round's keys.
struct Launches {
  std::vector<MlaFlashRun> whole;        // causal, rows that see no other keys
  std::vector<MlaFlashRun> last;         // causal, rows that saw earlier keys in other rounds
  std::vector<MlaFlashRun> inner;        // rows that see all of these keys and later ones
  std::vector<MlaFlashRun> first_inner;  // of `inner`, those that begin here
};

Launches LaunchesOf(const std::vector<Piece>& round) {
  Launches launches;
  for (const Piece& piece : round) {
    const int64_t end = piece.first_key + piece.count;
    for (const Segment& s : piece.sequence->segments) {
      // Row i sees keys [0, visible + i).
      const int64_t visible = s.kv_len - s.q_len + 1;
      const int64_t begin = std::clamp<int64_t>(piece.first_key - visible + 1, 0, s.q_len);
      const int64_t inner = std::clamp<int64_t>(end - visible + 1, 0, s.q_len);
      if (begin < inner) {
        auto& to = piece.first_key == 0 ? launches.whole : launches.last;
        to.push_back({s.q_begin + begin, inner - begin, piece.at, visible + inner - 1 - piece.first_key});
      }
      if (inner < s.q_len) {
        auto& to = piece.first_key == 0 ? launches.first_inner : launches.inner;
        to.push_back({s.q_begin + inner, s.q_len - inner, piece.at, piece.count});
      }
    }
  }
  return launches;
}

// One call's attention.
class Expanded {
 public:
  Expanded(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights, ConstMatrix q,
           const PagedKvView& cache, const int32_t* block_tables, Matrix out)
      : context_(context),
        dims_(dims),
        weights_(weights),
        pool_(PoolOf(dims, cache)),
        block_tables_(block_tables),
        q_(q),
        out_(out),
        lse_(context.workspace->Floats(q.rows * dims.num_heads)) {}

  // Room for rows whose keys come in several rounds.
  void MakeShares() {
    share_ = context_.Room(q_.rows, out_.cols);
    sum_ = context_.workspace->Floats(q_.rows * out_.cols);
    sum_lse_ = context_.workspace->Floats(q_.rows * dims_.num_heads);
  }

  void Run(const std::vector<Piece>& round) {
    const Workspace::Scope scope(*context_.workspace);
    Expand(round);
    Launches launches = LaunchesOf(round);
    Attend(true, launches.whole, out_);
    if (share_.data == nullptr) return;
    Attend(true, launches.last, share_);
    std::vector<MlaFlashRun> inner = launches.first_inner;
    inner.insert(inner.end(), launches.inner.begin(), launches.inner.end());
    Attend(false, inner, share_);
    for (const MlaFlashRun& run : launches.first_inner) Merge(run, true, false);
    for (const MlaFlashRun& run : launches.inner) Merge(run, false, false);
    for (const MlaFlashRun& run : launches.last) Merge(run, false, true);
  }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(context_.stream.handle); }
  static __nv_bfloat16* Data(const Matrix& m) { return reinterpret_cast<__nv_bfloat16*>(m.data); }

  void Expand(const std::vector<Piece>& round) {
    const int64_t count = round.back().at + round.back().count;
    const Matrix records = context_.Room(count, dims_.record());
    for (const Piece& p : round) {
      PERIGEE_CUDA_CHECK(MlaGatherRecords(pool_, block_tables_ + p.sequence->first_block, p.first_key,
                                          p.count, Data(records) + p.at * dims_.record(), stream()));
    }
    expanded_ = context_.Room(count, dims_.num_heads * (dims_.nope + dims_.value));
    RunProduct(context_, {.x = records.Cols(0, dims_.rank),
                          .weight = weights_.expand.Rows(),
                          .weight_stride = dims_.rank,
                          .y = expanded_});
    keys_ = context_.Room(count, dims_.num_heads * dims_.qk());
    PERIGEE_CUDA_CHECK(MlaAssembleKeys({.expanded = Data(expanded_),
                                        .records = Data(records),
                                        .count = count,
                                        .num_heads = static_cast<int>(dims_.num_heads),
                                        .nope = static_cast<int>(dims_.nope),
                                        .value = static_cast<int>(dims_.value),
                                        .rank = static_cast<int>(dims_.rank),
                                        .rope = static_cast<int>(dims_.rope),
                                        .keys = Data(keys_)},
                                       stream()));
  }

  // Results and their log-sum-exps to the runs' rows of `to` and lse_.
  void Attend(bool causal, std::span<const MlaFlashRun> runs, const Matrix& to) {
    MlaFlash& flash = context_.handles->Flash({.num_heads = static_cast<int>(dims_.num_heads),
                                               .qk = static_cast<int>(dims_.qk()),
                                               .value = static_cast<int>(dims_.value),
                                               .q_stride = q_.stride,
                                               .k_stride = keys_.stride,
                                               .v_stride = expanded_.stride,
                                               .k_head_stride = dims_.qk(),
                                               .v_head_stride = dims_.nope + dims_.value,
                                               .causal = causal});
    while (!runs.empty()) {
      const Workspace::Scope scope(*context_.workspace);
      const auto taken = runs.first(std::min<size_t>(runs.size(), MlaFlash::kMaxRuns));
      runs = runs.subspan(taken.size());
      const StatusOr<size_t> bytes = Plan(flash, taken);
      PERIGEE_CHECK_MSG(bytes.ok(), bytes.ok() ? "" : bytes.status().message());
      const Status status = flash.Run({.q = reinterpret_cast<const __nv_bfloat16*>(q_.data),
                                       .k = Data(keys_),
                                       .v = Data(expanded_) + dims_.nope,
                                       .runs = taken,
                                       .scale = 1.0f / std::sqrt(static_cast<float>(dims_.qk())),
                                       .out = Data(to),
                                       .lse = lse_},
                                      context_.workspace->Bytes(*bytes), *bytes, stream());
      PERIGEE_CHECK_MSG(status.ok(), status.message());
    }
  }

  static StatusOr<size_t> Plan(MlaFlash& flash, std::span<const MlaFlashRun> runs) {
    if (runs.size() == 1 && runs[0].q_len % kRecurringRows == 0 && runs[0].k_len % kRecurringRows == 0) {
      return flash.PrepareExact(runs[0].q_len, runs[0].k_len);
    }
    int64_t q_len = 0, k_len = 0;
    for (const MlaFlashRun& run : runs) {
      q_len = std::max(q_len, run.q_len);
      k_len = std::max(k_len, run.k_len);
    }
    return flash.Prepare(static_cast<int64_t>(runs.size()), q_len, k_len);
  }

  void Merge(const MlaFlashRun& run, bool first, bool last) {
    const int64_t values = run.q_begin * out_.cols, heads = run.q_begin * dims_.num_heads;
    PERIGEE_CUDA_CHECK(MlaMergePartial({.out = sum_ + values,
                                        .lse = sum_lse_ + heads,
                                        .more = Data(share_) + values,
                                        .more_lse = lse_ + heads,
                                        .rows = run.q_len,
                                        .num_heads = static_cast<int>(dims_.num_heads),
                                        .value = static_cast<int>(dims_.value),
                                        .first = first,
                                        .result = last ? Data(out_) + values : nullptr},
                                       stream()));
  }

  const KernelContext& context_;
  const MlaDims& dims_;
  const MlaWeights& weights_;
  const MlaPool pool_;
  const int32_t* const block_tables_;
  const ConstMatrix q_;
  const Matrix out_;  // dense
  float* const lse_;  // [rows, num_heads], of the share that was computed last
  Matrix keys_, expanded_;
  // Of rows with several shares: the one computed last; the sum of those so far and its log-sum-exp.
  Matrix share_;
  float* sum_ = nullptr;
  float* sum_lse_ = nullptr;
};

}  // namespace

bool CanExpand(const MlaDims& dims, ConstMatrix q, const PagedKvView& cache) {
  const auto in_eights = [](int64_t n) { return n > 0 && n % 8 == 0; };
  // What cuDNN takes and what the merge does: a row of a head in one block.
  return in_eights(dims.nope) && in_eights(dims.rope) && in_eights(dims.rank) && dims.qk() % 32 == 0 &&
         dims.qk() <= 256 && (dims.value == 64 || dims.value == 128 || dims.value == 256) &&
         q.stride % 8 == 0 && reinterpret_cast<uintptr_t>(q.data) % 16 == 0 && cache.dtype == DType::kBF16;
}

void MlaPrefillExpanded(const KernelContext& context, const MlaDims& dims, const MlaWeights& weights,
                        ConstMatrix q, const PagedSegments& segments, const PagedKvView& cache, Matrix out) {
  const Workspace::Scope scope(*context.workspace);
  const Matrix dense = out.stride == out.cols ? out : context.Room(out.rows, out.cols);
  const std::vector<Sequence> sequences = BySequence(segments.list.host);
  Expanded attention(context, dims, weights, q, cache, RunsOf(context, segments).block_tables, dense);
  const auto is_long = [](const Sequence& s) { return s.keys > kRoundKeys; };
  if (std::any_of(sequences.begin(), sequences.end(), is_long)) attention.MakeShares();
  for (const std::vector<Piece>& round : Rounds(sequences)) attention.Run(round);
  if (dense.data != out.data) kernels::CopyRows(context, dense, out);
}

}  // namespace perigee::kernels::cuda
