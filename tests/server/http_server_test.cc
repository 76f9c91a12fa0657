#include "server/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/strings.h"
#include "testing/http_connection.h"

namespace perigee::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::HttpConnection;
using test::HttpReply;

// Gives each path its own behaviour.
class TestHandler : public HttpHandler {
 public:
  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    writer->OnDisconnect([this] { Disconnected(); });
    if (request.path == "/echo") {
      writer->Send({.body = StrCat(request.method, " ", request.Header("x-test"), " ", request.body)});
    } else if (request.path == "/stream") {
      writer->StartStream("text/plain");
      for (int i = 0; i < 3; ++i) writer->Write(StrCat("piece ", i, "\n"));
      writer->Finish(false);
    } else if (request.path == "/closing-stream") {
      writer->StartStream("text/plain");
      writer->Write("last");
      writer->Finish(true);
    } else if (request.path == "/hold" || request.path == "/flood") {
      std::lock_guard lock(mutex_);
      held_.push_back(writer);
      if (request.path == "/flood") writer->StartStream("text/plain");
      changed_.notify_all();
    }  // anything else: dropped
  }
  HttpResponse ProtocolError(int status, const std::string& message) override {
    return {.status = status, .body = message};
  }

  std::shared_ptr<ResponseWriter> WaitHeld(size_t index = 0) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, seconds(10), [&] { return held_.size() > index; })) return nullptr;
    return held_[index];
  }
  bool WaitDisconnects(int n) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(10), [&] { return disconnects_ >= n; });
  }
  int disconnects() {
    std::lock_guard lock(mutex_);
    return disconnects_;
  }
  void Release() {
    std::lock_guard lock(mutex_);
    held_.clear();
  }

 private:
  void Disconnected() {
    std::lock_guard lock(mutex_);
    ++disconnects_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<ResponseWriter>> held_;
  int disconnects_ = 0;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    server_.reset();
    auto started = HttpServer::Start(options, &handler_);
    ASSERT_TRUE(started.ok()) << started.status().message();
    server_ = std::move(*started);
  }
  void SetUp() override { Start(); }
  void TearDown() override {
    handler_.Release();
    server_.reset();
  }
  int port() const { return server_->port(); }

  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, OneConnectionServesManyRequests) {
  HttpConnection c(port());
  for (int i = 0; i < 50; ++i) {
    c.Send(test::PostText("/echo?x=1", StrCat("body ", i), "X-Test: v\r\n"));
    HttpReply reply = c.Read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, StrCat("POST v body ", i));
    c.Send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    reply = c.Read();
    EXPECT_EQ(reply.body, "piece 0\npiece 1\npiece 2\n");
    EXPECT_TRUE(reply.whole);
    EXPECT_EQ(reply.Header("transfer-encoding"), "chunked");
  }
  EXPECT_EQ(handler_.disconnects(), 0);
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  HttpConnection c(port());
  c.Send(test::PostText("/echo", "1") + test::PostText("/stream", "") + test::PostText("/echo", "2"));
  EXPECT_EQ(c.Read().body, "POST  1");
  EXPECT_EQ(c.Read().body, "piece 0\npiece 1\npiece 2\n");
  EXPECT_EQ(c.Read().body, "POST  2");
}

