// A conversation in a terminal: lines are messages, answers are printed as their tokens arrive. It is the source of a
// generation's requests and does not use MPI.
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
#include "openai/answer/answer_reader.h"
#include "stage/pipeline/request_source.h"
#include "text/text_model.h"

namespace lfm2 {

// Reads lines on a separate thread, because a terminal blocks. The thread is detached, since its read may never return.
class InputLines {
 public:
  explicit InputLines(std::FILE* file);

  std::optional<std::string> poll();  // the next line, without its line end; nothing if none has arrived
  bool ended() const;                 // whether the input has ended and all lines were returned

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
    std::function<int()> interrupts;  // number of interrupts so far: one ends an answer, two the conversation
  };
  // `each` sets how answers are sampled; its max_new is lowered to fit into `max_positions` positions.
  Conversation(const TextModel& model, Request each, int64_t max_positions, std::time_t now, Terminal terminal);

  int64_t waiting() const override { return next_ ? 1 : 0; }
  std::optional<Request> next() override;
  bool ended() const override { return ended_; }
  std::vector<int32_t> cancelled() override;  // also reads lines, because it is called between all steps
  void drawn(std::vector<SampleToken> tokens) override;

 private:
  void look_for_line();
  void add_message(const std::string& text);
  void end_answer();
  void fail_answer();
  void show_parts();
  void print(std::string_view text);

  const TextModel& model_;
  const AnswerTokens answer_tokens_;
  const Request each_;
  const int64_t max_positions_;
  const std::time_t now_;
  const Terminal terminal_;
  InputLines lines_;
  OrderedJson messages_ = OrderedJson::array();
  std::optional<Request> next_;     // the request made from the newest line
  std::optional<int32_t> current_;  // the sample of the current answer
  int32_t answers_ = 0;
  int interrupts_ = 0;  // interrupts handled so far
  bool ended_ = false;
  struct Answer {
    bool in_thought = false;  // where the prompt ends
    OrderedJson message;      // so far
    std::optional<AnswerReader> reader;
  };
  Answer answer_;  // the current one, or the next
};

}  // namespace lfm2
