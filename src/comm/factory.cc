#include "comm/factory.h"

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "base/strings.h"
#include "comm/local_communicator.h"
#include "comm/thread_communicator.h"

namespace perigee::comm {
namespace {

using World = std::vector<std::unique_ptr<Communicator>>;

World MakeLocal(int) {
  World world;
  world.push_back(std::make_unique<LocalCommunicator>());
  return world;
}

struct Transport {
  std::string_view name;
  int max_size;
  World (*make)(int size);
};

// A new transport between ranks of one process is a file and a row here.
constexpr std::array<Transport, 2> kTransports = {{
    {"local", 1, MakeLocal},
    {"thread", std::numeric_limits<int>::max(), ThreadCommunicator::CreateGroup},
}};

}  // namespace

StatusOr<World> MakeInProcessWorld(std::string_view transport, int size) {
  std::string known;
  for (const Transport& t : kTransports) {
    known += StrCat(known.empty() ? "" : ", ", t.name);
    if (t.name != transport) continue;
    if (size >= 1 && size <= t.max_size) return t.make(size);
    return InvalidArgument(
        StrCat("transport ", t.name, ": ", size, " ranks; accepted: ", t.max_size == 1 ? "1" : "1 and more"));
  }
  return InvalidArgument(StrCat("unknown transport ", Quoted(transport), "; accepted: ", known));
}

}  // namespace perigee::comm
