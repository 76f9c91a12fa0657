// The mesh of several ranks in one process: set up over Unix and TCP sockets, messages, strangers and deaths.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/mesh_setup.h"
#include "comm/socket_mesh.h"
#include "comm/sockets.h"

namespace perigee::comm {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

Clock::time_point Soon() {
  return Clock::now() + seconds(60);
}

Bytes BytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Keeps all that a mesh says, and waits for it.
class Notes : public MeshListener {
 public:
  struct Message {
    int from;
    uint8_t kind;
    Bytes payload;
    bool operator==(const Message&) const = default;
  };

  void OnMessage(int from, uint8_t kind, std::span<const std::byte> payload) override {
    const std::lock_guard lock(mutex_);
    messages_.push_back({from, kind, {payload.begin(), payload.end()}});
    changed_.notify_all();
  }
  void OnClosed(int rank) override {
    const std::lock_guard lock(mutex_);
    closed_.push_back(rank);
    changed_.notify_all();
  }
  void OnTick() override {
    const std::lock_guard lock(mutex_);
    ++ticks_;
    changed_.notify_all();
  }

  std::vector<Message> AwaitMessages(size_t count) {
    return Await(messages_, [&] { return messages_.size() >= count; });
  }
  std::vector<int> AwaitClosed(size_t count) {
    return Await(closed_, [&] { return closed_.size() >= count; });
  }
  int AwaitTicks(int count) {
    return Await(ticks_, [&] { return ticks_ >= count; });
  }

 private:
  // A copy of `value` as it was when the condition held.
  template <typename T>
  T Await(const T& value, const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), condition));
    return value;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Message> messages_;
  std::vector<int> closed_;
  int ticks_ = 0;
};

struct Ranks {
  std::vector<Listener> listeners;
  std::vector<Endpoint> endpoints;
  MeshToken token = RandomMeshToken();
};

// tcp: ranks seem to be on hosts of their own.
Ranks Prepare(int size, bool tcp) {
  Ranks setup;
  for (int r = 0; r < size; ++r) {
    auto listener = Listen(tcp);
    EXPECT_TRUE(listener.ok()) << listener.status().message();
    if (tcp) listener->endpoint.host += std::to_string(r);
    setup.endpoints.push_back(listener->endpoint);
    setup.listeners.push_back(std::move(listener).value());
  }
  return setup;
}

std::vector<std::vector<UniqueFd>> ConnectAll(Ranks setup) {
  std::vector<std::vector<UniqueFd>> sockets(setup.listeners.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < sockets.size(); ++r) {
    threads.emplace_back([&, r] {
      auto connected = ConnectMesh(static_cast<int>(r), setup.endpoints, setup.token,
                                   std::move(setup.listeners[r]), Soon());
      ASSERT_TRUE(connected.ok()) << connected.status().message();
      sockets[r] = std::move(connected).value();
    });
  }
  for (std::thread& t : threads) t.join();
  return sockets;
}

class MeshTest : public testing::TestWithParam<bool> {
 protected:
  void Start(int size) {
    for (std::vector<UniqueFd>& sockets : ConnectAll(Prepare(size, GetParam()))) {
      notes_.push_back(std::make_unique<Notes>());
      meshes_.push_back(std::make_unique<SocketMesh>(std::move(sockets), std::chrono::milliseconds(10),
                                                     notes_.back().get()));
      meshes_.back()->StartThread();
    }
  }

  std::vector<std::unique_ptr<Notes>> notes_;
  std::vector<std::unique_ptr<SocketMesh>> meshes_;
};
INSTANTIATE_TEST_SUITE_P(Sockets, MeshTest, testing::Values(false, true),
                         [](const auto& world) { return world.param ? "Tcp" : "Unix"; });

TEST_P(MeshTest, MessagesArriveWholeAndInOrder) {
  Start(4);
  const Bytes large(3'000'000, std::byte{7});  // more than a socket takes at once
  meshes_[1]->Send(3, 9, BytesOf("first"));
  meshes_[1]->Send(3, 9, large);
  meshes_[1]->Send(3, 10, {});
  EXPECT_EQ(notes_[3]->AwaitMessages(3),
            (std::vector<Notes::Message>{{1, 9, BytesOf("first")}, {1, 9, large}, {1, 10, {}}}));
  meshes_[0]->SendToAll(1, BytesOf("all"));
  for (size_t r : {1, 2})
    EXPECT_EQ(notes_[r]->AwaitMessages(1), (std::vector<Notes::Message>{{0, 1, BytesOf("all")}}));
  EXPECT_GE(notes_[0]->AwaitTicks(5), 5);
}

TEST_P(MeshTest, ManyThreadsSendAtOnce) {
  Start(2);
  std::vector<std::thread> threads;
  for (uint8_t kind = 0; kind < 4; ++kind) {
    threads.emplace_back([&, kind] {
      for (uint8_t i = 0; i < 100; ++i) meshes_[0]->Send(1, kind, Bytes(size_t{i} * 100, std::byte{i}));
    });
  }
  for (std::thread& t : threads) t.join();
  std::vector<size_t> next(4);
  for (const Notes::Message& m : notes_[1]->AwaitMessages(400)) {
    EXPECT_EQ(m.payload, Bytes(next[m.kind] * 100, static_cast<std::byte>(next[m.kind])));
    ++next[m.kind];
  }
}

