#include "engine/process_start.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/strings.h"

namespace perigee::engine {
namespace {

// What a rank says.
struct Statement {
  Status status;
  std::string fingerprint;
  Machine machine;
  int32_t ranks_on_host = 1;
};

std::vector<std::byte> Encode(const Statement& s) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(s.status.code()));
  out.PutText(s.status.message());
  out.PutText(s.fingerprint);
  out.Put(s.machine.memory_bytes);
  out.Put(s.machine.available_bytes);
  out.Put(s.machine.cores);
  out.Put(s.machine.random);
  out.Put(s.ranks_on_host);
  return out.Take();
}

bool Decode(std::span<const std::byte> bytes, Statement* s) {
  ByteReader in(bytes);
  const auto code = static_cast<StatusCode>(in.Get<uint8_t>());
  std::string message = in.GetText();
  if (code != StatusCode::kOk && code <= StatusCode::kInternal) s->status = Status(code, std::move(message));
  s->fingerprint = in.GetText();
  s->machine.memory_bytes = in.Get<uint64_t>();
  s->machine.available_bytes = in.Get<uint64_t>();
  s->machine.cores = in.Get<int32_t>();
  s->machine.random = in.Get<uint64_t>();
  s->ranks_on_host = in.Get<int32_t>();
  return in.ok() && in.remaining() == 0 && code <= StatusCode::kInternal && s->ranks_on_host >= 1;
}

}  // namespace

Status AgreeOnStart(comm::ProcessRanks& ranks, const Status& own, StartAgreement* agreement) {
  const Statement mine{.status = own,
                       .fingerprint = agreement->fingerprint,
                       .machine = agreement->machine,
                       .ranks_on_host = ranks.ranks_on_host()};
  PERIGEE_ASSIGN_OR_RETURN(const auto said, ranks.AllGather(Encode(mine)));
  std::vector<Statement> all(said.size());
  for (size_t r = 0; r < said.size(); ++r) {
    if (!Decode(said[r], &all[r]))
      return InternalError(StrCat("rank ", r, " is another build of this program"));
  }
  for (size_t r = 0; r < all.size(); ++r) {
    const Status& status = all[r].status;
    if (!status.ok())
      return r == 0 ? status : Status(status.code(), StrCat("rank ", r, ": ", status.message()));
  }
  uint64_t memory = std::numeric_limits<uint64_t>::max();
  uint64_t available = memory;
  int32_t threads = 0;
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].fingerprint != all[0].fingerprint) {
      return InvalidArgument(StrCat("rank ", r, " has ", all[r].fingerprint, ", rank 0 has ",
                                    all[0].fingerprint,
                                    ": every rank needs the same program, flags and model"));
    }
    const auto ranks_on_host = static_cast<uint64_t>(all[r].ranks_on_host);
    memory = std::min(memory, all[r].machine.memory_bytes / ranks_on_host);
    available = std::min(available, all[r].machine.available_bytes / ranks_on_host);
    threads += std::max(1, all[r].machine.cores / all[r].ranks_on_host);
  }
  agreement->machine = {.memory_bytes = memory * all.size(),
                        .available_bytes = available * all.size(),
                        .cores = threads,
                        .random = all[0].machine.random};
  return Status::Ok();
}

}  // namespace perigee::engine
