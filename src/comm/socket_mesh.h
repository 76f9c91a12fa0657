#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/status.h"
#include "comm/sockets.h"

namespace perigee::comm {

// What a mesh tells its owner, on the mesh's thread. Must not block, and may send.
class MeshListener {
 public:
  virtual ~MeshListener() = default;
  // A whole message of another rank, in the order in which it sent them.
  virtual void OnMessage(int from, uint8_t kind, std::span<const std::byte> payload) = 0;
  // Nothing more comes from that rank: its socket closed, or it sent what is no message. Once a rank.
  virtual void OnClosed(int rank) = 0;
  // About once a period.
  virtual void OnTick() = 0;
};

// Small messages between the ranks of one start, over a socket to each. A peer that dies, or whose machine
// resets the connection, shows at once as OnClosed. Send never blocks: what a peer does not take yet is kept.
class SocketMesh {
 public:
  // Longest payload; a longer one is a defect of the sender and closes the connection at the receiver.
  static constexpr uint32_t kMaxPayload = uint32_t{256} << 20;

  // sockets[r]: connected, non-blocking, to rank r; the own one not open. listener outlives the mesh. Nothing
  // is read before StartThread.
  SocketMesh(std::vector<UniqueFd> sockets, std::chrono::milliseconds period, MeshListener* listener);
  ~SocketMesh();
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;

  // Once, when the listener is ready for its calls.
  void StartThread();

  // Sends what is left for a moment and closes the sockets; the listener is not called any more. Not on the
  // mesh's thread. Done by the destructor if not before.
  void Stop();

  // Any thread. Messages to a closed peer are dropped.
  void Send(int to, uint8_t kind, std::span<const std::byte> payload);
  void SendToAll(uint8_t kind, std::span<const std::byte> payload);

 private:
  using Frame = std::shared_ptr<const std::vector<std::byte>>;
  struct Peer {
    UniqueFd fd;
    std::vector<std::byte> received;  // the beginning of a message
    std::mutex mutex;                 // guards what follows, and writing to fd
    std::deque<Frame> unsent;
    size_t sent_of_first = 0;
    bool closed = false;
  };

  static Frame MakeFrame(uint8_t kind, std::span<const std::byte> payload);
  void SendFrame(Peer& peer, const Frame& frame);
  // Writes as much as the socket takes. True when all is written.
  static bool Flush(Peer& peer);
  void Loop();
  void Receive(int rank, Peer& peer);
  // Hands out whole messages. False when the peer sent something else.
  bool Deliver(int rank, Peer& peer);
  void Close(int rank, Peer& peer);
  void Wake();

  std::vector<std::unique_ptr<Peer>> peers_;  // null: this rank
  const std::chrono::milliseconds period_;
  MeshListener* const listener_;
  UniqueFd wake_fd_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last
};

}  // namespace perigee::comm