// What was sent before the end arrives, then the end shows.
TEST_P(MeshTest, ADeadPeerShowsAtOnceAndAfterItsLastWords) {
  Start(3);
  meshes_[2]->SendToAll(5, Bytes(1'000'000));
  meshes_[2].reset();
  for (size_t r : {0, 1}) {
    EXPECT_EQ(notes_[r]->AwaitClosed(1), (std::vector<int>{2}));
    EXPECT_EQ(notes_[r]->AwaitMessages(1).size(), 1u);
  }
  meshes_[0]->Send(2, 1, BytesOf("nobody hears"));
  meshes_[0]->Send(1, 1, BytesOf("still here"));
  EXPECT_EQ(notes_[1]->AwaitMessages(2)[1].payload, BytesOf("still here"));
}

// A peer that does not read holds nobody up.
TEST_P(MeshTest, SendingDoesNotBlock) {
  std::vector<std::vector<UniqueFd>> sockets = ConnectAll(Prepare(2, GetParam()));
  Notes notes;
  SocketMesh mesh(std::move(sockets[0]), std::chrono::milliseconds(10), &notes);
  mesh.StartThread();
  for (int i = 0; i < 64; ++i) mesh.Send(1, 1, Bytes(1'000'000));
  EXPECT_GE(notes.AwaitTicks(3), 3);
}

TEST_P(MeshTest, WhatIsNoMessageClosesTheConnection) {
  std::vector<std::vector<UniqueFd>> sockets = ConnectAll(Prepare(2, GetParam()));
  Notes notes;
  SocketMesh mesh(std::move(sockets[0]), std::chrono::milliseconds(10), &notes);
  mesh.StartThread();
  const Bytes nonsense(64, std::byte{0xff});
  ASSERT_TRUE(SendAll(sockets[1][0].get(), nonsense, Soon()));
  EXPECT_EQ(notes.AwaitClosed(1), (std::vector<int>{1}));
}

// Somebody without the token, somebody who says nothing, and somebody with a wrong number do not get in, and
// the ranks find each other all the same.
TEST_P(MeshTest, StrangersAreDropped) {
  Ranks setup = Prepare(2, GetParam());
  const Endpoint target = setup.endpoints[0];
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 3; ++i) {
    auto stranger = Connect(target, GetParam() ? "elsewhere" : target.host, Soon());
    ASSERT_TRUE(stranger.ok()) << stranger.status().message();
    strangers.push_back(std::move(stranger).value());
  }
  ASSERT_TRUE(SendAll(strangers[0].get(), Bytes(200, std::byte{1}), Soon()));
  ASSERT_TRUE(SendAll(strangers[1].get(), BytesOf("GET / HTTP/1.1\r\n\r\n"), Soon()));
  const std::vector<std::vector<UniqueFd>> sockets = ConnectAll(std::move(setup));
  EXPECT_TRUE(sockets[0][1].open());
  EXPECT_TRUE(sockets[1][0].open());
  std::byte byte{};
  for (const UniqueFd& stranger : strangers) {
    EXPECT_FALSE(ReceiveAll(stranger.get(), std::span(&byte, 1), Soon()));
  }
}

TEST(MeshSetup, OtherTokensDoNotMatch) {
  Ranks setup = Prepare(2, false);
  setup.token[63] ^= std::byte{1};
  MeshToken other = setup.token;
  other[63] ^= std::byte{1};  // the half that the one who accepts shows
  std::thread acceptor([&] {
    (void)ConnectMesh(0, setup.endpoints, setup.token, std::move(setup.listeners[0]),
                      Clock::now() + seconds(1));
  });
  const auto refused = ConnectMesh(1, setup.endpoints, other, std::move(setup.listeners[1]), Soon());
  acceptor.join();
  EXPECT_EQ(refused.status().message(), "rank 1 cannot reach rank 0: who answers is not that rank");
}

TEST(MeshSetup, WhoIsMissingIsNamed) {
  Ranks setup = Prepare(3, false);
  const auto connected = ConnectMesh(0, setup.endpoints, setup.token, std::move(setup.listeners[0]),
                                     Clock::now() + std::chrono::milliseconds(50));
  EXPECT_EQ(connected.status().message(),
            "rank 0 was not reached by rank 1, rank 2: is a firewall between the hosts?");
}

TEST(MeshSetup, EndpointsTravelAsBytes) {
  const Endpoint endpoint{.host = "h", .unix_name = "u", .addresses = {"10.0.0.1", "fd00::1"}, .port = 65535};
  const Bytes bytes = EncodeEndpoint(endpoint);
  const auto decoded = DecodeEndpoint(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->host, "h");
  EXPECT_EQ(decoded->unix_name, "u");
  EXPECT_EQ(decoded->addresses, endpoint.addresses);
  EXPECT_EQ(decoded->port, 65535);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(DecodeEndpoint(std::span(bytes).first(size)).ok());
}

}  // namespace
}  // namespace perigee::comm
