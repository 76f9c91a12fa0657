#include "server/http_session.h"

#include <sys/socket.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "server/http_format.h"
#include "server/live_set.h"

namespace perigee::server {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = net::ip::tcp;
using ErrorCode = boost::system::error_code;

namespace {

// Bytes of a next request that are taken in while the present one is being answered.
constexpr size_t kMaxReadAhead = 64 << 10;
constexpr size_t kReadBytes = 4 << 10;

std::string ToString(beast::string_view text) {
  return {text.data(), text.size()};
}

class Session;

}  // namespace

struct SessionShared {
  net::io_context io;
  HttpServerOptions options;
  HttpHandler* handler = nullptr;
  LiveSet<Session> sessions;
  std::atomic<bool> draining{false};
  std::atomic<bool> sealed{false};
};

namespace {

// One connection. Everything but the constructor and Post runs on its strand. Requests are answered one after
// another; while one is with the handler or its answer is being written, `request_` is set.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // What the connection knows of the request being answered.
  struct Request {
    bool head_only = false;  // HEAD: no body goes out
    bool chunkable = true;   // not HTTP/1.0
    bool all_read = false;   // no byte of it is still to come
    bool started = false;    // its answer has begun
    bool complete = false;   // its answer has been given to us whole
    std::function<void()> on_disconnect;
    std::atomic<bool> gone{false};
  };

  Session(tcp::socket socket, std::shared_ptr<SessionShared> shared)
      : shared_(std::move(shared)), stream_(std::move(socket)) {}

  template <typename F>
  void Post(F f) {
    if (shared_->sealed) return;
    net::post(stream_.get_executor(), [self = shared_from_this(), f = std::move(f)]() mutable { f(*self); });
  }
  // Runs f only while `request` is the one being answered and still lacks a part of its answer.
  template <typename F>
  void PostFor(const std::shared_ptr<Request>& request, F f) {
    Post([request, f = std::move(f)](Session& s) mutable {
      if (s.request_ == request && !request->complete) f(s);
    });
  }

  void ReadRequest();
  void FailProtocol(int status, const std::string& message);
  void EndIfIdle() {
    if (!request_) Close();
  }
  void Disconnected();

  // The present request's answer.
  void Send(const HttpResponse& response);
  void StartStream(const std::string& content_type);
  void Write(std::string_view bytes);
  void Finish(bool close);
  void Abandon();

 private:
  void OnHeader(ErrorCode ec);
  void ReadBody();
  void FailRead(ErrorCode ec);
  void Dispatch();
  void Watch();
  void OnWatch(ErrorCode ec, size_t n);
  void Pump();
  void OnWritten(ErrorCode ec, size_t n);
  void EndAnswer();
  void Linger();
  void BeginDiscard();
  void Discard();
  void Close();

  std::shared_ptr<SessionShared> shared_;  // before stream_, which needs its io_context to the end
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::shared_ptr<Request> request_;
  bool keep_alive_ = false;
  bool watching_ = false;  // a read is pending beside the answer
  bool lingering_ = false;
  bool closed_ = false;

  std::string unsent_;   // waits behind what is being written
  std::string sending_;  // being written
  size_t sent_ = 0;      // of sending_
  bool writing_ = false;
};

class SessionWriter : public ResponseWriter {
 public:
  SessionWriter(std::shared_ptr<Session> session, std::shared_ptr<Session::Request> request)
      : session_(std::move(session)), request_(std::move(request)) {}
  ~SessionWriter() override {
    session_->PostFor(request_, [](Session& s) { s.Abandon(); });
  }

  void Send(HttpResponse response) override {
    session_->PostFor(request_, [r = std::move(response)](Session& s) { s.Send(r); });
  }
  void StartStream(std::string content_type) override {
    session_->PostFor(request_, [t = std::move(content_type)](Session& s) { s.StartStream(t); });
  }
  void Write(std::string bytes) override {
    session_->PostFor(request_, [b = std::move(bytes)](Session& s) { s.Write(b); });
  }
  void Finish(bool close) override {
    session_->PostFor(request_, [close](Session& s) { s.Finish(close); });
  }
  void OnDisconnect(std::function<void()> hook) override {
    session_->Post([request = request_, h = std::move(hook)](Session&) mutable {
      if (request->gone) return h();
      if (!request->complete) request->on_disconnect = std::move(h);
    });
  }
  bool disconnected() const override { return request_->gone; }

