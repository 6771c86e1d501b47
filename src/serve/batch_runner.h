// Runs the batches of a store beside the requests of clients: the oldest batch first, some lines at a time, and fewer
// while clients wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/batches/batch_line.h"
#include "serve/batches/batch_run.h"
#include "serve/live_requests.h"

namespace lfm2::serve {

struct BatchSettings {
  BatchStore* store = nullptr;  // null: the server has no batches
  bool has_keys = false;        // clients have keys, by which their files and batches are theirs
  int64_t max_open = 1;         // sequences of batches at a time
  std::string made_by = {};     // checksum of what answers depend on, besides their lines
  BatchContext context = {};    // without what depends on the batch
};

// A batch's state is in the store, so that it outlives the server. All functions but drawn() are used by one thread.
class BatchRunner {
 public:
  // `live` outlives this. `wake` is called when a line has ended, on the thread that calls drawn(). Continues the
  // batches that an earlier server has begun.
  BatchRunner(const BatchSettings& settings, LiveRequests& live, std::function<void()> wake);

  // Begins a batch of the store, and ends one early.
  void begin(const std::string& id);
  void cancel(const std::string& id);
  // Writes answers, and begins lines while there is room. Returns whether more lines may begin at once.
  bool poll();
  // Takes back all open lines; their batches continue in the next server's run.
  void withdraw();
  // The object of a batch as it is now.
  OrderedJson object(const BatchStore::Stored& batch) const;

  // The thread that has the tokens of all requests: returns false for a token of another one.
  bool drawn(const Drawn& token);

 private:
  using Clock = std::chrono::steady_clock;
  struct Batch {
    std::string id;
    std::shared_ptr<const BatchContext> context = {};
    std::unique_ptr<BatchRun> run = {};  // null before the batch's turn, so that it holds no open files
    bool read = false;                   // all lines have begun
    Clock::time_point waits_until = {};  // after there was no memory
    int without_memory = 0;              // times in a row that there was none
  };
  struct Open {
    std::string batch;
    std::unique_ptr<BatchLine> line;
  };

  void guard(const std::string& id, const std::function<void()>& work);
  void set(const std::string& id, const OrderedJson& fields);
  void end(const std::string& id, const char* status, const OrderedJson& errors = nullptr);
  void open(Batch& batch);
  bool begins_again(const std::string& id);
  void take_back(const std::function<bool(const Open&)>& which, size_t most);
  void drop_lines(const std::string& id);
  void yield();
  void end_answered();  // batches all of whose lines are answered
  void sync();
  void write(const Open& ended);
  void write_ended();
  bool begin_line();
  bool begin_line(Batch& batch);
  bool begin_line(Open line);
  Batch* find(const std::string& id);

  const BatchSettings settings_;
  LiveRequests& live_;
  const std::function<void()> wake_;
  std::list<Batch> batches_;  // the oldest first
  std::deque<Open> again_;    // lines that were taken back
  Clock::time_point synced_ = Clock::now(), yielded_;

  struct {
    mutable std::mutex mutex;
    std::map<int32_t, Open> lines;  // by the first sample
    int64_t sequences = 0;
    std::vector<Open> ended;
  } open_;  // guarded by its mutex
};

}  // namespace lfm2::serve
