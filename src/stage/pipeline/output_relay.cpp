#include "stage/pipeline/output_relay.h"

#include <utility>

#include "comm/wait.h"

namespace lfm2 {

namespace {
constexpr int kTag = 1;
constexpr size_t kMaxKept = 4;  // messages of a rank that wait for the writer
// Messages that one call of pass() receives, because the writer has its own results to write, too.
constexpr int kMessagesAtOnce = 4;
}  // namespace

OutputRelay::OutputRelay(const MpiGroup& last_stages, int writer)
    : messages_(last_stages),
      watchdog_(last_stages.watchdog()),
      rank_(last_stages.rank()),
      others_(last_stages.size() - 1),
      writer_(writer),
      incoming_{MPI_ANY_SOURCE, kTag} {}

bool OutputRelay::has_room() const { return kept_.size() < kMaxKept; }

bool OutputRelay::all_sent() {
  const std::lock_guard lock(mutex_);
  return kept_.empty() && messages_.all_sent();
}

void OutputRelay::wait_until_sent() {
  std::unique_lock lock(mutex_);
  sent_.wait(lock, [this] { return stopped_ || has_room(); });
}

void OutputRelay::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  sent_.notify_all();
}

void OutputRelay::pass(const Receive& receive) {
  if (!receives()) {
    messages_.progress();
    if (!messages_.all_sent()) return;  // the writer has not received the last message yet
    std::vector<int32_t> words;
    {
      const std::lock_guard lock(mutex_);
      if (kept_.empty()) return;
      words = std::move(kept_.front());
      kept_.pop_front();
      sent_.notify_all();
    }
    messages_.send(std::move(words), 0, 0, kTag);
    return;
  }
  std::vector<int32_t> words;
  for (int i = 0; i < kMessagesAtOnce && ended_ < others_ && messages_.receive(words, incoming_); ++i) {
    if (words.empty()) ++ended_;  // the last message of its pipeline in this run
    for (WordReader reader(words); !reader.at_end();) receive(reader);
  }
}

void OutputRelay::wait(const std::function<bool()>& done, const std::function<void()>& poll) {
  const Wait wait(watchdog_, [&poll] {
    poll();
    return false;
  });
  wait.until(done, {.phase = Phase::kWrite, .peer = writer_});
}

void OutputRelay::wait_for_room(const std::function<void()>& poll) {
  if (receives()) return;
  const auto done = [this] {
    const std::lock_guard lock(mutex_);
    return has_room();
  };
  wait(done, poll);
}

void OutputRelay::end(const Receive& receive) {
  if (receives()) {
    wait_idle(watchdog_, [&] {
      pass(receive);
      return ended_ == others_;
    });
    ended_ = 0;
    return;
  }
  wait([this] { return all_sent(); }, [this] { pass({}); });
  messages_.send({}, 0, 0, kTag);
}

}  // namespace lfm2
