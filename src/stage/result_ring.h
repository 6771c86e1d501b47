// The last stage's way out: final norm and head in pieces of kHeadRows rows, two in flight, handed to the consumers in
// order.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "stage/results.h"
#include "stage/stage.h"

namespace lfm2 {

class ResultRing {
 public:
  // `largest_rows` of one micro-batch; `wait` blocks until its argument is true.
  using WaitUntil = std::function<void(const std::function<bool()>& done)>;
  ResultRing(Backend& backend, const Stage& stage, ResultKind kind, int64_t largest_rows);

  // Enqueues norm, head and copies for rows of `residual`; `rows` [count] int32, or empty for all of them. Row
  // `first_row` of the job comes first; `tag` is for Stream::submit(). Hands finished pieces to `consumers` while it waits for a free buffer.
  void give(const Tensor& residual, const Tensor& rows, int64_t first_row, Scratch& scratch, const WaitUntil& wait,
            const std::vector<ResultConsumer*>& consumers, int64_t tag = 0);
  // Hands over what is still in flight.
  void finish(const WaitUntil& wait, const std::vector<ResultConsumer*>& consumers);

 private:
  struct Piece {
    Buffer device, host;
    Tensor logits, ids, log_probs;  // on the device
    float* host_logits = nullptr;
    int32_t* host_ids = nullptr;
    float* host_log_probs = nullptr;
    std::unique_ptr<Event> ready;
    int64_t first_row = 0, count = 0;  // count 0: free
  };
  void enqueue(Piece& piece, const Tensor& residual, const Tensor& rows, Scratch& scratch);
  void hand_over(Piece& piece, const WaitUntil& wait, const std::vector<ResultConsumer*>& consumers);

  Backend& backend_;
  const Stage& stage_;
  ResultKind kind_;
  std::array<Piece, 2> pieces_;
  size_t next_ = 0;  // the piece to fill; the other one is older
};

}  // namespace lfm2
