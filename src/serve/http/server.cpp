// The only file with Boost.Asio: it takes seconds to compile.
#include "serve/http/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "serve/http/connection.h"
#include "serve/http/response_head.h"

namespace lfm2::http {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

// The pause before the next accept() if there were no descriptors or no memory.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

std::string text_of(const tcp::endpoint& end) { return Address{end.address().to_string(), end.port()}.text(); }

}  // namespace

struct Server::Impl {
  Impl(const Limits& limits, Service all) : service(std::move(all)), shared(std::make_shared<Shared>(limits)) {
    shared->id_prefix = fmt::format("{:08x}", std::random_device()());
  }

  class Link;
  void accept();
  void accepted(const error_code& error, tcp::socket socket);
  void forget(const std::shared_ptr<Link>& link);
  template <class F>
  void change_all(F&& what);
  void run();

  const Service service;
  const std::shared_ptr<Shared> shared;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer accept_pause{io};
  std::array<char, 64 << 10> buffer{};  // for whichever connection is read
  std::unordered_set<std::shared_ptr<Link>> links;
  std::thread thread;  // while it runs, only it uses the members above

  std::atomic<size_t> exchanges = 0;
  std::atomic<uint64_t> refused = 0;
  std::mutex mutex;
  std::condition_variable changed;
  size_t connections = 0;  // guarded by mutex
};

// A connection with its socket and its timer. Pending operations on these hold the link.
class Server::Impl::Link : public std::enable_shared_from_this<Link> {
 public:
  Link(Impl& server, tcp::socket socket, std::string peer)
      : server_(server), socket_(std::move(socket)), timer_(server.io), peer_(std::move(peer)) {}

  void open() {
    const auto woken = [link = weak_from_this()] {
      if (const auto self = link.lock())
        self->change([](Connection& connection, Clock::time_point now) { connection.woken(now); });
    };
    const auto wake = [&io = server_.io, woken] { asio::post(io, woken); };
    connection_.emplace(server_.shared, server_.service, peer_, wake, Clock::now());
    change([](Connection&, Clock::time_point) {});
  }

  // Passes an event to the connection, and performs the resulting reads and writes.
  template <class F>
  void change(F&& what) {
    if (!socket_.is_open()) return;
    try {
      what(*connection_, Clock::now());
      pump();
    } catch (const std::exception& error) {  // no memory, or a handler's callback that threw
      if (server_.service.report) server_.service.report(fmt::format("connection {}: {}", peer_, error.what()));
      shut();
    }
  }

 private:
  void pump();
  void write();
  void wait_for_input();
  void read();
  void arm();
  void tick();
  void shut();
  void count();

  Impl& server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  const std::string peer_;
  std::optional<Connection> connection_;                    // from open() on
  bool reading_ = false, writing_ = false, armed_ = false;  // there is a wait for it
  bool half_closed_ = false;                                // our side
  bool counted_ = false;                                    // among the exchanges
  Clock::time_point alarm_;                                 // where armed_
};

void Server::Impl::Link::pump() {
  if (!writing_) write();
  if (connection_->closed()) return shut();
  if (connection_->lingers() && !half_closed_) {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    half_closed_ = true;
  }
  wait_for_input();
  arm();
  count();
}

void Server::Impl::Link::write() {
  while (true) {
    const std::string_view bytes = connection_->unsent();
    if (bytes.empty()) return;
    error_code error;
    const size_t sent = socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
    if (error == asio::error::would_block) break;
    if (error) return connection_->close(Gone::kLeft);
    connection_->sent(sent, Clock::now());
  }
  writing_ = true;
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const error_code&) {
    self->writing_ = false;
    self->change([](Connection&, Clock::time_point) {});
  });
}

void Server::Impl::Link::wait_for_input() {
  if (reading_ || !connection_->wants_input()) return;
  reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code&) {
    self->reading_ = false;
    self->read();
  });
}

void Server::Impl::Link::read() {
  if (!socket_.is_open() || !connection_->wants_input()) return;
  error_code error;
  const size_t bytes = socket_.read_some(asio::buffer(server_.buffer), error);
  change([&](Connection& connection, Clock::time_point now) {
    if (error == asio::error::would_block) return;
    if (error == asio::error::eof)
      connection.hung_up(now);
    else if (error)
      connection.close(Gone::kLeft);
    else
      connection.received({server_.buffer.data(), bytes}, now);
  });
}

// The timer is moved only if it would expire too late. If it expires too early, it is set again.
void Server::Impl::Link::arm() {
  Clock::time_point next = connection_->deadline();
  if (connection_->paused()) next = std::min(next, Clock::now() + server_.shared->limits.hang_up_look_time);
  if (armed_ && alarm_ <= next) return;
  alarm_ = next;
  armed_ = true;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error) return;  // moved
    self->armed_ = false;
    self->tick();
  });
}

void Server::Impl::Link::tick() {
  change([this](Connection& connection, Clock::time_point now) {
    if (now >= connection.deadline())
      connection.deadline_passed(now);
    else if (connection.paused() && has_hung_up(socket_.native_handle()))
      connection.hung_up(now);
  });
}

