#include "comm/arguments.h"

#include <functional>
#include <numeric>
#include <string>

#include "base/check.h"
#include "base/strings.h"

namespace perigee::comm {
namespace {

std::string Where(const Communicator& c, Collective call) {
  return StrCat("rank ", c.rank(), " of ", c.size(), ": ", CollectiveName(call), ": ");
}

// `total` elements must be what the counts add up to.
void CheckCounts(const Communicator& c, Collective call, std::span<const int64_t> counts, size_t total) {
  PERIGEE_CHECK_MSG(counts.size() == static_cast<size_t>(c.size()),
                    StrCat(Where(c, call), counts.size(), " counts"));
  int64_t sum = 0;
  for (const int64_t n : counts) {
    PERIGEE_CHECK_MSG(n >= 0, StrCat(Where(c, call), "count ", n));
    sum += n;
  }
  PERIGEE_CHECK_MSG(static_cast<size_t>(sum) == total,
                    StrCat(Where(c, call), "counts add up to ", sum, ", the buffer has ", total));
}

void CheckPart(const Communicator& c, Collective call, std::span<const int64_t> counts, size_t part) {
  const int64_t wanted = counts[static_cast<size_t>(c.rank())];
  PERIGEE_CHECK_MSG(part == static_cast<size_t>(wanted),
                    StrCat(Where(c, call), "this rank's count is ", wanted, ", the buffer has ", part));
}

void CheckApart(const Communicator& c, Collective call, std::span<const float> a, std::span<const float> b) {
  const std::less_equal<const float*> at_or_before;
  const bool apart = a.empty() || b.empty() || at_or_before(a.data() + a.size(), b.data()) ||
                     at_or_before(b.data() + b.size(), a.data());
  PERIGEE_CHECK_MSG(apart, StrCat(Where(c, call), "send and receive overlap"));
}

}  // namespace

void CheckAllGather(const Communicator& c, std::span<const float> send, std::span<const float> receive,
                    std::span<const int64_t> counts) {
  CheckCounts(c, Collective::kAllGather, counts, receive.size());
  CheckPart(c, Collective::kAllGather, counts, send.size());
  CheckApart(c, Collective::kAllGather, send, receive);
}

void CheckReduceScatter(const Communicator& c, std::span<const float> send, std::span<const float> receive,
                        std::span<const int64_t> counts) {
  CheckCounts(c, Collective::kReduceScatter, counts, send.size());
  CheckPart(c, Collective::kReduceScatter, counts, receive.size());
  CheckApart(c, Collective::kReduceScatter, send, receive);
}

void CheckAllToAll(const Communicator& c, std::span<const float> send, std::span<const int64_t> send_counts,
                   std::span<const float> receive, std::span<const int64_t> receive_counts) {
  CheckCounts(c, Collective::kAllToAll, send_counts, send.size());
  CheckCounts(c, Collective::kAllToAll, receive_counts, receive.size());
  CheckApart(c, Collective::kAllToAll, send, receive);
}

void CheckBroadcast(const Communicator& c, int root) {
  PERIGEE_CHECK_MSG(root >= 0 && root < c.size(), StrCat(Where(c, Collective::kBroadcast), "root ", root));
}

int64_t PartOffset(std::span<const int64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

}  // namespace perigee::comm
