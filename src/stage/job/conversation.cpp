#include "stage/job/conversation.h"

#include <thread>

#include "base/error.h"
#include "base/standard_streams.h"

namespace lfm2 {

InputLines::InputLines(std::FILE* file) : state_(std::make_shared<State>()) {
  std::thread([state = state_, file] {
    std::string line;
    const auto give = [&] {
      const std::lock_guard lock(state->mutex);
      state->lines.push_back(std::exchange(line, {}));
    };
    for (int c = 0; (c = std::getc(file)) != EOF;) {
      if (c == '\n')
        give();
      else
        line += static_cast<char>(c);
    }
    if (!line.empty()) give();
    const std::lock_guard lock(state->mutex);
    state->ended = true;
  }).detach();
}

std::optional<std::string> InputLines::poll() {
  const std::lock_guard lock(state_->mutex);
  if (state_->lines.empty()) return {};
  std::string line = std::move(state_->lines.front());
  state_->lines.pop_front();
  return line;
}

bool InputLines::ended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended && state_->lines.empty();
}

void Terminal::print(std::string_view text) const { print_results(text, out_); }

bool Terminal::interrupted() {
  const int before = std::exchange(seen_, interrupts_());
  return seen_ > before;
}

Conversation::Conversation(const TextModel& model, Request each, int64_t max_positions, std::time_t now,
                           Terminal terminal)
    : model_(model),
      answer_tokens_(answer_tokens(model.tokenizer())),
      each_(std::move(each)),
      max_positions_(max_positions),
      now_(now),
      terminal_(std::move(terminal)) {
  terminal_.print("> ");
}

namespace {

// Control characters would move the terminal's cursor, change its colours, or worse: they become question marks.
std::string without_controls(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F
      shown += '?';
      ++i;
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      shown += '?';
    } else {
      shown += text[i];
    }
  }
  return shown;
}

}  // namespace

void Conversation::look_for_line() {
  while (!next_ && !ended_) {
    const std::optional<std::string> line = terminal_.lines().poll();
    if (!line) {
      ended_ = terminal_.lines().ended();
      if (ended_) terminal_.print("\n");
      return;
    }
    if (*line == "/exit") {
      ended_ = true;
    } else if (*line == "/clear") {
      messages_.clear();
      terminal_.print("> ");
    } else if (line->find_first_not_of(" \t\r") == std::string::npos) {
      terminal_.print("> ");
    } else {
      add_message(*line);
    }
  }
}

// The line and all previous ones become a request. A line that the model cannot answer is reported and dropped.
void Conversation::add_message(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    terminal_.print(fmt::format("lfm2_stage: {}\n> ", why));
    messages_.erase(messages_.size() - 1);
  };
  messages_.push_back({{"role", "user"}, {"content", text}});
  std::vector<int32_t> ids;
  bool in_thought = false;
  try {
    const std::string prompt = model_.chat_text(messages_, nullptr, OrderedJson::object(), now_);
    model_.tokenizer().encode(prompt, false, ids);
    in_thought = ends_in_thought(prompt);
  } catch (const Error& error) {
    return refuse(error.what());
  }
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens >= max_positions_)
    return refuse(fmt::format("the conversation has {} tokens, expected fewer than {}: /clear begins again", tokens,
                              max_positions_));
  next_ = {.request = each_, .in_thought = in_thought};
  Request& request = next_->request;
  request.sample = answers_++;
  request.prompt = std::move(ids);
  request.max_new = max_new_tokens(tokens, each_.max_new, max_positions_);
}

std::optional<Request> Conversation::next() {
  if (!next_) return {};
  Request request = std::move(next_->request);
  const MessageForm form{.thoughts = Thoughts::kApart, .in_thought = next_->in_thought};
  next_.reset();
  answer_.emplace(
      Answer{.sample = request.sample,
             .reader = {answer_tokens_, form, SettledTokens(model_.tokenizer(), request.stop, request.rule.min_tokens)},
             .message = {{"role", "assistant"}, {"content", ""}}});
  return request;
}

std::vector<int32_t> Conversation::cancelled() {
  const bool interrupted = terminal_.interrupted();
  if (interrupted && answer_) {
    const int32_t sample = answer_->sample;
    end_answer();
    return {sample};
  }
  if (interrupted) {
    ended_ = true;
    terminal_.print("\n");
  }
  if (!answer_) look_for_line();
  return {};
}

void Conversation::drawn(std::vector<SampleToken> tokens) {
  for (const auto& [sample, token] : tokens) {
    if (!answer_ || sample != answer_->sample) continue;
    if (token.ends == FinishReason::kError) {
      fail_answer();
      continue;
    }
    answer_->reader.feed(token.token);
    show_parts();
    if (token.ends) end_answer();
  }
}

// Prints what is new. A thought is shown between its tags.
void Conversation::show_parts() {
  for (const AnswerPart& part : answer_->reader.pop_parts()) {
    const bool thought = part.kind == AnswerPart::Kind::kThought,
               thinks = answer_->message.contains("reasoning_content");
    OrderedJson& text = answer_->message[thought ? "reasoning_content" : "content"];
    const bool begins = !text.is_string() || text == "";
    if (begins && thinks != thought) terminal_.print(std::string(thought ? kBeginThought : kEndThought));
    text = (text.is_string() ? text.get_ref<const std::string&>() : "") + part.text;
    terminal_.print(without_controls(part.text));
  }
}

// Neither the line nor the answer is kept, as for a line that cannot be answered, because they would begin the next
// prompt.
void Conversation::fail_answer() {
  answer_->reader.end(true);
  show_parts();
  terminal_.print(fmt::format("\nlfm2_stage: {}\n> ", kNotFiniteError));
  messages_.erase(messages_.size() - 1);
  answer_.reset();
}

void Conversation::end_answer() {
  answer_->reader.end(true);
  show_parts();
  terminal_.print("\n> ");
  messages_.push_back(std::move(answer_->message));
  answer_.reset();
}

}  // namespace lfm2
