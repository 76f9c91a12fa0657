#include "comm/communicator.h"

#include <numeric>

#include "base/check.h"

namespace perigee::comm {

std::string_view CollectiveName(Collective c) {
  static constexpr std::array<std::string_view, kNumCollectives> kNames = {
      "AllGather", "ReduceScatter", "AllReduce", "AllToAll", "Broadcast"};
  const auto index = static_cast<size_t>(c);
  PERIGEE_CHECK(index < kNames.size());
  return kNames[index];
}

uint64_t Traffic::TotalElements() const {
  return std::accumulate(elements.begin(), elements.end(), uint64_t{0});
}

void Traffic::Add(Collective c, int64_t sent) {
  const auto index = static_cast<size_t>(c);
  elements[index] += static_cast<uint64_t>(sent);
  ++calls[index];
}

Traffic operator-(const Traffic& later, const Traffic& earlier) {
  Traffic out;
  for (size_t i = 0; i < kNumCollectives; ++i) {
    out.elements[i] = later.elements[i] - earlier.elements[i];
    out.calls[i] = later.calls[i] - earlier.calls[i];
  }
  return out;
}

}  // namespace perigee::comm
