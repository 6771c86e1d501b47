#include "serve/batches/batch_line.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "text/text_model.h"

namespace lfm2::serve {

namespace {

constexpr std::string_view kChatEndpoint = "/v1/chat/completions";

}  // namespace

BatchLine::BatchLine(std::shared_ptr<const BatchContext> context, int64_t sample, const std::string& where,
                     std::string_view text)
    : context_(std::move(context)), sample_(sample) {
  try {
    read(where, text);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kStopped) throw;
    const TextModel* model = context_->lines.text;
    line_ = faulty_line(line_.name, LineForm::kCompletion,
                        model != nullptr ? model->without_folder(error.what()) : error.what());
    requests_.clear();
  }
}

void BatchLine::read(const std::string& where, std::string_view text) {
  line_ = parse_request_line(text, context_->lines, where);
  if (!line_.error.empty()) throw Error(ExitCode::kData, std::exchange(line_.error, {}));
  if (!context_->lines.embeddings) {
    if (!is_batch_form(line_.rules.form))
      throw Error(ExitCode::kData, fmt::format("{}: is no batch line, expected \"custom_id\", \"method\", \"url\" and "
                                               "\"body\"",
                                               where));
    if ((line_.rules.form == LineForm::kChatCompletion) != (context_->endpoint == kChatEndpoint))
      throw Error(ExitCode::kData,
                  fmt::format("{}: \"url\" is not {}, the endpoint of the batch", where, context_->endpoint));
  }
  make_requests(where);
  for (const Request& request : requests_) check(request, where);
}

void BatchLine::make_requests(const std::string& where) {
  const RequestLimits& limits = context_->limits;
  if (context_->lines.embeddings) {
    if (std::ssize(line_.inputs) * context_->lines.hidden > limits.max_embedded)
      throw Error(ExitCode::kData, fmt::format("{}: \"input\" has {} inputs for embeddings of {} numbers, expected at "
                                               "most {}",
                                               where, line_.inputs.size(), context_->lines.hidden,
                                               limits.max_embedded / context_->lines.hidden));
    auto ids = line_.ids.begin();
    for (const int32_t tokens : line_.inputs) {
      Request& request = requests_.emplace_back();
      request.prompt.assign(ids, ids + tokens);
      ids += tokens;
      request.hidden = context_->embeddings;
      make_prefill_only(request);
    }
    return;
  }
  Request each = request_by_rules(context_->defaults, line_.rules, sample_);
  each.prompt = line_.ids;
  const int64_t tokens = std::ssize(each.prompt);
  const int64_t of_a_job = max_new_tokens(tokens, each.max_new, context_->lines.max_positions);
  each.max_new = max_new_tokens(tokens, each.max_new, limits.max_prompt_tokens);
  if (tokens < limits.max_prompt_tokens && each.max_new < of_a_job)  // check() refuses longer prompts
    throw Error(ExitCode::kData, fmt::format("{}: {} tokens and {} of the answer, expected at most {} in all on this "
                                             "server",
                                             where, tokens, of_a_job, limits.max_prompt_tokens));
  each.num_top_logprobs = line_.rules.log_probs.value_or(0);
  each.echo = false;  // the answer's prompt is known here
  for (int32_t choice = 0; choice < line_.rules.choices; ++choice) {
    Request& request = requests_.emplace_back(each);
    request.choices = 1;  // the line itself joins the choices
    request.rule.seed = seed_of_choice(each.rule.seed, choice);
  }
}

// Against the limits of the server; a job without one has other limits.
void BatchLine::check(const Request& request, const std::string& where) const {
  const RequestLimits& limits = context_->limits;
  const auto refuse = [&](std::string_view what, int64_t found, int64_t most) {
    throw Error(ExitCode::kData,
                fmt::format("{}: {} {}, expected at most {} on this server", where, found, what, most));
  };
  const auto tokens = std::ssize(request.prompt);
  const bool is_state = request.hidden != Hidden::kNone;
  if (tokens + (request.prefill_only ? 0 : 1) > limits.max_prompt_tokens)
    refuse(is_state ? "tokens of an input" : "tokens and one of the answer", tokens, limits.max_prompt_tokens);
  if (std::ssize(requests_) > (is_state ? limits.max_inputs : limits.max_requests))
    refuse(is_state ? "inputs" : "choices", std::ssize(requests_), is_state ? limits.max_inputs : limits.max_requests);
  if (request.num_top_logprobs > limits.max_top_logprobs)
    refuse("top logprobs", request.num_top_logprobs, limits.max_top_logprobs);
  if (std::ssize(edits_of(request)) > limits.max_edits)
    refuse("biases and ends of the text", std::ssize(edits_of(request)), limits.max_edits);
  if (request.prompt_log_probs && tokens * (1 + request.num_top_logprobs) > limits.max_scored)
    refuse("log-probabilities of the prompt", tokens * (1 + request.num_top_logprobs), limits.max_scored);
}

