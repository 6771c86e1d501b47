// Computes results on the last stage and passes them to the consumers. Final norm and LM head run in pieces of
// kHeadRows rows, of which several are in flight. Their logits are copied to the host on a separate stream, so that the
// next micro-batch does not wait for the bus, and in slices, so that the consumers do not wait for whole pieces. A
// thread of the ring calls the consumers, in the order of the rows, so that hashing and writing overlap with the
// computation. It also computes the means of hidden states.
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
  // Returns when `done` returns true, and calls advance() meanwhile. `phase`: whether it waits for the device
  // (kCompute) or the consumers (kWrite).
  using WaitUntil = std::function<void(const std::function<bool()>& done, Phase phase)>;
  // `max_rows` is the number of rows of the largest micro-batch.
  ResultRing(Backend& backend, const Stage& stage, ResultKind kind, int64_t max_rows);
  ResultRing(const ResultRing&) = delete;
  ResultRing& operator=(const ResultRing&) = delete;
  ~ResultRing() { stop(); }

  void start(const std::vector<ResultConsumer*>& consumers);  // begins a run with these consumers
  // Enqueues norm, head and copies for a micro-batch's rows of `residual`: those that `rows` [count] int32 names, or
  // all where it is empty. Their numbers in the job begin with `first_row`. `tag` is the tag of the submitted work and
  // of the spans. With --score, `targets` [count] int32 are the tokens that the rows are to score. With --hidden mean,
  // all rows are given, `lengths` says how many each sample has, and first_row is the first sample's number; `past`
  // rows of that one were given before.
  void push(const Tensor& residual, const Tensor& rows, int64_t first_row, Scratch& scratch, const WaitUntil& wait,
            int64_t tag, const Tensor& targets = {}, std::span<const int32_t> lengths = {}, int64_t past = 0);
  // Hands what has come to the host to the thread; throws what a consumer threw.
  void advance();
  void finish(const WaitUntil& wait);  // returns when the consumers have taken everything
  std::vector<Span> pop_finished();    // when the consumers were called since the last pop_finished()
  // When this returns, no consumer is being called or will be, so they may be destroyed. The ring takes no more work.
  void stop();

 private:
  // Some rows of a piece, which come to the host together.
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
    DType states = DType::kF32;     // --hidden: the type of those in `host`
    std::vector<SampleRows> parts;  // --hidden mean: which rows are whose
    std::unique_ptr<Event> computed;
    std::vector<Slice> slices;
    int64_t first_row = 0, count = 0, tag = 0;
    bool free = true;  // guarded by the Handover
  };
  // What is on its way to the host or to the consumers.
  struct Arrival {
    Piece* piece = nullptr;
    const Slice* slice = nullptr;
  };
  // What the caller and the thread share.
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
  std::deque<Arrival> in_flight_;   // what the device computes and copies, in order
  std::vector<ResultConsumer*> consumers_;

  Handover handover_;
  HiddenRows hidden_;     // --hidden; used only by the thread
  std::thread consumer_;  // last, because it uses the members above
};

}  // namespace lfm2
