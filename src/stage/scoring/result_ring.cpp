// push() submits a piece to the device, advance() passes its slices to the thread, and the piece is free again after
// the consumers have received its last slice.
#include "stage/scoring/result_ring.h"

#include <algorithm>
#include <utility>

namespace lfm2 {

namespace {

// Rows of logits that are copied to the host together: few, so that a job's last rows reach the consumers soon.
constexpr int64_t kSliceRows = 64;

}  // namespace

ResultRing::ResultRing(Backend& backend, const Stage& stage, ResultKind kind, int64_t max_rows)
    : backend_(backend),
      stage_(stage),
      kind_(kind),
      pieces_(result_pieces(max_rows)),
      copies_(backend.create_stream()),
      hidden_(stage.config().hidden) {
  const int64_t rows = std::min(max_rows, kHeadRows), vocab = stage.config().vocab, columns = kind.columns();
  for (Piece& piece : pieces_) {
    piece.computed = backend.create_event();
    if (kind.hidden != Hidden::kNone) {  // in the type of activations, which is fp32 or a smaller one
      piece.host = backend.allocate_host(static_cast<size_t>(rows * stage.config().hidden) * sizeof(float));
      continue;
    }
    const auto logits = static_cast<size_t>(rows * vocab), top = static_cast<size_t>(rows * columns);
    piece.device = backend.allocate((logits + 2 * top) * sizeof(float));
    piece.logits = Tensor(piece.device.data(), DType::kF32, {rows, vocab});
    piece.host = backend.allocate_host((columns > 0 ? 2 * top : logits) * sizeof(float));
    if (columns > 0) {
      piece.integers = Tensor(piece.logits.data + logits * sizeof(float), DType::kI32, {rows, columns});
      piece.log_probs = Tensor(piece.integers.data + top * sizeof(float), DType::kF32, {rows, columns});
      piece.host_integers = reinterpret_cast<int32_t*>(piece.host.data());
      piece.host_log_probs = reinterpret_cast<float*>(piece.host.data()) + top;
    } else {
      piece.host_logits = reinterpret_cast<float*>(piece.host.data());
    }
  }
  consumer_ = std::thread([this] { consumer_loop(); });
}

void ResultRing::stop() {
  {
    const std::lock_guard lock(handover_.mutex);
    handover_.stopping = true;
    handover_.changed.notify_all();
  }
  if (consumer_.joinable()) consumer_.join();
}

void ResultRing::start(const std::vector<ResultConsumer*>& consumers) {
  consumers_ = consumers;
  hidden_.start_over();
}

void ResultRing::push(const Tensor& residual, const Tensor& rows, int64_t first_row, Scratch& scratch,
                      const WaitUntil& wait, int64_t tag, const Tensor& targets, std::span<const int32_t> lengths,
                      int64_t past) {
  const int64_t count = rows ? rows.dim(0) : residual.dim(0);
  SampleCutter samples(lengths, past);
  for (int64_t done = 0; done < count; done += kHeadRows) {
    Piece& piece = pieces_[next_];
    wait([&] { return piece.slices.empty() || piece.slices.back().ready->done(); }, Phase::kCompute);
    wait([&] { return is_free(piece); }, Phase::kWrite);
    piece.first_row = first_row + (kind_.hidden == Hidden::kMean ? samples.ended() : done);
    piece.count = std::min(kHeadRows, count - done);
    if (kind_.hidden == Hidden::kMean) piece.parts = samples.next(piece.count);
    piece.states = residual.dtype;
    piece.tag = tag;
    piece.free = false;  // without the lock: the thread does not see the piece before it has arrived
    const Tensor some_rows = rows ? rows.rows(done, piece.count) : Tensor();
    const Tensor some_residual = rows ? residual : residual.rows(done, piece.count);
    const Tensor some_targets = targets ? targets.rows(done, piece.count) : Tensor();
    backend_.compute().submit([this, &piece, some_residual, some_rows, some_targets,
                               &scratch] { enqueue(piece, some_residual, some_rows, some_targets, scratch); },
                              tag);
    backend_.compute().record(*piece.computed);
    copy(piece);
    for (const Slice& slice : piece.slices) in_flight_.push_back({&piece, &slice});
    next_ = (next_ + 1) % pieces_.size();
  }
}

void ResultRing::enqueue(Piece& piece, const Tensor& residual, const Tensor& rows, const Tensor& targets,
                         Scratch& scratch) {
  if (kind_.hidden != Hidden::kNone)
    return backend_.copy_to_host(piece.host.data(), stage_.hidden_states(backend_.ops(), residual, rows, scratch));
  const Tensor logits = piece.logits.rows(0, piece.count);
  stage_.head(backend_.ops(), residual, rows, scratch, logits);
  if (kind_.columns() == 0) return;
  const Tensor integers = piece.integers.rows(0, piece.count), log_probs = piece.log_probs.rows(0, piece.count);
  if (kind_.score)
    backend_.ops().target_log_probs(logits, targets, log_probs, integers);
  else
    backend_.ops().top_log_probs(logits, integers, log_probs);
}

// Cuts a piece into slices of `rows` rows.
void ResultRing::cut(Piece& piece, int64_t rows) {
  size_t slices = 0;
  for (int64_t first = 0; first < piece.count; first += rows) {
    if (slices == piece.slices.size()) piece.slices.push_back({.ready = backend_.create_event()});
    Slice& slice = piece.slices[slices++];
    slice.first = first;
    slice.count = std::min(rows, piece.count - first);
    slice.last = first + rows >= piece.count;
  }
  piece.slices.resize(slices);
}

// Enqueues the copies of a piece's slices, after its computation. Hidden states were copied by the computation itself,
// because they are in scratch memory.
void ResultRing::copy(Piece& piece) {
  const bool logits = kind_.hidden == Hidden::kNone && kind_.columns() == 0;
  cut(piece, logits ? kSliceRows : piece.count);
  copies_->wait(*piece.computed);
  for (Slice& slice : piece.slices) {
    const auto to_host = [&](auto* host, const Tensor& device) {
      const Tensor rows = device.rows(slice.first, slice.count);
      backend_.copy(*copies_, host + slice.first * device.dim(1), rows.data, rows.bytes());
    };
    if (logits) {
      to_host(piece.host_logits, piece.logits);
    } else if (kind_.hidden == Hidden::kNone) {
      to_host(piece.host_integers, piece.integers);
      to_host(piece.host_log_probs, piece.log_probs);
    }
    copies_->record(*slice.ready);
  }
}

void ResultRing::advance() {
  const std::lock_guard lock(handover_.mutex);
  if (handover_.error) std::rethrow_exception(handover_.error);
  while (!in_flight_.empty() && in_flight_.front().slice->ready->done()) {
    handover_.arrived.push_back(in_flight_.front());
    in_flight_.pop_front();
    handover_.changed.notify_all();
  }
}

bool ResultRing::is_free(const Piece& piece) {
  const std::lock_guard lock(handover_.mutex);
  return piece.free;
}

void ResultRing::finish(const WaitUntil& wait) {
  wait([this] { return in_flight_.empty(); }, Phase::kCompute);
  wait(
      [this] {
        return std::all_of(pieces_.begin(), pieces_.end(), [this](const Piece& piece) { return is_free(piece); });
      },
      Phase::kWrite);
}

std::vector<Span> ResultRing::pop_finished() {
  copies_->check();
  static_cast<void>(copies_->pop_finished());  // else the stream would keep the times of all its work
  const std::lock_guard lock(handover_.mutex);
  return std::exchange(handover_.finished, {});
}

// The states of a piece: those of its positions, or the means of the samples that end in it.
ResultRows ResultRing::hidden_rows(const Piece& piece) {
  const std::span<const float> states = kind_.hidden == Hidden::kMean
                                            ? hidden_.means(piece.states, piece.host.data(), piece.parts)
                                            : hidden_.convert(piece.states, piece.host.data(), piece.count);
  return {.first = piece.first_row, .count = std::ssize(states) / stage_.config().hidden, .logits = states};
}

void ResultRing::consume(const Arrival& arrival) {
  const Piece& piece = *arrival.piece;
  const Slice& slice = *arrival.slice;
  if (kind_.hidden != Hidden::kNone) {
    const ResultRows rows = hidden_rows(piece);
    if (rows.count == 0) return;  // no sample ends in the piece
    for (ResultConsumer* consumer : consumers_) consumer->consume(rows);
    return;
  }
  ResultRows rows{.first = piece.first_row + slice.first, .count = slice.count};
  const auto values = [&](const auto* host, int64_t columns) {
    return std::span(host + slice.first * columns, static_cast<size_t>(slice.count * columns));
  };
  const int64_t columns = kind_.columns();
  if (columns == 0) {
    rows.logits = values(piece.host_logits, stage_.config().vocab);
  } else {
    (kind_.score ? rows.is_greedy : rows.top_ids) = values(piece.host_integers, columns);
    rows.log_probs = values(piece.host_log_probs, columns);
  }
  for (ResultConsumer* consumer : consumers_) consumer->consume(rows);
}

// After an error the thread ends and emits nothing more. The run is over: advance() throws the error.
void ResultRing::consumer_loop() {
  std::unique_lock lock(handover_.mutex);
  while (true) {
    handover_.changed.wait(lock, [this] { return handover_.stopping || !handover_.arrived.empty(); });
    if (handover_.stopping) return;
    const Arrival arrival = handover_.arrived.front();
    handover_.arrived.pop_front();
    lock.unlock();
    const double start = steady_seconds();
    std::exception_ptr failure;
    try {
      consume(arrival);
    } catch (...) {
      failure = std::current_exception();
    }
    const Span span{arrival.piece->tag, start, steady_seconds()};
    lock.lock();
    handover_.finished.push_back(span);
    if (failure) {
      handover_.error = failure;
      return;
    }
    if (!arrival.slice->last) continue;
    arrival.piece->free = true;
    if (WorkDoneSignal* work_done = backend_.work_done()) work_done->note();
  }
}

}  // namespace lfm2
