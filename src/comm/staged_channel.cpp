// A piece goes through its states in order: copied to the host, sent; or received, copied to the device. Counters hold
// the number of pieces that have reached each state. The host memory of a piece is reused after its last state. If a
// micro-batch has several pieces, an empty one goes first, which keeps the receiver from sleeping until the others
// arrive.
#include "comm/staged_channel.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace lfm2 {

namespace {

constexpr int kPieceTag = 1;

struct Piece {
  Buffer host;
  std::unique_ptr<Event> copied;
  MPI_Request request = MPI_REQUEST_NULL;
  // The part of a micro-batch in this piece.
  int buffer = 0;
  std::byte* device = nullptr;
  size_t bytes = 0;
  bool first = false, last = false;

  bool with_mpi() {
    int done = 0;
    MPI_CHECK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    return done == 0;
  }
};

// The base of both directions: the pieces, the micro-batches that are cut into them, and the times of transfers.
class Direction {
 public:
  Direction(Backend& backend, StagingPieces pieces, int buffers)
      : backend_(backend), pieces_(static_cast<size_t>(pieces.count)), started_(static_cast<size_t>(buffers), kIdle) {
    for (Piece& piece : pieces_) {
      piece.host = backend.allocate_host(pieces.bytes);
      piece.copied = backend.create_event();
    }
  }

  Direction(const Direction&) = delete;
  Direction& operator=(const Direction&) = delete;
  // If an error interrupts transfers, the pieces that MPI still uses stay allocated until all ranks are ended: MPI may
  // read or write them whenever this rank calls it, and a send cannot be cancelled.
  ~Direction() {
    static std::vector<Buffer>& left_to_mpi = *new std::vector<Buffer>();  // is never destroyed
    for (Piece& piece : pieces_) {
      int done = 0;
      if (MPI_Test(&piece.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0)
        left_to_mpi.push_back(std::move(piece.host));
    }
  }

  bool idle(int buffer) const { return started_[static_cast<size_t>(buffer)] == kIdle; }
  std::vector<Span> pop_finished() { return std::exchange(finished_, {}); }

 protected:
  static constexpr double kIdle = -1;  // seconds of the host's clock are positive

  void add(int buffer, const Tensor& tensor) {
    expect(idle(buffer), "StagedChannel: the buffer is in flight");
    micro_batches_.push_back({buffer, tensor.data, tensor.bytes()});
    started_[static_cast<size_t>(buffer)] = steady_seconds();
  }
  bool nothing_to_cut() const { return micro_batches_.empty(); }
  // Piece number `number` gets the next part of the oldest micro-batch.
  Piece& cut(int64_t number) {
    MicroBatch& from = micro_batches_.front();
    Piece& piece = at(number);
    piece.buffer = from.buffer;
    piece.device = from.next;
    piece.first = !std::exchange(from.begun, true);
    piece.bytes = std::min(from.bytes, piece.host.bytes());
    if (piece.first && piece.bytes < from.bytes) piece.bytes = 0;
    from.next += piece.bytes;
    from.bytes -= piece.bytes;
    piece.last = from.bytes == 0;
    if (piece.last) micro_batches_.pop_front();
    return piece;
  }
  Piece& at(int64_t number) { return pieces_[static_cast<size_t>(number) % pieces_.size()]; }
  int64_t count() const { return static_cast<int64_t>(pieces_.size()); }
  void begin(int buffer) { started_[static_cast<size_t>(buffer)] = steady_seconds(); }
  void end(int buffer) {
    finished_.push_back({0, std::exchange(started_[static_cast<size_t>(buffer)], kIdle), steady_seconds()});
  }

  Backend& backend_;

 private:
  struct MicroBatch {
    int buffer;
    std::byte* next;
    size_t bytes;  // from `next` on
    bool begun = false;
  };

  std::vector<Piece> pieces_;
  std::deque<MicroBatch> micro_batches_;
  std::vector<double> started_;  // [buffers]
  std::vector<Span> finished_;
};

class Sender : public Direction {
 public:
  Sender(Backend& backend, StagingPieces pieces, int buffers, MPI_Comm comm, int next)
      : Direction(backend, pieces, buffers), comm_(comm), next_(next), streams_(static_cast<size_t>(buffers)) {
    for (std::unique_ptr<Stream>& stream : streams_) stream = backend.create_stream();
  }
  ~Sender() {
    for (const std::unique_ptr<Stream>& stream : streams_) stream->drain();
  }

  void send(int buffer, const Tensor& from, Event& computed) {
    streams_[static_cast<size_t>(buffer)]->wait(computed);
    add(buffer, from);
    progress();
  }