void Server::Impl::Link::shut() {
  if (!socket_.is_open()) return;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  if (connection_) connection_->close(Gone::kStopped);
  count();
  server_.forget(shared_from_this());
}

void Server::Impl::Link::count() {
  const bool in_exchange = connection_ && connection_->in_exchange();
  if (in_exchange == counted_) return;
  counted_ = in_exchange;
  if (in_exchange)
    ++server_.exchanges;
  else
    --server_.exchanges;
}

void Server::Impl::accept() {
  acceptor.async_accept([this](const error_code& error, tcp::socket socket) { accepted(error, std::move(socket)); });
}

void Server::Impl::accepted(const error_code& error, tcp::socket socket) {
  if (!acceptor.is_open()) return;
  if (error && error != asio::error::connection_aborted) {
    accept_pause.expires_after(kAcceptPause);
    accept_pause.async_wait([this](const error_code& stopped) {
      if (!stopped) accept();
    });
    return;
  }
  error_code unknown_peer;
  const tcp::endpoint peer = error ? tcp::endpoint() : socket.remote_endpoint(unknown_peer);
  if (!error && !unknown_peer) {
    error_code ignored;
    socket.non_blocking(true, ignored);
    set_options(socket.native_handle(), shared->limits.send_time);
    if (links.size() < shared->limits.max_connections) {
      const auto link = std::make_shared<Link>(*this, std::move(socket), text_of(peer));
      links.insert(link);
      {
        const std::lock_guard lock(mutex);
        connections = links.size();
      }
      link->open();
    } else {
      ++refused;
      const std::string answer = last_answer(error_response(503, "The server has too many connections."));
      socket.write_some(asio::buffer(answer), ignored);
      socket.shutdown(tcp::socket::shutdown_both, ignored);
    }
  }
  accept();
}

void Server::Impl::forget(const std::shared_ptr<Link>& link) {
  links.erase(link);
  const std::lock_guard lock(mutex);
  connections = links.size();
  if (links.empty()) changed.notify_all();
}

template <class F>
void Server::Impl::change_all(F&& what) {
  const std::vector<std::shared_ptr<Link>> all(links.begin(), links.end());  // a change may close its link
  for (const auto& link : all) link->change(what);
}

void Server::Impl::run() {
  while (true) {
    try {
      io.run();
      return;
    } catch (const std::exception& error) {  // outside of any connection, such as no memory for a new one
      if (service.report) service.report(fmt::format("server: {}", error.what()));
      if (acceptor.is_open()) accept();
    }
  }
}

Server::Server(const Limits& limits, Service service) : impl_(std::make_unique<Impl>(limits, std::move(service))) {}

Server::~Server() { stop(); }

Address Server::listen(const std::string& host, uint16_t port) {
  const auto check = [&](const error_code& error, const char* call) {
    if (error)
      throw Error(ExitCode::kUnavailable,
                  fmt::format("{}: {} failed: {}", Address{host, port}.text(), call, error.message()));
  };
  error_code error;
  asio::ip::address address = asio::ip::make_address(host, error);
  if (error) {
    const auto found = tcp::resolver(impl_->io).resolve(host, "", tcp::resolver::passive, error);
    check(error, "looking up the name");
    const auto is_v6 = [](const auto& entry) { return entry.endpoint().address().is_v6(); };
    address = std::ranges::min_element(found, {}, is_v6)->endpoint().address();
  }
  const tcp::endpoint end(address, port);
  tcp::acceptor& acceptor = impl_->acceptor;
  acceptor.open(end.protocol(), error);
  check(error, "socket");
  bound_buffers(acceptor.native_handle());
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  check(error, "setsockopt");
  acceptor.bind(end, error);
  check(error, "bind");
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  check(error, "listen");
  const tcp::endpoint bound = acceptor.local_endpoint(error);
  check(error, "getsockname");
  return {bound.address().to_string(), bound.port()};
}

void Server::start() {
  expect(impl_->acceptor.is_open() && !impl_->thread.joinable(),
         "a server that was started before it listened, or twice");
  impl_->accept();
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

void Server::stop_accepting() {
  impl_->shared->draining = true;
  asio::post(impl_->io, [impl = impl_.get()] {
    error_code ignored;
    impl->acceptor.close(ignored);
    impl->accept_pause.cancel();
    impl->change_all([](Connection& connection, Clock::time_point now) { connection.woken(now); });
  });
}

bool Server::wait_until_closed(std::chrono::milliseconds time) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, time, [this] { return impl_->connections == 0; });
}

void Server::stop() {
  stop_accepting();
  asio::post(impl_->io, [impl = impl_.get()] {
    impl->change_all([](Connection& connection, Clock::time_point) { connection.close(Gone::kStopped); });
  });
  // The thread ends when nothing is left to wait for.
  if (impl_->thread.joinable()) impl_->thread.join();
}

Counts Server::counts() const {
  const std::lock_guard lock(impl_->mutex);
  return {.connections = impl_->connections,
          .exchanges = impl_->exchanges,
          .body_bytes = impl_->shared->bodies->used(),
          .unsent_bytes = impl_->shared->unsent->used(),
          .refused_connections = impl_->refused};
}

}  // namespace lfm2::http