 private:
  std::shared_ptr<Session> session_;
  std::shared_ptr<Session::Request> request_;
};

void Session::ReadRequest() {
  if (closed_) return;
  if (shared_->draining) return Close();
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(shared_->options.max_header_bytes));
  parser_->body_limit(shared_->options.max_body_bytes);
  stream_.expires_after(shared_->options.read_timeout);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](ErrorCode ec, size_t) { self->OnHeader(ec); });
}

void Session::OnHeader(ErrorCode ec) {
  if (closed_) return;
  if (ec) return FailRead(ec);
  bool waits = beast::iequals(parser_->get()[http::field::expect], "100-continue");
  if (!waits || parser_->is_done()) return ReadBody();
  // The client wants a word before it sends the body. Nothing else is being written now.
  net::async_write(stream_, net::buffer(kContinueResponse),
                   [self = shared_from_this()](ErrorCode write_ec, size_t) {
                     if (self->closed_) return;
                     if (write_ec) return self->Close();
                     self->ReadBody();
                   });
}

void Session::ReadBody() {
  stream_.expires_after(shared_->options.read_timeout);
  http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode ec, size_t) {
    if (self->closed_) return;
    if (ec) return self->FailRead(ec);
    self->Dispatch();
  });
}

// Answers what can be answered; a connection that ended or timed out is only closed.
void Session::FailRead(ErrorCode ec) {
  const HttpServerOptions& o = shared_->options;
  if (ec == http::error::body_limit)
    return FailProtocol(413, StrCat("the request body is over the limit of ", o.max_body_bytes, " bytes"));
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow)
    return FailProtocol(431,
                        StrCat("the request header is over the limit of ", o.max_header_bytes, " bytes"));
  bool malformed = ec.category() == http::make_error_code(http::error::bad_method).category();
  if (malformed && ec != http::error::end_of_stream && ec != http::error::partial_message)
    return FailProtocol(400, StrCat("not a valid HTTP request: ", ec.message()));
  Close();
}

void Session::FailProtocol(int status, const std::string& message) {
  request_ = std::make_shared<Request>();
  keep_alive_ = false;
  Send(shared_->handler->ProtocolError(status, message));
}

void Session::Dispatch() {
  auto message = parser_->release();
  parser_.reset();
  request_ = std::make_shared<Request>();
  request_->head_only = message.method() == http::verb::head;
  request_->chunkable = message.version() >= 11;
  request_->all_read = true;
  keep_alive_ = message.keep_alive() && message.version() >= 11;

  HttpRequest request;
  request.method = ToString(message.method_string());
  std::string target = ToString(message.target());
  request.path = target.substr(0, target.find('?'));
  for (const auto& field : message)
    request.headers.emplace_back(ToString(field.name_string()), ToString(field.value()));
  request.body = std::move(message.body());
  request.arrived = std::chrono::steady_clock::now();
  Watch();
  shared_->handler->Handle(std::move(request), std::make_shared<SessionWriter>(shared_from_this(), request_));
}

// Reads on while the answer is being made: the only way to notice that a client has gone.
void Session::Watch() {
  if (buffer_.size() >= kMaxReadAhead) return;
  stream_.expires_never();
  watching_ = true;
  stream_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](ErrorCode ec, size_t n) { self->OnWatch(ec, n); });
}

void Session::OnWatch(ErrorCode ec, size_t n) {
  watching_ = false;
  buffer_.commit(n);
  if (closed_) return;
  if (lingering_) return BeginDiscard();
  if (request_) return ec ? Disconnected() : Watch();
  // The answer ended meanwhile, and EndAnswer cancelled this read.
  if (ec && ec != net::error::operation_aborted) return Close();
  ReadRequest();
}

void Session::Send(const HttpResponse& response) {
  if (request_->started) return;
  request_->started = request_->complete = true;
  unsent_ += FormatResponseHead({.status = response.status,
                                 .content_type = response.content_type,
                                 .content_length = response.body.size(),
                                 .keep_alive = keep_alive_,
                                 .allow = response.allow});
  if (!request_->head_only) unsent_ += response.body;
  Pump();
}

void Session::StartStream(const std::string& content_type) {
  if (request_->started) return;
  request_->started = true;
  unsent_ += FormatResponseHead(
      {.content_type = content_type, .chunked = request_->chunkable, .keep_alive = keep_alive_});
  Pump();
}

