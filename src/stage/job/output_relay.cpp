#include "stage/job/output_relay.h"

#include <utility>

#include "comm/wait.h"

namespace lfm2 {

namespace {
constexpr int kTag = 1;
constexpr size_t kFewWords = size_t{1} << 22;  // 16 MiB
}  // namespace

OutputRelay::OutputRelay(const MpiGroup& last_stages, int writer)
    : messages_(last_stages),
      watchdog_(last_stages.watchdog()),
      rank_(last_stages.rank()),
      others_(last_stages.size() - 1),
      writer_(writer),
      incoming_{MPI_ANY_SOURCE, kTag} {}

size_t OutputRelay::kept() {
  const std::lock_guard lock(mutex_);
  return words_.size();
}

void OutputRelay::pass(const Receive& receive) {
  if (!receives()) {
    messages_.progress();
    if (!messages_.all_sent()) return;  // the writer has not received the last message yet
    std::vector<int32_t> words;
    {
      const std::lock_guard lock(mutex_);
      words.swap(words_);
    }
    if (!words.empty()) messages_.send(std::move(words), 0, 0, kTag);
    return;
  }
  for (std::vector<int32_t> words; ended_ < others_ && messages_.receive(words, incoming_);) {
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
  if (!receives()) wait([this] { return kept() < kFewWords; }, poll);
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
  wait([this] { return kept() == 0 && messages_.all_sent(); }, [this] { pass({}); });
  messages_.send({}, 0, 0, kTag);
}

}  // namespace lfm2
