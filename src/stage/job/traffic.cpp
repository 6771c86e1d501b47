#include "stage/job/traffic.h"

#include <algorithm>
#include <map>

#include "base/standard_streams.h"
#include "stage/job/conversation.h"
#include "stage/pipeline/shared_samples.h"
#include "text/answer_stream.h"

namespace lfm2 {

namespace {

// Requests whose tokens are printed as they arrive, if there is a tokenizer.
class StreamedRequests : public SampleRequests {
 public:
  StreamedRequests(const Samples& samples, SampleRange range, RequestDefaults defaults, int64_t max_positions,
                   const Tokenizer* tokenizer)
      : SampleRequests(samples, range, std::move(defaults), max_positions), tokenizer_(tokenizer) {}
  std::optional<Request> next() override {
    std::optional<Request> request = SampleRequests::next();
    if (request && tokenizer_ != nullptr) answer_.emplace(*tokenizer_, request->stop, request->rule.min_tokens);
    return request;
  }
  void drawn(std::vector<SampleToken> tokens) override {
    if (!answer_) return;
    std::string text;
    for (const auto& [sample, token] : tokens) {
      if (token.ends != FinishReason::kError) text += answer_->feed(token.token);
      if (token.ends) text += answer_->flush() + "\n";
    }
    print_results(text);
  }

 private:
  const Tokenizer* tokenizer_;
  std::optional<AnswerStream> answer_;
};

class SampleTraffic : public Traffic {
 public:
  explicit SampleTraffic(const JobFrame& job) : Traffic({}), job_(job), asked_top_k_(job.options.results.top_k) {}
  PromptSizes measure(int64_t slots) const override;
  std::unique_ptr<SharedRequests> open(const Capacity& capacity) override;

 private:
  RequestDefaults defaults() const {
    RequestDefaults defaults = request_defaults(job_);
    if (asked_top_k_ > 0) defaults.log_probs = static_cast<int32_t>(asked_top_k_);
    return defaults;
  }

  const JobFrame& job_;
  const int64_t asked_top_k_;  // --top-logprobs; lines may ask for more
};

std::unique_ptr<SharedRequests> SampleTraffic::open(const Capacity& capacity) {
  auto all = std::make_unique<StreamedRequests>(
      job_.samples->all(), SampleRange{0, job_.samples->left().samples}, defaults(), job_.config().max_positions,
      job_.options.command == Command::kPrompt ? job_.text.tokenizer() : nullptr);
  if (job_.options.replicas == 1) return std::make_unique<UnsharedRequests>(std::move(all));
  return std::make_unique<SharedSamples>(std::move(all), static_cast<size_t>(job_.options.replicas), capacity);
}

// Of a replica's part of the samples, as if all parts were equal.
PromptSizes SampleTraffic::measure(int64_t slots) const {
  const auto part = [this](int64_t whole) { return (whole + job_.options.replicas - 1) / job_.options.replicas; };
  PromptSizes sizes{.tokens = part(job_.samples->left().tokens)};
  const Samples& samples = job_.samples->all();
  const RequestDefaults defaults = this->defaults();
  if (samples.rules.empty()) note_rule(sizes, defaults.of_ids);
  for (const SampleRules& rules : samples.rules.distinct()) note_rule(sizes, request_by_rules(defaults, rules, 0));
  const auto for_each = [&](const auto& take) {
    for (int64_t i = 0; i < samples.count(); ++i) {
      const int64_t prompt = samples.offsets.length(i), number = samples.numbers[i];
      if (prompt == 0) continue;  // is answered with an error
      const int64_t asked = samples.rules.empty() ? defaults.of_ids.max_new
                                                  : request_by_rules(defaults, samples.rules[number], number).max_new;
      take(prompt, max_new_tokens(prompt, asked, job_.config().max_positions), samples.rules.choices(number));
    }
  };
  for_each([&](int64_t prompt, int64_t max_new, int64_t choices) {
    sizes.sequences += choices;
    sizes.new_tokens += choices * max_new;
    sizes.longest = std::max(sizes.longest, cached_positions(prompt, max_new));
  });
  sizes.sequences = part(sizes.sequences);
  sizes.new_tokens = part(sizes.new_tokens);
  slots = std::min(slots, std::max<int64_t>(1, sizes.sequences));
  sizes.longest = std::max<int64_t>(1, sizes.longest);
  sizes.page_size = std::min(job_.options.generation.page_size, sizes.longest);
  std::map<int64_t, int64_t, std::greater<>> sequences_of;  // key: number of pages
  for_each([&](int64_t prompt, int64_t max_new, int64_t choices) {
    sequences_of[pages_for(cached_positions(prompt, max_new), sizes.page_size)] += choices;
  });
  for (const auto& [pages, sequences] : sequences_of) {
    const int64_t together = std::min(slots, sequences);
    sizes.pages += pages * together;
    slots -= together;
  }
  sizes.pages = std::max<int64_t>(1, sizes.pages);
  return sizes;
}

// A conversation on rank 0's standard input and output.
class ChatTraffic : public Traffic {
 public:
  // Each turn begins with the previous ones.
  explicit ChatTraffic(const JobFrame& job) : Traffic({.may_be_shortened = true, .keeps_prefixes = true}), job_(job) {}
  PromptSizes measure(int64_t slots) const override;
  std::unique_ptr<SharedRequests> open(const Capacity& capacity) override;

 private:
  const JobFrame& job_;
};

// One sequence, which may become as long as the model allows.
PromptSizes ChatTraffic::measure(int64_t) const {
  const int64_t positions = job_.config().max_positions,
                page_size = std::min(job_.options.generation.page_size, positions);
  PromptSizes sizes{.tokens = positions,
                    .sequences = 1,
                    .new_tokens = positions,
                    .longest = positions,
                    .page_size = page_size,
                    .pages = pages_for(positions, page_size)};
  note_rule(sizes, request_defaults(job_).of_text);
  return sizes;
}

std::unique_ptr<SharedRequests> ChatTraffic::open(const Capacity& capacity) {
  Request each = request_defaults(job_).of_text;
  if (!job_.options.generation.sampling.max_new && !job_.text.generation_config().max_new)
    each.max_new = job_.config().max_positions;
  return std::make_unique<UnsharedRequests>(std::make_unique<Conversation>(
      *job_.text.model(), std::move(each), capacity.positions, job_.text.now(), Terminal(stdin, stdout, interrupts)));
}

}  // namespace

void note_rule(PromptSizes& sizes, const Request& request) {
  if (request.rule.counts()) sizes.counts = true;
  if (!request.constraint.empty()) sizes.constrained = true;
  if (request.prompt_log_probs) sizes.prompt_log_probs = true;
  sizes.edits = std::max(sizes.edits, static_cast<int64_t>(edits_of(request).size()));
}

RequestDefaults request_defaults(const JobFrame& job, int64_t tokens) {
  Request of_ids{.max_new = tokens, .eos_tokens = job.config().eos_tokens};
  Request of_text = of_ids;
  apply(job.text.generation_config(), of_text);
  for (Request* request : {&of_ids, &of_text}) {
    apply(job.options.generation.sampling, *request);
    if (job.options.generation.ignore_eos) request->eos_tokens.clear();
  }
  return {.of_ids = std::move(of_ids), .of_text = std::move(of_text)};
}

std::unique_ptr<Traffic> make_traffic(const JobFrame& job) {
  if (job.options.command == Command::kChat) return std::make_unique<ChatTraffic>(job);
  return std::make_unique<SampleTraffic>(job);
}

}  // namespace lfm2
