#include "server/http_server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "server/http_session.h"

namespace perigee::server {

namespace net = boost::asio;
using tcp = net::ip::tcp;
using ErrorCode = boost::system::error_code;

// The listening socket and the threads; the connections are the session group's.
class HttpServer::Impl {
 public:
  Impl(const HttpServerOptions& options, HttpHandler* handler)
      : options_(options),
        sessions_(options, handler),
        work_(net::make_work_guard(sessions_.io())),
        acceptor_(net::make_strand(sessions_.io())),
        retry_(acceptor_.get_executor()) {}

  Status Listen() {
    ErrorCode ec;
    tcp::resolver resolver(sessions_.io());
    auto found = resolver.resolve(options_.host, std::to_string(options_.port),
                                  tcp::resolver::passive | tcp::resolver::numeric_service, ec);
    if (!ec) {
      tcp::endpoint endpoint = found.begin()->endpoint();
      acceptor_.open(endpoint.protocol(), ec);
      if (!ec) acceptor_.set_option(net::socket_base::reuse_address(true), ec);
      if (!ec) acceptor_.bind(endpoint, ec);
      if (!ec) acceptor_.listen(net::socket_base::max_listen_connections, ec);
    }
    if (ec)
      return InvalidArgument(
          StrCat("cannot listen on ", options_.host, ":", options_.port, ": ", ec.message()));
    port_ = acceptor_.local_endpoint(ec).port();
    return Status::Ok();
  }

  void Run() {
    net::post(acceptor_.get_executor(), [this] { Accept(); });
    for (int i = 0; i < options_.io_threads; ++i) threads_.emplace_back([this] { sessions_.io().run(); });
  }

  int port() const { return port_; }

  bool Drain(std::chrono::milliseconds grace) {
    if (!std::exchange(draining_, true)) {
      net::post(acceptor_.get_executor(), [this] {
        ErrorCode ignored;
        acceptor_.close(ignored);
        retry_.cancel();
      });
      sessions_.Drain();
    }
    return sessions_.WaitEmpty(grace);
  }

  void Stop() {
    if (std::exchange(stopped_, true)) return;
    if (!Drain(std::chrono::milliseconds(0))) {
      sessions_.Abort();
      sessions_.WaitEmpty(std::chrono::seconds(5));
    }
    work_.reset();  // the threads return once the closed connections' last handlers have run
    for (std::thread& t : threads_) t.join();
    sessions_.Seal();
  }

 private:
  void Accept() {
    acceptor_.async_accept([this](ErrorCode ec, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (ec) return RetryLater(ec);
      ErrorCode ignored;
      int family = socket.local_endpoint(ignored).protocol().family();
      sessions_.Adopt(socket.release(ignored), family);
      Accept();
    });
  }

  // Out of file descriptors, most likely: trying again at once would spin.
  void RetryLater(const ErrorCode& ec) {
    LogWarning(StrCat("cannot accept a connection: ", ec.message()));
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([this](ErrorCode) {
      if (acceptor_.is_open()) Accept();
    });
  }

  const HttpServerOptions options_;
  SessionGroup sessions_;
  net::executor_work_guard<net::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  net::steady_timer retry_;
  std::vector<std::thread> threads_;
  bool draining_ = false;
  bool stopped_ = false;
  int port_ = 0;
};

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options, HttpHandler* handler) {
  auto impl = std::make_unique<Impl>(options, handler);
  PERIGEE_RETURN_IF_ERROR(impl->Listen());
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  Stop();
}

int HttpServer::port() const {
  return impl_->port();
}

bool HttpServer::Drain(std::chrono::milliseconds grace) {
  return impl_->Drain(grace);
}

void HttpServer::Stop() {
  impl_->Stop();
}

}  // namespace perigee::server
