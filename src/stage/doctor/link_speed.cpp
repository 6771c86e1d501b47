// Sends hidden states as the pipeline does: from two buffers in turn, each after an event of the compute stream.
#include "stage/doctor/link_speed.h"

#include <algorithm>
#include <vector>

namespace lfm2 {

namespace {

constexpr int kRoundTrips = 31;
constexpr int kLargeUnits = 12;

size_t buffer_of(int unit) { return static_cast<size_t>(unit) % kBuffers; }

}  // namespace

LinkMeasurement::LinkMeasurement(const MpiGroup& pipeline, Backend& backend, Channel& channel, int64_t tokens,
                                 int64_t row_bytes, double timeout_seconds)
    : pipeline_(pipeline),
      even_(pipeline, pipeline.rank() / 2),
      odd_(pipeline, (pipeline.rank() + 1) / 2),
      backend_(backend),
      channel_(channel),
      timeout_seconds_(timeout_seconds),
      wait_(pipeline.watchdog(), [this] {
        backend_.compute().check();
        return channel_.progress();
      }) {
  for (StageBuffer& buffer : buffers_) {
    buffer.unit = Tensor(nullptr, DType::kBf16, {tokens, row_bytes / static_cast<int64_t>(size_bytes(DType::kBf16))});
    buffer.memory = backend.allocate(buffer.unit.bytes());
    buffer.unit.data = buffer.memory.data();
    buffer.computed = backend.create_event();
  }
}

std::optional<LinkSpeed> LinkMeasurement::measure() {
  std::optional<LinkSpeed> mine;
  for (int sender = 0; sender + 1 < pipeline_.size(); ++sender) {
    if (pipeline_.rank() == sender || pipeline_.rank() == sender + 1) {
      const LinkSpeed speed = measure_link(sender % 2 == 0 ? even_ : odd_);
      if (pipeline_.rank() == sender) mine = speed;
    }
    pipeline_.barrier(timeout_seconds_, "link measurement");
  }
  return mine;
}

LinkSpeed LinkMeasurement::measure_link(const MpiGroup& pair) {
  const Tensor& unit = buffers_[0].unit;
  // Untimed: the first transfer connects the two ranks and touches the memory.
  transfer(pair, kBuffers, unit.dim(0));
  std::vector<double> trips;
  for (int i = 0; i < kRoundTrips; ++i) trips.push_back(transfer(pair, 1, 1));
  std::nth_element(trips.begin(), trips.begin() + kRoundTrips / 2, trips.end());
  const double seconds = transfer(pair, kLargeUnits, unit.dim(0));
  return {.bytes_per_second = kLargeUnits * static_cast<double>(unit.bytes()) / seconds,
          .round_trip_seconds = trips[kRoundTrips / 2]};
}

double LinkMeasurement::transfer(const MpiGroup& pair, int count, int64_t rows) {
  pair.barrier(timeout_seconds_, "link measurement");
  const double start = steady_seconds();
  if (pair.rank() == 0)
    send(count, rows);
  else
    receive(count, rows);
  pair.barrier(timeout_seconds_, "link measurement");
  channel_.pop_finished();
  return steady_seconds() - start;
}

void LinkMeasurement::send(int count, int64_t rows) {
  for (int i = 0; i < count; ++i) {
    StageBuffer& buffer = buffers_[buffer_of(i)];
    wait_until_sent(i);
    backend_.compute().record(*buffer.computed);
    channel_.send(static_cast<int>(buffer_of(i)), buffer.unit.rows(0, rows), *buffer.computed);
  }
  for (int i = 0; i < kBuffers; ++i) wait_until_sent(i);
}

void LinkMeasurement::wait_until_sent(int unit) {
  wait_.until([&] { return channel_.sent(static_cast<int>(buffer_of(unit))); },
              {.phase = Phase::kSend, .unit = unit, .peer = pipeline_.watchdog().rank() + 1});
}

void LinkMeasurement::receive(int count, int64_t rows) {
  const auto post = [&](int i) {
    channel_.receive(static_cast<int>(buffer_of(i)), buffers_[buffer_of(i)].unit.rows(0, rows));
  };
  const int peer = pipeline_.watchdog().rank() - 1;
  for (int i = 0; i < std::min(count, kBuffers); ++i) post(i);
  for (int i = 0; i < count; ++i) {
    const StageBuffer& buffer = buffers_[buffer_of(i)];
    wait_.until([&] { return channel_.arrived(static_cast<int>(buffer_of(i))); },
                {.phase = Phase::kReceive, .unit = i, .peer = peer});
    channel_.order_after_arrival(static_cast<int>(buffer_of(i)), backend_.compute());
    backend_.compute().record(*buffer.computed);
    wait_.until([&] { return buffer.computed->done(); }, {.phase = Phase::kReceive, .unit = i, .peer = peer});
    if (i + kBuffers < count) post(i + kBuffers);
  }
}

}  // namespace lfm2
