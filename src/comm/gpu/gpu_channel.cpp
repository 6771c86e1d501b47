// Every wait of the program polls progress(), which checks for asynchronous errors of NCCL. Errors of copies appear
// when their events are tested.
#include "comm/gpu/gpu_channel.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/common/cuda_check.h"

namespace lfm2 {

namespace {
constexpr int kUrgent = -5;  // priority of the streams: transfers are short, and other ranks wait for them
}  // namespace

GpuEdge::GpuEdge(int peer, int buffers)
    : peer_(peer), stream_(kUrgent), timing_(static_cast<size_t>(buffers)), in_flight_(static_cast<size_t>(buffers)) {}

// An edge may connect its two sides in the background at its first use. Events recorded on the stream before that is
// done do not cover the transfer, so this waits until the edge is connected.
void GpuEdge::transfer(int buffer, const Tensor& tensor, const Wait& wait, Event* after) {
  const Timing& timing = timing_[static_cast<size_t>(buffer)];
  expect(done(buffer), "GpuChannel: the buffer is in flight");
  stream_.clock().follow();
  if (after != nullptr) stream_.wait(*after);
  CUDA_CHECK(cudaEventRecord(timing.start.native(), stream_.native()));
  enqueue(tensor);
  wait.until([&] { return settled(); }, connecting());
  CUDA_CHECK(cudaEventRecord(timing.end.native(), stream_.native()));
  in_flight_[static_cast<size_t>(buffer)] = 1;
}

bool GpuEdge::done(int buffer) {
  const auto at = static_cast<size_t>(buffer);
  if (in_flight_[at] == 0) return true;
  const Timing& timing = timing_[at];
  if (!timing.end.done()) return false;
  finished_.push_back({0, stream_.clock().seconds_of(timing.start), stream_.clock().seconds_of(timing.end)});
  in_flight_[at] = 0;
  return true;
}

std::vector<Span> GpuEdge::pop_finished() {
  for (size_t buffer = 0; buffer < in_flight_.size(); ++buffer) done(static_cast<int>(buffer));
  std::sort(finished_.begin(), finished_.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  return std::exchange(finished_, {});
}

void GpuEdge::order_after(int buffer, Stream& compute) {
  CUDA_CHECK(cudaStreamWaitEvent(dynamic_cast<CudaStream&>(compute).native(),
                                 timing_[static_cast<size_t>(buffer)].end.native()));
}

GpuChannel::GpuChannel(const MpiGroup& group, Backend& backend, std::unique_ptr<GpuEdge> previous,
                       std::unique_ptr<GpuEdge> next)
    : last_(group.rank() + 1 == group.size()),
      wait_(group.watchdog(), [] { return false; }),
      element_(backend.allocate(2 * sizeof(float))),
      previous_(std::move(previous)),
      next_(std::move(next)) {}

// Either side may wait for the other here, too. So all ranks close the sending edge first, except the last rank, which
// closes the receiving edge first.
GpuChannel::~GpuChannel() {
  if (last_) previous_.reset();
}

void GpuChannel::abort() {
  for (GpuEdge* edge : {previous_.get(), next_.get()})
    if (edge != nullptr) edge->abort();
}

void GpuChannel::close_edges() {
  for (GpuEdge* edge : {previous_.get(), next_.get()})
    if (edge != nullptr) edge->close();
}

void GpuChannel::abandon_edges() {
  static_cast<void>(previous_.release());
  static_cast<void>(next_.release());
}

bool GpuChannel::progress() {
  if (previous_) previous_->settled();
  if (next_) next_->settled();
  return false;
}

Channel::Transfers GpuChannel::pop_finished() {
  return {.sent = next_ ? next_->pop_finished() : std::vector<Span>(),
          .received = previous_ ? previous_->pop_finished() : std::vector<Span>()};
}

void GpuChannel::connect() {
  const auto wait_for_edges = [&](const auto& done) {
    for (GpuEdge* edge : {previous_.get(), next_.get()})
      if (edge != nullptr)
        wait_.until(
            [&] {
              progress();  // the neighbours may be waiting for the other edge
              return done(*edge);
            },
            edge->connecting());
  };
  for (GpuEdge* edge : {previous_.get(), next_.get()})
    if (edge != nullptr) edge->start();
  wait_for_edges([](GpuEdge& edge) { return edge.settled(); });
  // Sends one element over each edge, so that the first micro-batch finds the edge connected. Either side of an edge
  // waits for the other here. The last rank begins with its receiving edge, so that in a ring not all ranks wait as
  // senders.
  const auto send = [&] {
    if (next_) next_->transfer(0, Tensor(element_.data(), DType::kF32, {1}), wait_);
  };
  if (!last_) send();
  if (previous_) previous_->transfer(0, Tensor(element_.data() + sizeof(float), DType::kF32, {1}), wait_);
  if (last_) send();
  wait_for_edges([](GpuEdge& edge) { return edge.settled() && edge.done(0); });
}

std::unique_ptr<Channel> connect(std::unique_ptr<GpuChannel> channel) {
  try {
    channel->connect();
  } catch (...) {
    channel.release()->abort();
    throw;
  }
  return channel;
}

}  // namespace lfm2