TEST_F(HttpServerTest, ConnectionCloseAndOldHttp) {
  HttpConnection closing(port());
  closing.Send("GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(closing.Read().Header("connection"), "close");
  EXPECT_TRUE(closing.WaitClosed(seconds(2)));

  HttpConnection old(port());
  old.Send("GET /stream HTTP/1.0\r\n\r\n");
  HttpReply reply = old.Read();
  EXPECT_EQ(reply.Header("transfer-encoding"), "");
  EXPECT_EQ(reply.body, "piece 0\npiece 1\npiece 2\n");
  EXPECT_TRUE(reply.whole);

  HttpConnection stream(port());
  stream.Send("GET /closing-stream HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(stream.Read().body, "last");
  EXPECT_TRUE(stream.WaitClosed(seconds(2)));
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  HttpConnection c(port());
  c.Send("HEAD /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  HttpReply reply = c.Read(seconds(5), true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.Header("content-length"), "6");
  c.Send("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(c.Read().body, "GET  ");
}

TEST_F(HttpServerTest, ExpectContinueIsAnswered) {
  HttpConnection c(port());
  c.Send("POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  ASSERT_TRUE(c.ReadUntil("HTTP/1.1 100 Continue\r\n\r\n", seconds(5)));
  c.Send("abc");
  EXPECT_EQ(c.Read().body, "POST  abc");
}

TEST_F(HttpServerTest, ChunkedRequestBodies) {
  HttpConnection c(port());
  c.Send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(c.Read().body, "POST  abcde");
}

TEST_F(HttpServerTest, BodiesOverTheLimitAre413) {
  Start({.max_body_bytes = 1000});
  {
    HttpConnection c(port());
    c.Send(test::PostText("/echo", std::string(1000, 'x')));
    EXPECT_EQ(c.Read().status, 200);
  }
  {
    // The whole body is sent before the answer is read, as most clients do.
    HttpConnection c(port());
    EXPECT_TRUE(c.Send(test::PostText("/echo", std::string(20 << 20, 'x'))));
    HttpReply reply = c.Read();
    EXPECT_EQ(reply.status, 413);
    EXPECT_NE(reply.body.find("1000 bytes"), std::string::npos);
  }
  {
    HttpConnection c(port());
    c.Send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" +
           std::string(0x800, 'x') + "\r\n0\r\n\r\n");
    EXPECT_EQ(c.Read().status, 413);
  }
  {
    HttpConnection c(port());
    c.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n");
    EXPECT_EQ(c.Read().status, 400);
  }
}

TEST_F(HttpServerTest, LargeBodiesArrive) {
  std::string body(30 << 20, 'x');
  HttpReply reply = test::Post(port(), "/echo", body);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body.size(), body.size() + 6);
}

TEST_F(HttpServerTest, HeadersOverTheLimitAre431) {
  HttpConnection c(port());
  c.Send("GET /echo HTTP/1.1\r\nX: " + std::string(100 << 10, 'x') + "\r\n\r\n");
  EXPECT_EQ(c.Read().status, 431);
}

TEST_F(HttpServerTest, GarbageIs400AndTheServerGoesOn) {
  for (const char* bytes : {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", "GET\r\n\r\n",
                            "GET / HTTP/9.9\r\n\r\n", "\r\nX\r\n\r\n", "GET / HTTP/1.1\r\nbad header\r\n\r\n",
                            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"}) {
    HttpConnection c(port());
    c.Send(bytes);
    EXPECT_EQ(c.Read().status, 400) << bytes;
    EXPECT_TRUE(c.WaitClosed(seconds(6)));
  }
  EXPECT_EQ(test::Get(port(), "/echo").status, 200);
}

TEST_F(HttpServerTest, HalfSentRequestsTimeOut) {
  Start({.read_timeout = milliseconds(200)});
  for (const char* bytes : {"", "GET /ec", "POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"}) {
    HttpConnection c(port());
    c.Send(bytes);
    EXPECT_TRUE(c.WaitClosed(seconds(5))) << bytes;
  }
}

TEST_F(HttpServerTest, ARunningAnswerOutlivesTheReadTimeout) {
  Start({.read_timeout = milliseconds(100)});
  HttpConnection c(port());
  c.Send(test::PostText("/hold", ""));
  auto writer = handler_.WaitHeld();
  ASSERT_TRUE(writer);
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_FALSE(writer->disconnected());
  writer->Send({.body = "late"});
  EXPECT_EQ(c.Read().body, "late");
}

TEST_F(HttpServerTest, AGoneClientIsNoticedWhileItsAnswerIsMade) {
  for (bool half_close : {false, true}) {
    HttpConnection c(port());
    c.Send(test::PostText("/hold", ""));
    auto writer = handler_.WaitHeld(half_close);
    ASSERT_TRUE(writer);
    EXPECT_FALSE(writer->disconnected());
    half_close ? c.ShutdownSend() : c.Close();
    EXPECT_TRUE(handler_.WaitDisconnects(1 + half_close));
    EXPECT_TRUE(writer->disconnected());
    // A hook that comes late still runs, and writing does nothing.
    std::atomic<bool> hook{false};
    writer->OnDisconnect([&] { hook = true; });
    writer->Send({.body = "x"});
    for (int i = 0; i < 500 && !hook; ++i) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_TRUE(hook);
  }
}

TEST_F(HttpServerTest, ADroppedRequestIs500) {
  HttpReply reply = test::Get(port(), "/dropped");
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(test::Get(port(), "/echo").status, 200);
}

TEST_F(HttpServerTest, ASlowReaderIsDroppedAndBlocksNobody) {
  Start({.max_unsent_bytes = 1 << 20});
  HttpConnection slow(port());
  slow.SetReceiveBuffer(4096);
  slow.Send(test::PostText("/flood", ""));
  auto writer = handler_.WaitHeld();
  ASSERT_TRUE(writer);
  for (int i = 0; i < 400 && !writer->disconnected(); ++i) {
    writer->Write(std::string(64 << 10, 'x'));
    if (i % 50 == 0) {
      EXPECT_EQ(test::Get(port(), "/echo").status, 200);
    }
  }
  EXPECT_TRUE(handler_.WaitDisconnects(1));
}

TEST_F(HttpServerTest, AReaderThatStopsReadingTimesOut) {
  Start({.write_timeout = milliseconds(200)});
  HttpConnection slow(port());
  slow.SetReceiveBuffer(4096);
  slow.Send(test::PostText("/flood", ""));
  auto writer = handler_.WaitHeld();
  ASSERT_TRUE(writer);
  writer->Write(std::string(12 << 20, 'x'));
  EXPECT_TRUE(handler_.WaitDisconnects(1));
}

TEST_F(HttpServerTest, TooManyConnectionsAre503) {
  Start({.max_connections = 2});
  HttpConnection a(port()), b(port());
  a.Send("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(a.Read().status, 200);
  b.Send("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(b.Read().status, 200);
  {
    HttpConnection c(port());
    EXPECT_EQ(c.Read().status, 503);
  }
  a.Close();
  int status = 0;
  for (int i = 0; i < 200 && status != 200; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    status = test::Get(port(), "/echo").status;
  }
  EXPECT_EQ(status, 200);
}

TEST_F(HttpServerTest, APortInUseIsAnErrorThatNamesIt) {
  auto second = HttpServer::Start({.port = port()}, &handler_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().message(),
            StrCat("cannot listen on 127.0.0.1:", port(), ": Address already in use"));
  auto nowhere = HttpServer::Start({.host = "no-such-host.invalid", .port = 1}, &handler_);
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.status().message().find("no-such-host.invalid:1"), std::string::npos);
}

TEST_F(HttpServerTest, StoppingLetsRunningAnswersEnd) {
  HttpConnection idle(port()), busy(port());
  idle.Send("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(idle.Read().status, 200);
  busy.Send(test::PostText("/hold", ""));
  auto writer = handler_.WaitHeld();
  ASSERT_TRUE(writer);
  std::thread stopper([&] {
    EXPECT_TRUE(server_->Drain(seconds(10)));
    server_->Stop();
  });
  EXPECT_TRUE(idle.WaitClosed(seconds(2)));
  EXPECT_FALSE(HttpConnection(port()).connected() && test::Get(port(), "/echo").status == 200);
  EXPECT_FALSE(writer->disconnected());
  writer->Send({.body = "done"});
  HttpReply reply = busy.Read();
  EXPECT_EQ(reply.body, "done");
  busy.Close();
  stopper.join();
}

TEST_F(HttpServerTest, StoppingCutsOffWhatOutlastsTheGrace) {
  HttpConnection busy(port());
  busy.Send(test::PostText("/hold", ""));
  auto writer = handler_.WaitHeld();
  ASSERT_TRUE(writer);
  auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(server_->Drain(milliseconds(100)));
  server_->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(3));
  EXPECT_EQ(handler_.disconnects(), 1);
  EXPECT_TRUE(busy.WaitClosed(seconds(1)));
  // The writer outlives the server.
  server_.reset();
  writer->Send({.body = "x"});
  handler_.Release();
}

}  // namespace
}  // namespace perigee::server
