// Sends hidden states as the pipeline does: from two buffers in turn, each after an event of the compute stream.
#include "stage/doctor/link_test.h"

#include <algorithm>
#include <vector>

namespace lfm2 {

namespace {

constexpr int kRoundTrips = 31;
constexpr int kLargeItems = 12;

size_t slot_of(int item) { return static_cast<size_t>(item) % kSlots; }

}  // namespace

LinkTest::LinkTest(const MpiGroup& pipeline, Backend& backend, Channel& channel, int64_t tokens, int64_t row_bytes,
                   double timeout_seconds)
    : pipeline_(pipeline),
      even_(pipeline, pipeline.rank() / 2),
      odd_(pipeline, (pipeline.rank() + 1) / 2),
      backend_(backend),
      channel_(channel),
      timeout_seconds_(timeout_seconds),
      wait_(pipeline.watchdog(), [this] {
        backend_.compute().check();
        channel_.progress();
      }) {
  for (Slot& slot : slots_) {
    slot.item = Tensor(nullptr, DType::kBf16, {tokens, row_bytes / static_cast<int64_t>(size_bytes(DType::kBf16))});
    slot.memory = backend.allocate(slot.item.bytes());
    slot.item.data = slot.memory.data();
    slot.computed = backend.create_event();
  }
}

std::optional<LinkSpeed> LinkTest::measure() {
  std::optional<LinkSpeed> mine;
  for (int sender = 0; sender + 1 < pipeline_.size(); ++sender) {
    if (pipeline_.rank() == sender || pipeline_.rank() == sender + 1) {
      const LinkSpeed speed = measure_link(sender % 2 == 0 ? even_ : odd_);
      if (pipeline_.rank() == sender) mine = speed;
    }
    pipeline_.barrier(timeout_seconds_, "link test");
  }
  return mine;
}

LinkSpeed LinkTest::measure_link(const MpiGroup& pair) {
  const Tensor& item = slots_[0].item;
  // Untimed: the first transfer connects the two ranks and touches the memory.
  transfer(pair, kSlots, item.dim(0));
  std::vector<double> trips;
  for (int i = 0; i < kRoundTrips; ++i) trips.push_back(transfer(pair, 1, 1));
  std::nth_element(trips.begin(), trips.begin() + kRoundTrips / 2, trips.end());
  const double seconds = transfer(pair, kLargeItems, item.dim(0));
  return {.bytes_per_second = kLargeItems * static_cast<double>(item.bytes()) / seconds,
          .round_trip_seconds = trips[kRoundTrips / 2]};
}

double LinkTest::transfer(const MpiGroup& pair, int count, int64_t rows) {
  pair.barrier(timeout_seconds_, "link test");
  const double start = steady_seconds();
  if (pair.rank() == 0)
    send(count, rows);
  else
    receive(count, rows);
  pair.barrier(timeout_seconds_, "link test");
  channel_.take_finished();
  return steady_seconds() - start;
}

void LinkTest::send(int count, int64_t rows) {
  for (int i = 0; i < count; ++i) {
    Slot& slot = slots_[slot_of(i)];
    wait_until_sent(i);
    backend_.compute().record(*slot.computed);
    channel_.send(static_cast<int>(slot_of(i)), slot.item.rows(0, rows), *slot.computed);
  }
  for (int i = 0; i < kSlots; ++i) wait_until_sent(i);
}

void LinkTest::wait_until_sent(int item) {
  wait_.until([&] { return channel_.sent(static_cast<int>(slot_of(item))); },
              {.phase = Phase::kSend, .item = item, .peer = pipeline_.watchdog().rank() + 1});
}

void LinkTest::receive(int count, int64_t rows) {
  const auto post = [&](int i) {
    channel_.receive(static_cast<int>(slot_of(i)), slots_[slot_of(i)].item.rows(0, rows));
  };
  const int peer = pipeline_.watchdog().rank() - 1;
  for (int i = 0; i < std::min(count, kSlots); ++i) post(i);
  for (int i = 0; i < count; ++i) {
    const Slot& slot = slots_[slot_of(i)];
    wait_.until([&] { return channel_.arrived(static_cast<int>(slot_of(i))); },
                {.phase = Phase::kReceive, .item = i, .peer = peer});
    channel_.order_after_arrival(static_cast<int>(slot_of(i)), backend_.compute());
    backend_.compute().record(*slot.computed);
    wait_.until([&] { return slot.computed->done(); }, {.phase = Phase::kReceive, .item = i, .peer = peer});
    if (i + kSlots < count) post(i + kSlots);
  }
}

}  // namespace lfm2
