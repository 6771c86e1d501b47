// Computes results on the last stage and passes them to the consumers. Final norm and LM head run in pieces of
// kHeadRows rows, several of them in flight. Logits are copied to the host on a separate stream, so that the next
// micro-batch does not wait for the bus. They are copied in slices, so that consumers do not wait for whole pieces. The
// ring's thread calls the consumers in the order of the rows, so that hashing and writing overlap with computation. It
// also computes the means of hidden states.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "comm/stamps.h"
#include "kernels/backend.h"
#include "stage/io/results.h"
#include "stage/model/memory_plan.h"
#include "stage/model/stage.h"
#include "stage/pipeline/hidden_rows.h"

namespace lfm2 {

class ResultRing {
 public:
  // Waits until `done` returns true, and calls advance() meanwhile. `phase`: kCompute waits for the device, kWrite for
  // the consumers.
  using WaitUntil = std::function<void(const std::function<bool()>& done, Phase phase)>;
  // `max_rows` is the number of rows of the largest micro-batch.
  ResultRing(Backend& backend, const Stage& stage, ResultKind kind, int64_t max_rows);
  ResultRing(const ResultRing&) = delete;
  ResultRing& operator=(const ResultRing&) = delete;
  ~ResultRing() { stop(); }

  void start(const std::vector<ResultConsumer*>& consumers);  // begins a run with these consumers
  // Enqueues norm, head and copies for a micro-batch's rows of `residual`: those in `rows` [count] int32, or all if it
  // is empty. Row numbers in the job begin with `first_row`. `tag` is the tag of the submitted work and of the spans.
  // With --score, `targets` [count] int32 are the scored tokens. With --hidden mean, all rows are passed, `lengths` has
  // the number of rows of each sample, and first_row is the first sample's number; `past` rows of that sample were
  // passed before.
  void push(const Tensor& residual, const Tensor& rows, int64_t first_row, Scratch& scratch, const WaitUntil& wait,
            int64_t tag, const Tensor& targets = {}, std::span<const int32_t> lengths = {}, int64_t past = 0);
  // Passes results that have arrived on the host to the thread; rethrows a consumer's exception.
  void advance();
  void finish(const WaitUntil& wait);  // returns when the consumers have received everything
  std::vector<Span> pop_finished();    // the spans of consumer calls since the last pop_finished()
  // After this returns, no consumer is called any more, so they may be destroyed. The ring accepts no more work.
  void stop();

 private:
  // Rows of a piece that are copied to the host together.
  struct Slice {
    std::unique_ptr<Event> ready;
    int64_t first = 0, count = 0;  // rows of the piece
    bool last = false;             // of the piece
  };
  struct Piece {
    Buffer device, host;
    Tensor logits, integers, log_probs;  // on the device; `integers`: top_ids or `is_greedy` of ResultRows
    float* host_logits = nullptr;
    int32_t* host_integers = nullptr;
    float* host_log_probs = nullptr;
    DType states = DType::kF32;     // --hidden: the type of the states in `host`
    std::vector<SampleRows> parts;  // --hidden mean: the samples of the rows
    std::unique_ptr<Event> computed;
    std::vector<Slice> slices;
    int64_t first_row = 0, count = 0, tag = 0;
    bool free = true;  // guarded by the Handover
  };
  // A slice on its way to the host or to the consumers.
  struct Arrival {
    Piece* piece = nullptr;
    const Slice* slice = nullptr;
  };
  // The state shared by the caller and the thread.
  struct Handover {
    std::mutex mutex;  // guards the other members, and Piece::free
    std::condition_variable changed;
    std::deque<Arrival> arrived;  // for the consumers, in order
    std::vector<Span> finished;
    std::exception_ptr error;
    bool stopping = false;
  };
  void enqueue(Piece& piece, const Tensor& residual, const Tensor& rows, const Tensor& targets, Scratch& scratch);
  void cut(Piece& piece, int64_t rows);
  void copy(Piece& piece);
  bool is_free(const Piece& piece);
  void consumer_loop();
  void consume(const Arrival& arrival);
  ResultRows hidden_rows(const Piece& piece);

  Backend& backend_;
  const Stage& stage_;
  ResultKind kind_;
  std::vector<Piece> pieces_;
  std::unique_ptr<Stream> copies_;  // declared after the pieces: it ends before their memory is freed
  size_t next_ = 0;                 // the piece to fill next
  std::deque<Arrival> in_flight_;   // slices that the device computes and copies, in order
  std::vector<ResultConsumer*> consumers_;

  Handover handover_;
  HiddenRows hidden_;     // --hidden; used only by the thread
  std::thread consumer_;  // last, because it uses the members above
};

}  // namespace lfm2
