#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"

namespace perigee::comm {

enum class Collective : uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kBroadcast };
inline constexpr size_t kNumCollectives = 5;
std::string_view CollectiveName(Collective c);

// Elements that this rank has sent to other ranks, by kind, since the start: raised where buffers move. An
// all-gather sends the rank's rows to every other rank; a reduce-scatter sends every part but its own; an
// all-reduce (under its own kind) counts the reduce-scatter and the all-gather that it is made of, with rank
// r's part of n elements beginning at r * n / size. A call that fails counts nothing; a group of one rank
// counts calls and no elements.
struct Traffic {
  std::array<uint64_t, kNumCollectives> elements{};
  std::array<uint64_t, kNumCollectives> calls{};

  uint64_t TotalElements() const;
  // One call of kind `c` in which this rank sent `sent` elements.
  void Add(Collective c, int64_t sent);
};
// What happened between two readings.
Traffic operator-(const Traffic& later, const Traffic& earlier);

// A group of ranks that exchange rows of floats. One object per rank and group, used by that rank's thread
// only. Every rank of the group makes the same calls in the same order with matching counts; a call returns
// when this rank's buffers may be used again; send and receive must not overlap. Waiting blocks, it does not
// spin. Sums are taken in a fixed binary tree over the group's ranks in index order (comm/tree_sum.h), so
// that their bits do not depend on timing, cut or transport. Calls that do not match between ranks are a
// defect and end the process. An error means that the group is broken (a rank left, Abort): the step has no
// result and the group no future. Destroying the object is leaving the group, which breaks it for the ranks
// that stay, though not the groups split from it.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // receive = the ranks' send buffers in rank order. counts[r]: elements of rank r; zero is allowed.
  virtual Status AllGather(std::span<const float> send, std::span<float> receive,
                           std::span<const int64_t> counts) = 0;
  // send holds counts[0] + counts[1] + ... elements; receive[i] = sum over ranks of their element i of this
  // rank's part.
  virtual Status ReduceScatter(std::span<const float> send, std::span<float> receive,
                               std::span<const int64_t> counts) = 0;
  // data[i] = sum over ranks of their data[i].
  virtual Status AllReduce(std::span<float> data) = 0;
  // send: for each rank its part, sizes send_counts; receive: from each rank its part, sizes receive_counts.
  virtual Status AllToAll(std::span<const float> send, std::span<const int64_t> send_counts,
                          std::span<float> receive, std::span<const int64_t> receive_counts) = 0;
  // data of rank `root` to everybody.
  virtual Status Broadcast(std::span<float> data, int root) = 0;

  // The group of all ranks that gave the same color, in the order of their keys (which must differ).
  // Collective.
  virtual StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) = 0;

  // Makes this and every later call on any rank of the group (and of groups split from it) fail with
  // `reason`. Any thread may call it.
  virtual void Abort(const Status& reason) = 0;

  virtual const Traffic& traffic() const = 0;
};

}  // namespace perigee::comm