std::vector<Request> BatchLine::begin(int32_t first) {
  choices_.clear();
  choices_.resize(requests_.size());
  ended_ = 0;
  std::vector<Request> requests = requests_;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sample = first + static_cast<int32_t>(i);
    Completion& completion = choices_[i].completion;
    completion.sample = sample_;
    completion.choice = static_cast<int32_t>(i);
    completion.prompt_tokens = static_cast<int32_t>(requests[i].prompt.size());
    if (line_.rules.echo) completion.prompt_ids = requests[i].prompt;
    if (!requests[i].stop.empty()) choices_[i].stop.emplace(requests[i].stop);
  }
  return requests;
}

void BatchLine::add(size_t index, const DrawnToken& token) {
  const Request& request = requests_[index];
  Choice& choice = choices_[index];
  Completion& completion = choice.completion;
  if (!token.prompt.log_probs.empty()) completion.prompt = token.prompt;
  if (!token.hidden.empty()) choice.state = token.hidden;
  if (token.ends == FinishReason::kError) {
    completion.error = !token.error.empty()         ? token.error
                       : context_->lines.embeddings ? kNotFiniteError
                                                    : fmt::format(
                                                          "token {} of the answer: its logits are not finite "
                                                          "(NaN or infinity)",
                                                          completion.token_ids.size() + 1);
  } else if (!request.prefill_only) {
    const auto append = [](auto& list, const auto& more) { list.insert(list.end(), more.begin(), more.end()); };
    completion.token_ids.push_back(token.token);
    completion.log_probs.push_back(token.log_prob);
    append(completion.top_ids, token.top_ids);
    append(completion.top_log_probs, token.top_log_probs);
    completion.drafts.add(token);
    if (choice.stop && !completion.text_bytes) {
      const Tokenizer& tokenizer = *context_->facts.tokenizer;
      const bool may_stop = std::ssize(completion.token_ids) > request.rule.min_tokens;
      completion.text_bytes = choice.stop->feed(
          tokenizer.is_special(token.token) ? std::string_view() : tokenizer.bytes(token.token), may_stop);
    }
  }
  if (!token.ends) return;
  completion.reason = *token.ends;
  ++ended_;
}

std::string BatchLine::error() const {
  if (!line_.error.empty()) return line_.error;
  for (const Choice& choice : choices_)
    if (!choice.completion.error.empty()) return choice.completion.error;
  return "";
}

BatchLine::Answer BatchLine::answer() const {
  const bool failed = !error().empty();
  if (context_->lines.embeddings) {
    EmbeddingResponse response;
    int64_t tokens = 0;
    for (size_t i = 0; i < choices_.size() && !failed; ++i) {
      response.add(choices_[i].state, line_.base64);
      tokens += choices_[i].completion.prompt_tokens;
    }
    // The response itself has words for states that are not finite.
    if (failed && line_.error.empty()) response.add(std::vector{NAN}, false);
    return {response.pop_line(sample_, line_.name, context_->facts.model, tokens, line_.error), failed};
  }
  Completion whole;
  if (choices_.empty()) {
    whole.error = line_.error;
    whole.sample = sample_;
  } else {
    whole = choices_.front().completion;
    for (size_t i = 1; i < choices_.size(); ++i) whole.others.push_back(choices_[i].completion);
  }
  const ResponseForm form{line_.rules.form, line_.rules.log_probs, line_.rules.echo, line_.rules.message};
  return {batch_response(whole, form, line_.name, context_->facts) + '\n', failed};
}

}  // namespace lfm2::serve
