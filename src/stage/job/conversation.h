// A conversation in a terminal: lines are messages, answers are printed as their tokens come. Knows no MPI: it is the
// source of a generation's requests.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/json/json.h"
#include "stage/pipeline/request_source.h"
#include "text/answer_stream.h"
#include "text/text_model.h"

namespace lfm2 {

// Reads lines in a separate thread, because a terminal blocks. That thread is not waited for: it may never return.
class InputLines {
 public:
  explicit InputLines(std::FILE* file);

  std::optional<std::string> poll();  // the next line, without its end; nothing where none has come yet
  bool ended() const;                 // the input has ended, and all lines were given

 private:
  struct State {
    std::mutex mutex;
    std::deque<std::string> lines;
    bool ended = false;
  };
  std::shared_ptr<State> state_;
};

class Conversation : public RequestSource {
 public:
  struct Terminal {
    std::FILE *in = nullptr, *out = nullptr;
    std::function<int()> interrupts;  // how many were asked for so far: one ends an answer, two the conversation
  };
  // `each`: how answers are drawn; its max_new is lowered to what fits into `max_positions` positions.
  Conversation(const TextModel& model, Request each, int64_t max_positions, std::time_t now, Terminal terminal);

  int64_t waiting() const override { return next_ ? 1 : 0; }
  std::optional<Request> next() override;
  bool ended() const override { return ended_; }
  std::vector<int32_t> cancelled() override;  // also looks for lines: it is called between all steps
  void drawn(std::vector<SampleToken> tokens) override;

 private:
  void look_for_line();
  void add_message(const std::string& text);
  void end_answer();
  void fail_answer();
  void print(std::string_view text);

  const TextModel& model_;
  const Request each_;
  const int64_t max_positions_;
  const std::time_t now_;
  const Terminal terminal_;
  InputLines lines_;
  OrderedJson messages_ = OrderedJson::array();
  std::optional<Request> next_;     // the request that the newest line became
  std::optional<int32_t> current_;  // the answer that is being written
  int32_t answers_ = 0;
  int interrupts_ = 0;  // that were acted on
  bool ended_ = false;
  std::string answer_;
  std::optional<AnswerStream> stream_;
};

}  // namespace lfm2
