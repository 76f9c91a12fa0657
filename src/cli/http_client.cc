#include "cli/http_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <utility>

#include "base/strings.h"

namespace perigee::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr std::chrono::seconds kConnectTimeout{10};
// Far above any answer; keeps a wrong server from filling our memory.
constexpr uint64_t kMaxReplyBytes = uint64_t{256} << 20;

}  // namespace

std::optional<HttpUrl> ParseHttpUrl(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (url.substr(0, kScheme.size()) != kScheme) return std::nullopt;
  url.remove_prefix(kScheme.size());
  const size_t slash = url.find('/');
  std::string_view authority = url.substr(0, slash);
  std::string_view prefix = slash == std::string_view::npos ? "" : url.substr(slash);
  while (!prefix.empty() && prefix.back() == '/') prefix.remove_suffix(1);
  if (url.find_first_of(" \t\r\n?#@") != std::string_view::npos) return std::nullopt;

  HttpUrl parsed{.host = "", .port = 80, .prefix = std::string(prefix)};
  size_t host_end = authority.find(':');
  if (authority.substr(0, 1) == "[") {
    const size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos) return std::nullopt;
    parsed.host = authority.substr(1, bracket - 1);
    host_end = bracket + 1;
    if (host_end < authority.size() && authority[host_end] != ':') return std::nullopt;
  } else {
    parsed.host = authority.substr(0, host_end);
  }
  if (parsed.host.empty()) return std::nullopt;
  if (host_end < authority.size()) {
    const std::string_view port = authority.substr(host_end + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), parsed.port);
    if (error != std::errc() || end != port.data() + port.size() || parsed.port < 1 || parsed.port > 65535) {
      return std::nullopt;
    }
  }
  return parsed;
}

// Time limits of a tcp_stream hold for asynchronous calls only, so each step is started and run to its end.
class HttpClient::Connection {
 public:
  Connection() : stream_(io_) {}

  beast::error_code Open(const HttpUrl& url) {
    beast::error_code error;
    asio::ip::tcp::resolver resolver(io_);
    const auto addresses = resolver.resolve(url.host, std::to_string(url.port), error);
    if (error) return error;
    stream_.expires_after(kConnectTimeout);
    stream_.async_connect(addresses, [&](beast::error_code e, const auto&) { error = e; });
    Run();
    if (!error) stream_.socket().set_option(asio::ip::tcp::no_delay(true), error);
    return error;
  }

  beast::error_code Exchange(const http::request<http::string_body>& request, std::chrono::seconds timeout,
                             HttpReply* reply, bool* keep_alive, bool* got_bytes) {
    beast::error_code error;
    stream_.expires_after(timeout);
    http::async_write(stream_, request, [&](beast::error_code e, size_t) { error = e; });
    Run();
    if (error) return error;
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxReplyBytes);
    http::async_read(stream_, buffer_, parser, [&](beast::error_code e, size_t) { error = e; });
    Run();
    *got_bytes = parser.got_some() || buffer_.size() > 0;
    if (error) return error;
    *keep_alive = parser.get().keep_alive();
    reply->status = parser.get().result_int();
    reply->body = std::move(parser.get().body());
    return {};
  }

 private:
  void Run() {
    io_.restart();
    io_.run();
  }

  asio::io_context io_{1};
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
};

HttpClient::HttpClient(HttpUrl url, std::chrono::seconds timeout) : url_(std::move(url)), timeout_(timeout) {}
HttpClient::~HttpClient() = default;

StatusOr<HttpReply> HttpClient::Post(std::string_view path, std::string body) {
  const bool ipv6 = url_.host.find(':') != std::string::npos;
  const std::string authority = StrCat(ipv6 ? "[" : "", url_.host, ipv6 ? "]" : "", ":", url_.port);
  const std::string target = StrCat(url_.prefix, path);
  http::request<http::string_body> request(http::verb::post, target, 11);
  request.set(http::field::host, authority);
  request.set(http::field::user_agent, "perigee");
  request.set(http::field::content_type, "application/json");
  request.body() = std::move(body);
  request.prepare_payload();

  bool got_bytes = false;
  const auto attempt = [&](HttpReply* reply) -> beast::error_code {
    if (!connection_) {
      connection_ = std::make_unique<Connection>();
      if (const beast::error_code error = connection_->Open(url_)) return error;
    }
    bool keep_alive = false;
    const beast::error_code error = connection_->Exchange(request, timeout_, reply, &keep_alive, &got_bytes);
    if (error || !keep_alive) connection_.reset();
    return error;
  };
  HttpReply reply;
  const bool reused = connection_ != nullptr;
  beast::error_code error = attempt(&reply);
  // A kept connection may have been closed at the other end meanwhile: then, and only then, once more.
  if (error && reused && !got_bytes && error != beast::error::timeout) error = attempt(&reply);
  if (error) {
    connection_.reset();
    return Unavailable(StrCat("http://", authority, target, ": ", error.message()));
  }
  return reply;
}

}  // namespace perigee::cli
