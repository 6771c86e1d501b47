// The last stage's way out: final norm and head in pieces of kHeadRows rows, some in flight, handed to the consumers in
// order by a thread of its own, so that hashing and writing run under the computation.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/stamps.h"
#include "kernels/backend.h"
#include "stage/io/results.h"
#include "stage/model/memory_plan.h"
#include "stage/model/stage.h"

namespace lfm2 {

class ResultRing {
 public:
  // Blocks until `done` is true, calling advance() meanwhile. The phase says what is waited for: the device
  // (kCompute) or the consumers (kWrite).
  using WaitUntil = std::function<void(const std::function<bool()>& done, Phase phase)>;
  // `max_rows` of one micro-batch.
  ResultRing(Backend& backend, const Stage& stage, ResultKind kind, int64_t max_rows);
  ResultRing(const ResultRing&) = delete;
  ResultRing& operator=(const ResultRing&) = delete;
  ~ResultRing() { stop(); }

  void start(const std::vector<ResultConsumer*>& consumers);  // of the run that begins
  // Enqueues norm, head and copies for rows of `residual`; `rows` [count] int32, or empty for all of them. Row
  // `first_row` of the job comes first; `tag` is for Stream::submit() and the spans.
  void give(const Tensor& residual, const Tensor& rows, int64_t first_row, Scratch& scratch, const WaitUntil& wait,
            int64_t tag);
  // Passes on what has come from the device; throws what a consumer threw.
  void advance();
  void finish(const WaitUntil& wait);  // returns when the consumers have everything
  std::vector<Span> take_finished();   // what the consumers did, piece by piece
  // After this no consumer is being called or will be: they may go. The ring takes no more work.
  void stop();

 private:
  struct Piece {
    Buffer device, host;
    Tensor logits, ids, log_probs;  // on the device
    float* host_logits = nullptr;
    int32_t* host_ids = nullptr;
    float* host_log_probs = nullptr;
    std::unique_ptr<Event> ready;
    int64_t first_row = 0, count = 0, tag = 0;
    bool free = true;  // guarded by mutex_
  };
  void enqueue(Piece& piece, const Tensor& residual, const Tensor& rows, Scratch& scratch);
  bool is_free(const Piece& piece);
  void consumer_loop();
  void consume(const Piece& piece) const;

  Backend& backend_;
  const Stage& stage_;
  ResultKind kind_;
  std::array<Piece, kResultPieces> pieces_;
  size_t next_ = 0;               // the piece to fill
  std::deque<Piece*> in_flight_;  // on the device, in order
  std::vector<ResultConsumer*> consumers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece*> arrived_;  // for the consumers, in order
  std::vector<Span> finished_;
  std::exception_ptr error_;
  bool stopping_ = false;  // all above from mutex_ on are guarded by it
  std::thread consumer_;   // last: it uses all of the above
};

}  // namespace lfm2
