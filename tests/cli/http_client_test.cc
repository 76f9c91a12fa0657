#include "cli/http_client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/eval_client.h"

namespace perigee::cli {
namespace {

using ::testing::HasSubstr;

TEST(ParseHttpUrl, Parts) {
  const auto plain = ParseHttpUrl("http://localhost");
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->host, "localhost");
  EXPECT_EQ(plain->port, 80);
  EXPECT_EQ(plain->prefix, "");
  const auto full = ParseHttpUrl("http://10.0.0.1:30000/a/b/");
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->port, 30000);
  EXPECT_EQ(full->prefix, "/a/b");
  const auto ipv6 = ParseHttpUrl("http://[::1]:8080");
  ASSERT_TRUE(ipv6.has_value());
  EXPECT_EQ(ipv6->host, "::1");
  EXPECT_EQ(ipv6->port, 8080);
}

TEST(ParseHttpUrl, Refused) {
  for (const char* url :
       {"", "localhost:1", "https://h", "http://", "http://:80", "http://h:", "http://h:0", "http://h:65536",
        "http://h:8x", "http://[::1", "http://[::1]x", "http://u@h", "http://h/?q=1", "http://h h"}) {
    EXPECT_FALSE(ParseHttpUrl(url).has_value()) << url;
  }
}

// A server that accepts one connection after the other and sends its scripted replies, one a request; an
// empty one closes the connection.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::string> replies) : replies_(std::move(replies)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    socklen_t size = sizeof address;
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~ScriptedServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  int port() const { return port_; }
  int connections() const { return connections_; }
  // The request that came last.
  std::string received() {
    std::lock_guard lock(mutex_);
    return received_;
  }

 private:
  void Serve() {
    size_t next = 0;
    while (next < replies_.size()) {
      const int peer = accept(listener_, nullptr, nullptr);
      if (peer < 0) return;
      ++connections_;
      while (next < replies_.size() && ReadRequest(peer)) {
        const std::string& reply = replies_[next++];
        if (reply.empty()) break;
        EXPECT_EQ(send(peer, reply.data(), reply.size(), MSG_NOSIGNAL), static_cast<ssize_t>(reply.size()));
      }
      close(peer);
    }
  }

  // The requests of these tests end in "}".
  bool ReadRequest(int peer) {
    std::string request;
    char bytes[4096];
    while (request.empty() || request.back() != '}') {
      const ssize_t n = recv(peer, bytes, sizeof bytes, 0);
      if (n <= 0) return false;
      request.append(bytes, static_cast<size_t>(n));
    }
    std::lock_guard lock(mutex_);
    received_ = std::move(request);
    return true;
  }

  std::vector<std::string> replies_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> connections_{0};
  std::mutex mutex_;
  std::string received_;
  std::thread thread_;
};

std::string Reply(const std::string& body, const std::string& status = "200 OK") {
  return "HTTP/1.1 " + status +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

HttpUrl Local(int port) {
  return {.host = "127.0.0.1", .port = port, .prefix = ""};
}

TEST(HttpClient, KeepsItsConnection) {
  ScriptedServer server({Reply("one"), Reply("two", "400 Bad Request")});
  HttpClient client(Local(server.port()), std::chrono::seconds(5));
  const auto one = client.Post("/a", "{}");
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(one->body, "one");
  const auto two = client.Post("/b", "{\"k\": 1}");
  ASSERT_TRUE(two.ok()) << two.status().message();
  EXPECT_EQ(two->status, 400);
  EXPECT_EQ(two->body, "two");
  EXPECT_EQ(server.connections(), 1);
  EXPECT_THAT(server.received(), HasSubstr("POST /b HTTP/1.1\r\n"));
  EXPECT_THAT(server.received(), HasSubstr("\r\n\r\n{\"k\": 1}"));
}

TEST(HttpClient, ConnectsAnewWhenTheKeptConnectionWasClosed) {
  ScriptedServer server({Reply("one"), "", Reply("two")});
  HttpClient client(Local(server.port()), std::chrono::seconds(5));
  ASSERT_TRUE(client.Post("/a", "{}").ok());
  const auto two = client.Post("/a", "{}");
  ASSERT_TRUE(two.ok()) << two.status().message();
  EXPECT_EQ(two->body, "two");
  EXPECT_EQ(server.connections(), 2);
}

TEST(HttpClient, AFreshConnectionThatBreaksIsAnError) {
  ScriptedServer server({"", Reply("never asked for")});
  HttpClient client(Local(server.port()), std::chrono::seconds(5));
  const auto reply = client.Post("/a", "{}");
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
}

TEST(HttpClient, NamesTheUrlWhenNobodyListens) {
  int port = 0;
  {
    ScriptedServer server({});
    port = server.port();
  }
  HttpClient client(Local(port), std::chrono::seconds(5));
  const auto reply = client.Post("/v1/completions", "{}");
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(reply.status().message(),
              HasSubstr("http://127.0.0.1:" + std::to_string(port) + "/v1/completions"));
}

TEST(HttpClient, GivesUpAfterItsTimeout) {
  // Half a reply: the rest never comes while the client waits.
  ScriptedServer server({"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", Reply("x")});
  HttpClient client(Local(server.port()), std::chrono::seconds(1));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(client.Post("/a", "{}").ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
}

TEST(EvalClient, ReadsTheThreeForms) {
  ScriptedServer server(
      {Reply(R"({"choices": [{"text": " 4", "finish_reason": "stop"}], "usage": {"completion_tokens": 2}})"),
       Reply(R"({"choices": [{"message": {"content": null}, "finish_reason": "tool_calls"}],
                 "usage": {"completion_tokens": 7}})"),
       Reply(R"({"text": "t<|im_end|>", "meta_info": {"finish_reason": {"type": "length", "length": 3},
                 "completion_tokens": 3}})")});
  EvalClient client(Local(server.port()), std::chrono::seconds(5));
  const auto completion = client.Complete("p", "Question", 9);
  ASSERT_TRUE(completion.ok()) << completion.status().message();
  EXPECT_EQ(completion->text, " 4");
  EXPECT_EQ(completion->finish_reason, "stop");
  EXPECT_EQ(completion->completion_tokens, 2);
  EXPECT_THAT(server.received(), HasSubstr(R"("stop":["Question"])"));
  EXPECT_THAT(server.received(), HasSubstr(R"("temperature":0,"max_tokens":9)"));
  const auto chat = client.Chat(R"([{"role": "user", "content": "x"}])", 5);
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ(chat->text, "");
  EXPECT_THAT(server.received(), HasSubstr(R"("messages":[{"role":"user","content":"x"}])"));
  const auto native = client.Generate("p", 3);
  ASSERT_TRUE(native.ok()) << native.status().message();
  EXPECT_EQ(native->text, "t<|im_end|>");
  EXPECT_EQ(native->finish_reason, "length");
  EXPECT_THAT(server.received(), HasSubstr(R"("skip_special_tokens":false)"));
}

TEST(EvalClient, QuotesWhatTheServerSaidInstead) {
  ScriptedServer server(
      {Reply(R"({"error": {"message": "too long"}})", "400 Bad Request"), Reply("{}"), Reply("<")});
  EvalClient client(Local(server.port()), std::chrono::seconds(5));
  const auto refused = client.Complete("p", "", 9);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("400"));
  EXPECT_THAT(refused.status().message(), HasSubstr("too long"));
  EXPECT_FALSE(client.Complete("p", "", 9).ok());
  EXPECT_FALSE(client.Complete("p", "", 9).ok());
}

}  // namespace
}  // namespace perigee::cli
