// /v1/files and /v1/batches: the thread that answers their clients, sends the contents of files, and runs the batches.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "serve/batch_runner.h"
#include "serve/http/router.h"

namespace lfm2::serve {

class Batches {
 public:
  // `live` outlives this. With a store the thread begins now.
  Batches(BatchSettings settings, LiveRequests& live);
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;
  ~Batches() { end(); }

  // Without a store, these paths are refused by their names. `log` sees each request first.
  void add_routes(http::Router& router, const std::function<void(const http::Request&)>& log);
  bool drawn(const Drawn& token) { return runner_ != nullptr && runner_->drawn(token); }
  // Ends the thread. What is open is taken up by the next server; clients that wait get 503.
  void end();

 private:
  struct Asked {
    http::Request request;
    http::Responder responder;
  };
  struct Download {
    http::Responder responder;
    CheckedFile file;
    uint64_t sent = 0;
  };

  void queue(http::Request&& request, const http::Responder& responder);
  void run();
  void answer(const Asked& asked);
  http::Response answer_files(const http::Request& request, const http::Responder& responder);
  http::Response answer_batches(const http::Request& request);
  http::Response upload(const http::Request& request);
  http::Response create(const http::Request& request);
  http::Response cancel(BatchStore::Stored& batch);
  http::Response remove(const BatchStore::Stored& file);
  http::Response list(const http::Request& request, BatchStore::ById& all, int64_t usual);
  void download(const BatchStore::Stored& file, const http::Responder& responder);
  void send_downloads();
  std::string owner_of(const http::Request& request) const;

  const BatchSettings settings_;
  std::list<Download> downloads_;
  std::mutex mutex_;
  std::condition_variable any_;
  struct {
    std::deque<Asked> asked;
    bool any_ended = false, ends = false;
  } open_;  // guarded by mutex_
  std::unique_ptr<BatchRunner> runner_;
  std::thread thread_;
};

}  // namespace lfm2::serve
