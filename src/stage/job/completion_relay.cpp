#include "stage/job/completion_relay.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/words.h"

namespace lfm2 {

namespace {
constexpr int kTag = 1;
constexpr auto kNap = std::chrono::microseconds(200);
}  // namespace

CompletionRelay::CompletionRelay(const MpiGroup& last_stages)
    : messages_(last_stages),
      watchdog_(last_stages.watchdog()),
      rank_(last_stages.rank()),
      others_(last_stages.size() - 1),
      incoming_{MPI_ANY_SOURCE, kTag} {}

void CompletionRelay::consume(const Completion& completion) { WordWriter(words_).add(completion); }

void CompletionRelay::pass(CompletionConsumer* writer) {
  if (!receives()) {
    messages_.progress();
    if (!words_.empty()) messages_.send(std::exchange(words_, {}), 0, 0, kTag);
    return;
  }
  for (std::vector<int32_t> words; ended_ < others_ && messages_.receive(words, incoming_);) {
    if (words.empty()) ++ended_;  // the last message of its pipeline in this run
    for (WordReader reader(words); !reader.at_end();) {
      Completion completion;
      reader.read(completion);
      writer->consume(completion);
    }
  }
}

void CompletionRelay::end(CompletionConsumer* writer) {
  pass(writer);
  if (!receives()) return messages_.send({}, 0, 0, kTag);
  watchdog_.enter({.phase = Phase::kIdle});
  for (; ended_ < others_; pass(writer)) {
    watchdog_.look();
    watchdog_.pulse();
    watchdog_.check();
    std::this_thread::sleep_for(kNap);
  }
  ended_ = 0;
}

}  // namespace lfm2
