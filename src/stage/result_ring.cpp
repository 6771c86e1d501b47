// Two buffers of logits between the device and the consumers.
#include "stage/result_ring.h"

#include <algorithm>

#include "stage/memory_plan.h"

namespace lfm2 {

ResultRing::ResultRing(Backend& backend, const Stage& stage, ResultKind kind, int64_t largest_rows)
    : backend_(backend), stage_(stage), kind_(kind) {
  const int64_t rows = std::min(largest_rows, kHeadRows), vocab = stage.config().vocab;
  for (Piece& piece : pieces_) {
    const auto logits = static_cast<size_t>(rows * vocab), top = static_cast<size_t>(rows * kind.top_k);
    piece.device = backend.allocate((logits + 2 * top) * sizeof(float));
    piece.logits = Tensor(piece.device.data(), DType::kF32, {rows, vocab});
    piece.host = backend.allocate_host((kind.top_k > 0 ? 2 * top : logits) * sizeof(float));
    if (kind.top_k > 0) {
      piece.ids = Tensor(piece.logits.data + logits * sizeof(float), DType::kI32, {rows, kind.top_k});
      piece.log_probs = Tensor(piece.ids.data + top * sizeof(float), DType::kF32, {rows, kind.top_k});
      piece.host_ids = reinterpret_cast<int32_t*>(piece.host.data());
      piece.host_log_probs = reinterpret_cast<float*>(piece.host.data()) + top;
    } else {
      piece.host_logits = reinterpret_cast<float*>(piece.host.data());
    }
    piece.ready = backend.create_event();
  }
}

void ResultRing::give(const Tensor& residual, const Tensor& rows, int64_t first_row, Scratch& scratch,
                      const WaitUntil& wait, const std::vector<ResultConsumer*>& consumers, int64_t tag) {
  const int64_t count = rows ? rows.dim(0) : residual.dim(0);
  for (int64_t done = 0; done < count; done += kHeadRows) {
    Piece& piece = pieces_[next_];
    hand_over(piece, wait, consumers);
    piece.first_row = first_row + done;
    piece.count = std::min(kHeadRows, count - done);
    const Tensor some_rows = rows ? rows.rows(done, piece.count) : Tensor();
    const Tensor some_residual = rows ? residual : residual.rows(done, piece.count);
    backend_.compute().submit(
        [this, &piece, some_residual, some_rows, &scratch] { enqueue(piece, some_residual, some_rows, scratch); }, tag);
    backend_.compute().record(*piece.ready);
    next_ = 1 - next_;
  }
}

void ResultRing::enqueue(Piece& piece, const Tensor& residual, const Tensor& rows, Scratch& scratch) {
  const Tensor logits = piece.logits.rows(0, piece.count);
  stage_.head(backend_.ops(), residual, rows, scratch, logits);
  if (kind_.top_k == 0) return backend_.copy_to_host(piece.host_logits, logits);
  const Tensor ids = piece.ids.rows(0, piece.count), log_probs = piece.log_probs.rows(0, piece.count);
  backend_.ops().top_log_probs(logits, ids, log_probs);
  backend_.copy_to_host(piece.host_ids, ids);
  backend_.copy_to_host(piece.host_log_probs, log_probs);
}

void ResultRing::hand_over(Piece& piece, const WaitUntil& wait, const std::vector<ResultConsumer*>& consumers) {
  if (piece.count == 0) return;
  wait([&] { return piece.ready->done(); });
  ResultRows rows{.first = piece.first_row, .count = piece.count, .logits = {}, .top_ids = {}, .top_log_probs = {}};
  if (kind_.top_k == 0) {
    rows.logits = {piece.host_logits, static_cast<size_t>(piece.count * stage_.config().vocab)};
  } else {
    rows.top_ids = {piece.host_ids, static_cast<size_t>(piece.count * kind_.top_k)};
    rows.top_log_probs = {piece.host_log_probs, static_cast<size_t>(piece.count * kind_.top_k)};
  }
  for (ResultConsumer* consumer : consumers) consumer->take(rows);
  piece.count = 0;
}

void ResultRing::finish(const WaitUntil& wait, const std::vector<ResultConsumer*>& consumers) {
  hand_over(pieces_[next_], wait, consumers);  // the older one first
  hand_over(pieces_[1 - next_], wait, consumers);
}

}  // namespace lfm2
