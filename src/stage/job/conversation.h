// A conversation in a terminal: lines are messages, answers are printed as their tokens arrive. It is the source of a
// generation's requests and does not use MPI.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

// The user of a conversation.
class Terminal {
 public:
  // `interrupts` returns the number of interrupts so far.
  Terminal(std::FILE* in, std::FILE* out, std::function<int()> interrupts)
      : lines_(in), out_(out), interrupts_(std::move(interrupts)), seen_(interrupts_()) {}

  InputLines& lines() { return lines_; }
  void print(std::string_view text) const;
  bool interrupted();  // since the previous call

 private:
  InputLines lines_;
  std::FILE* out_;
  std::function<int()> interrupts_;
  int seen_;  // interrupts until the previous call of interrupted()
};

// An interrupt ends an answer; without one, it ends the conversation.
class Conversation : public RequestSource {
 public:
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

  const TextModel& model_;
  const AnswerTokens answer_tokens_;
  const Request each_;
  const int64_t max_positions_;
  const std::time_t now_;
  Terminal terminal_;
  OrderedJson messages_ = OrderedJson::array();
  struct Next {  // made from the newest line
    Request request;
    bool in_thought;  // where the prompt ends
  };
  std::optional<Next> next_;
  struct Answer {
    int32_t sample;
    AnswerReader reader;
    OrderedJson message;  // so far
  };
  std::optional<Answer> answer_;  // the current one
  int32_t answers_ = 0;
  bool ended_ = false;
};

}  // namespace lfm2