void Session::Write(std::string_view bytes) {
  if (!request_->started || bytes.empty() || request_->head_only) return;
  if (unsent_.size() > shared_->options.max_unsent_bytes) {
    LogWarning("a client that reads its stream too slowly was dropped");
    return Disconnected();
  }
  unsent_ += request_->chunkable ? FormatChunk(bytes) : std::string(bytes);
  Pump();
}

void Session::Finish(bool close) {
  if (!request_->started) return;
  request_->complete = true;
  if (request_->chunkable && !request_->head_only) unsent_ += kLastChunk;
  if (close) keep_alive_ = false;
  Pump();
}

void Session::Abandon() {
  if (request_->started) return Disconnected();
  LogError("a request was dropped without an answer");
  Send(shared_->handler->ProtocolError(500, "the server failed to answer this request"));
}

void Session::Pump() {
  if (writing_ || closed_) return;
  if (unsent_.empty()) {
    if (request_ && request_->complete) EndAnswer();
    return;
  }
  sending_ = std::exchange(unsent_, {});
  sent_ = 0;
  writing_ = true;
  OnWritten({}, 0);
}

// Continues with the rest of sending_: the time limit starts anew with every bit of progress.
void Session::OnWritten(ErrorCode ec, size_t n) {
  if (closed_) return;
  if (ec) return Disconnected();
  sent_ += n;
  if (sent_ == sending_.size()) {
    writing_ = false;
    return Pump();
  }
  stream_.expires_after(shared_->options.write_timeout);
  stream_.async_write_some(net::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](ErrorCode e, size_t m) { self->OnWritten(e, m); });
}

void Session::EndAnswer() {
  bool all_read = request_->all_read && buffer_.size() == 0;
  request_->on_disconnect = nullptr;
  request_.reset();
  if (!keep_alive_ || shared_->draining) return all_read ? Close() : Linger();
  if (watching_) {
    stream_.cancel();  // OnWatch goes on with the next request
  } else {
    ReadRequest();
  }
}

// Lets the client take the last answer: closing with input unread would reset the connection under it.
void Session::Linger() {
  lingering_ = true;
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  if (watching_) return stream_.cancel();  // OnWatch goes on
  BeginDiscard();
}

void Session::BeginDiscard() {
  stream_.expires_after(shared_->options.linger_timeout);  // once, for all that is discarded
  Discard();
}

void Session::Discard() {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](ErrorCode ec, size_t) {
    if (self->closed_) return;
    if (ec) return self->Close();
    self->Discard();
  });
}

void Session::Disconnected() {
  if (closed_) return;
  std::function<void()> hook;
  if (request_) {
    request_->gone = true;
    hook = std::exchange(request_->on_disconnect, nullptr);
    request_.reset();
  }
  Close();
  if (hook) hook();
}

void Session::Close() {
  if (closed_) return;
  closed_ = true;
  stream_.close();
  shared_->sessions.Remove(shared_from_this());
}

}  // namespace

SessionGroup::SessionGroup(HttpServerOptions options, HttpHandler* handler)
    : shared_(std::make_shared<SessionShared>()) {
  shared_->options = std::move(options);
  shared_->handler = handler;
}

SessionGroup::~SessionGroup() = default;

net::io_context& SessionGroup::io() {
  return shared_->io;
}

void SessionGroup::Adopt(int socket_fd, int family) {
  tcp::socket socket(net::make_strand(shared_->io));
  ErrorCode ignored;
  socket.assign(family == AF_INET6 ? tcp::v6() : tcp::v4(), socket_fd, ignored);
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(net::socket_base::keep_alive(true), ignored);
  bool full = shared_->sessions.size() >= shared_->options.max_connections;
  auto session = std::make_shared<Session>(std::move(socket), shared_);
  shared_->sessions.Add(session);
  session->Post([full](Session& s) { full ? s.FailProtocol(503, "too many connections") : s.ReadRequest(); });
}

void SessionGroup::Drain() {
  shared_->draining = true;
  for (const auto& session : shared_->sessions.All()) session->Post([](Session& s) { s.EndIfIdle(); });
}

void SessionGroup::Abort() {
  for (const auto& session : shared_->sessions.All()) session->Post([](Session& s) { s.Disconnected(); });
}

bool SessionGroup::WaitEmpty(std::chrono::milliseconds limit) {
  return shared_->sessions.WaitEmpty(limit);
}

void SessionGroup::Seal() {
  shared_->sealed = true;
  shared_->io.restart();
  shared_->io.poll();  // what is left would keep its session alive
}

}  // namespace perigee::server