  bool progress() {
    const int64_t before = posted_ + sent_;
    for (; sent_ < posted_ && !at(sent_).with_mpi(); ++sent_) {
      const Piece& piece = at(sent_);
      under_way_ = !piece.last && piece.bytes > 0;  // MPI completes an empty message before the receiver is ready
      if (piece.last) end(piece.buffer);
    }
    for (; !nothing_to_cut() && copied_ - sent_ < count(); ++copied_) {
      Piece& piece = cut(copied_);
      Stream& stream = *streams_[static_cast<size_t>(piece.buffer)];
      backend_.copy(stream, piece.host.data(), piece.device, piece.bytes);
      stream.record(*piece.copied);
    }
    for (; posted_ < copied_ && at(posted_).copied->done(); ++posted_) {
      Piece& piece = at(posted_);
      if (piece.first) begin(piece.buffer);
      MPI_CHECK(MPI_Isend(piece.host.data(), static_cast<int>(piece.bytes), MPI_BYTE, next_, kPieceTag, comm_,
                          &piece.request));
    }
    return under_way_ || posted_ + sent_ != before;
  }

 private:
  MPI_Comm comm_;
  int next_;
  // One stream for each buffer, so that a micro-batch that is still being computed does not delay the copies of the
  // previous one.
  std::vector<std::unique_ptr<Stream>> streams_;
  int64_t copied_ = 0, posted_ = 0, sent_ = 0;  // pieces whose copy was enqueued, that MPI got, and has sent
  bool under_way_ = false;                      // in the middle of a micro-batch
};

class Receiver : public Direction {
 public:
  Receiver(Backend& backend, StagingPieces pieces, int buffers, MPI_Comm comm, int previous)
      : Direction(backend, pieces, buffers),
        comm_(comm),
        previous_(previous),
        stream_(backend.create_stream()),
        arrived_(static_cast<size_t>(buffers)) {
    for (std::unique_ptr<Event>& event : arrived_) event = backend.create_event();
  }
  ~Receiver() { stream_->drain(); }

  void receive(int buffer, const Tensor& into) {
    add(buffer, into);
    progress();
  }
  Event& arrived(int buffer) { return *arrived_[static_cast<size_t>(buffer)]; }

  bool progress() {
    const int64_t before = received_;
    for (; received_ < posted_ && !at(received_).with_mpi(); ++received_) {
      const Piece& piece = at(received_);
      backend_.copy(*stream_, piece.device, piece.host.data(), piece.bytes);
      stream_->record(*piece.copied);
      under_way_ = !piece.last;
      if (under_way_) continue;
      stream_->record(arrived(piece.buffer));
      end(piece.buffer);
    }
    while (copied_ < received_ && at(copied_).copied->done()) ++copied_;
    for (; !nothing_to_cut() && posted_ - copied_ < count(); ++posted_) {
      Piece& piece = cut(posted_);
      MPI_CHECK(MPI_Irecv(piece.host.data(), static_cast<int>(piece.bytes), MPI_BYTE, previous_, kPieceTag, comm_,
                          &piece.request));
    }
    return under_way_ || received_ != before;
  }

 private:
  MPI_Comm comm_;
  int previous_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Event>>
      arrived_;  // [buffers]: the last piece of the buffer's micro-batch is on the device
  int64_t posted_ = 0, received_ = 0, copied_ = 0;  // pieces that MPI may write, has written, that are on the device
  bool under_way_ = false;
};

class StagedChannel : public Channel {
 public:
  StagedChannel(const MpiGroup& pipeline, Backend& backend, const ChannelShape& shape, StagingPieces pieces) {
    MPI_CHECK(MPI_Comm_dup(pipeline.comm(), &comm_));
    const std::optional<int> previous = previous_rank(pipeline.rank(), pipeline.size(), shape.ring);
    const std::optional<int> next = next_rank(pipeline.rank(), pipeline.size(), shape.ring);
    if (previous) receiver_ = std::make_unique<Receiver>(backend, pieces, shape.buffers, comm_, *previous);
    if (next) sender_ = std::make_unique<Sender>(backend, pieces, shape.buffers, comm_, *next);
  }
  StagedChannel(const StagedChannel&) = delete;
  StagedChannel& operator=(const StagedChannel&) = delete;
  ~StagedChannel() override { MPI_Comm_free(&comm_); }

  void receive(int buffer, const Tensor& into) override { receiver_->receive(buffer, into); }
  bool arrived(int buffer) override { return receiver_->idle(buffer); }
  void order_after_arrival(int buffer, Stream& compute) override { compute.wait(receiver_->arrived(buffer)); }
  void send(int buffer, const Tensor& from, Event& computed) override { sender_->send(buffer, from, computed); }
  bool sent(int buffer) override { return sender_->idle(buffer); }
  bool progress() override {
    const bool received = receiver_ && receiver_->progress(), sent = sender_ && sender_->progress();
    return received || sent;
  }
  Transfers pop_finished() override {
    return {.sent = sender_ ? sender_->pop_finished() : std::vector<Span>(),
            .received = receiver_ ? receiver_->pop_finished() : std::vector<Span>()};
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::unique_ptr<Receiver> receiver_;
  std::unique_ptr<Sender> sender_;
};

}  // namespace

std::unique_ptr<Channel> make_staged_channel(const MpiGroup& pipeline, Backend& backend, const ChannelShape& shape,
                                             StagingPieces pieces) {
  return std::make_unique<StagedChannel>(pipeline, backend, shape, pieces);
}

}  // namespace lfm2
