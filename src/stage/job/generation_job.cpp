// Decides how many sequences are generated at a time and how many pages the caches get, and runs the generation.
#include "stage/job/generation_job.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/json/json.h"
#include "base/standard_streams.h"
#include "base/stop.h"
#include "openai/answer_form.h"
#include "stage/generation/answer_stream.h"
#include "stage/model/memory_plan.h"
#include "stage/scoring/cost_model.h"

namespace lfm2 {

namespace {

// More sequences in a step than this make it longer in proportion: the time for each of them no longer falls.
constexpr int64_t kCudaSequencesInStep = 1024, kCpuSequencesInStep = 512;
// Tokens of prompts in a step. Where nobody waits for single tokens, a lone stage takes as many as products of experts
// need for their full speed. Several stages and live requests share steps with fewer.
constexpr int64_t kCudaPromptTokens = 2048, kCudaPromptTokensAlone = 8192, kCpuPromptTokens = 128;
constexpr double kCacheShare = 0.9;  // the part of the free memory that caches may take: libraries allocate, too
constexpr double kUnlimited = 1e9;   // a number of pages that no job needs

// Requests whose tokens are printed as they come, where there is a tokenizer.
class StreamedRequests : public SampleRequests {
 public:
  StreamedRequests(const Samples& samples, SampleRange range, RequestDefaults defaults, int64_t max_positions,
                   const Tokenizer* tokenizer)
      : SampleRequests(samples, range, std::move(defaults), max_positions), tokenizer_(tokenizer) {}
  std::optional<Request> next() override {
    std::optional<Request> request = SampleRequests::next();
    if (request && tokenizer_ != nullptr) answer_.emplace(*tokenizer_, *request);
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

}  // namespace

// A text is with one rank at a time, as each token waits for the one before. A conversation is a single text. The
// chunks of a long prompt go through the ranks one behind the other, and then their threads share the processors.
int64_t GenerationJob::ranks_at_once() const {
  if (answers_live()) return Job::ranks_at_once();
  const int64_t wanted = options_.generation.max_sequences, texts = std::max<int64_t>(1, samples_->size().samples);
  return wanted > 0 ? std::min(texts, wanted * options_.replicas) : texts;
}

// Called on rank 0, which has all prompts.
void GenerationJob::check_samples(const Samples& prompts) const {
  const int64_t max_positions = config().max_positions;
  for (int64_t i = 0; i < prompts.count(); ++i)
    if (const int64_t prompt = prompts.offsets.length(i); prompt >= max_positions)
      throw Error(
          ExitCode::kData,
          fmt::format("sample {}: {} tokens, expected fewer than max_position_embeddings = {} to leave room for "
                      "--generate",
                      i, prompt, max_positions));
  const std::vector<SampleRules>& rules = prompts.rules.distinct();
  if (options_.output.extension() == ".h5" &&
      std::any_of(rules.begin(), rules.end(), [](const SampleRules& one) { return one.choices > 1 || one.echo; }))
    throw Error(ExitCode::kUsage, "--output with .h5 and lines with \"n\" above 1 or \"echo\": expected .jsonl");
}

// Lines that were refused are answered before anything else. Last stages.
void GenerationJob::answer_errors(const std::vector<CompletionConsumer*>& consumers) const {
  const SampleErrors& errors = samples_->errors();
  for (size_t at = 0; at < errors.size(); ++at) {
    if (at % 4096 == 0) errors.rest();
    if (kept_.holds(errors.sample(at))) continue;
    Completion completion;
    completion.sample = errors.sample(at);
    completion.tag = AnswerForm{LineForm::kCompletion}.to_word();
    completion.error = errors.text(at);
    for (CompletionConsumer* consumer : consumers) consumer->take(completion);
  }
}

void GenerationJob::note_rule(PromptSizes& sizes, const Request& request) {
  if (request.rule.counts()) sizes.counts = true;
  if (request.prompt_log_probs) sizes.prompt_log_probs = true;
  sizes.edits = std::max(sizes.edits, static_cast<int64_t>(edits_of(request).size()));
}

// Called on the first stage of a pipeline, which has its prompts. The other stages are told the result.
GenerationJob::PromptSizes GenerationJob::measure_prompts(int64_t slots) const {
  PromptSizes sizes{.tokens = samples_->own_share().tokens};
  const Samples& samples = samples_->own_samples();
  const RequestDefaults defaults = this->defaults();
  if (samples.rules.empty()) note_rule(sizes, defaults.of_ids);
  for (const SampleRules& rules : samples.rules.distinct()) note_rule(sizes, request_by_rules(defaults, rules, 0));
  const auto for_each = [&](const auto& take) {
    for (int64_t i = 0; i < samples_->own_range().count; ++i) {
      const int64_t prompt = samples.offsets.length(i), number = samples.numbers[i];
      if (prompt == 0) continue;  // is answered with an error
      const int64_t asked = samples.rules.empty() ? defaults.of_ids.max_new
                                                  : request_by_rules(defaults, samples.rules[number], number).max_new;
      take(prompt, max_new_tokens(prompt, asked, config().max_positions), samples.rules.choices(number));
    }
  };
  for_each([&](int64_t prompt, int64_t max_new, int64_t choices) {
    sizes.sequences += choices;
    sizes.new_tokens += choices * max_new;
    sizes.longest = std::max(sizes.longest, cached_positions(prompt, max_new));
  });
  sizes.longest = std::max<int64_t>(1, sizes.longest);
  sizes.page = std::min(options_.generation.page, sizes.longest);
  std::map<int64_t, int64_t, std::greater<>> sequences_of;  // key: number of pages
  for_each([&](int64_t prompt, int64_t max_new, int64_t choices) {
    sequences_of[pages_for(cached_positions(prompt, max_new), sizes.page)] += choices;
  });
  for (const auto& [pages, sequences] : sequences_of) {
    const int64_t together = std::min(slots, sequences);
    sizes.pages += pages * together;
    slots -= together;
  }
  sizes.pages = std::max<int64_t>(1, sizes.pages);
  return sizes;
}

RequestDefaults GenerationJob::defaults(int64_t tokens) const {
  Request of_ids{.max_new = tokens, .eos_tokens = config().eos_tokens};
  Request of_text = of_ids;
  apply(text_.generation_config(), of_text);
  for (Request* request : {&of_ids, &of_text}) {
    apply(options_.generation.sampling, *request);
    if (options_.generation.ignore_eos) request->eos_tokens.clear();
  }
  std::optional<int32_t> log_probs;
  if (asked_top_k_ > 0) log_probs = static_cast<int32_t>(asked_top_k_);
  return {.of_ids = std::move(of_ids), .of_text = std::move(of_text), .log_probs = log_probs};
}

void GenerationJob::add_to_identity(Json& identity) const {
  const auto add = [&identity](const Request& request, const std::string& suffix) {
    identity["--generate" + suffix] = request.max_new;
    identity["--temperature" + suffix] = request.rule.temperature;
    identity["--eos" + suffix] = request.eos_tokens;
    const SamplingRule& rule = request.rule;
    // Only what is asked for: a job without these has the identity that it always had.
    if (!request.stop.empty()) identity["--stop" + suffix] = request.stop;
    if (rule.min_tokens > 0) identity["--min-tokens" + suffix] = rule.min_tokens;
    if (rule.counts())
      identity["penalties" + suffix] = {rule.repetition_penalty, rule.presence_penalty, rule.frequency_penalty};
    if (rule.min_p > 0) identity["--min-p" + suffix] = rule.min_p;
    if (request.rule.temperature == 0 && suffix.empty()) return;
    identity["--seed"] = request.rule.seed;
    identity["--top-k" + suffix] = request.rule.top_k;
    identity["--top-p" + suffix] = request.rule.top_p;
  };
  const RequestDefaults defaults = this->defaults();
  add(defaults.of_ids, "");
  if (const std::string tokenizer = text_.checksum(); !tokenizer.empty()) identity["tokenizer"] = tokenizer;
  if (samples_->all().rules.empty()) return;
  add(defaults.of_text, " of text");
  identity["lines"] = samples_->all().source;
}

JobOutput& GenerationJob::resume_output_file(Unfinished& begun) {
  output_ = resume_completion_file(options_.output, output_job(), begun);
  return *output_;
}

// Sets the sizes that do not depend on memory. Nothing is loaded yet.
void GenerationJob::plan() {
  const GenerationOptions& wanted = options_.generation;
  plan_.top_k = max_likeliest();
  plan_.times_interval = times_interval();
  const int64_t stages = pipeline_ranks_->size();
  const int64_t in_step = machine_.cuda ? kCudaSequencesInStep : kCpuSequencesInStep;
  const int64_t at_a_time = wanted.max_sequences > 0 ? wanted.max_sequences : in_step * stages;
  ScheduleLimits& limits = plan_.limits;
  limits.steps_in_flight = stages;
  if (is_first()) prompts_ = measure_prompts(at_a_time);
  prompts_ = from_bytes<PromptSizes>(
      pipeline_ranks_->broadcast(to_bytes(prompts_), 0, load_timeout(), "sizes of the prompts"));
  limits.caches.slots = std::max<int64_t>(1, std::min(prompts_.sequences, at_a_time));
  plan_.longest = prompts_.longest;
  plan_.counts = prompts_.counts;
  plan_.edits = prompts_.edits;
  plan_.live = answers_live();
  plan_.prompt_log_probs = prompts_.prompt_log_probs;
  plan_.hidden = prompts_.hidden;
  limits.caches.page = prompts_.page;
  limits.caches.keeps_prefixes = keeps_prefixes();
  limits.counted_prefixes = prompts_.longest;
  limits.max_sequences = (limits.caches.slots + stages - 1) / stages;
  if (options_.micro_batch > 0) limits.max_sequences = std::min(limits.max_sequences, options_.micro_batch);
  const int64_t on_cuda = stages == 1 && !plan_.live ? kCudaPromptTokensAlone : kCudaPromptTokens;
  const int64_t chosen = machine_.cuda ? on_cuda : kCpuPromptTokens;
  // There is no token at all where all lines are answered with errors.
  limits.prompt_tokens =
      std::min(std::max<int64_t>(1, prompts_.tokens), wanted.prompt_tokens > 0 ? wanted.prompt_tokens : chosen);
  cut_ = options_.balance && stages > 1 ? balanced_partition(block_seconds(), stages)
                                        : given_partition(config().layers, stages, options_.layer_counts);
}

// Of a step with one token of each sequence, half of whose new tokens are there.
std::vector<double> GenerationJob::block_seconds() {
  const int64_t sequences = plan_.limits.max_sequences, all = std::max<int64_t>(1, prompts_.sequences),
                cached = std::min((prompts_.tokens + prompts_.new_tokens / 2) / all, config().max_positions - 1);
  const MeasuredBlocks measured =
      time_blocks(*shards_, machine_, world_, compute_, {.cached = cached},
                  {.small = (sequences + 1) / 2, .large = std::max<int64_t>(2, sequences)}, load_timeout());
  std::vector<double> seconds;
  for (const StageTime& block : measured.blocks) seconds.push_back(block.seconds(static_cast<double>(sequences)));
  seconds.back() += measured.head.seconds(static_cast<double>(sequences));
  for (const int64_t block : block_kinds(config()).examples)
    say(fmt::format("{} tokens take {:.4f} ms in the {} of layer {}", sequences,
                    seconds[static_cast<size_t>(block)] * 1e3,
                    block % kBlocksOfLayer == 0 ? "token mixer" : "feed-forward", block / kBlocksOfLayer));
  say(fmt::format("{} rows take {:.4f} ms in the LM head", sequences,
                  measured.head.seconds(static_cast<double>(sequences)) * 1e3));
  return seconds;
}

Job::Portion GenerationJob::portion() const {
  uint64_t bytes = 0;
  if (makes_output() && !options_.output.empty()) {
    // Each completion is a part of the file, which is known until all are put into order.
    const auto samples = static_cast<uint64_t>(samples_->left().samples);
    bytes += samples * sizeof(FilePart);
    if (options_.output.extension() == ".h5") bytes += samples * (sizeof(int64_t) + sizeof(int32_t));
  }
  if (is_last()) bytes += plan_.adjustment_bytes(config().vocab);
  bytes += plan_.tail_bytes(config(), layers(), compute_);
  return {.tokens = plan_.max_tokens(),
          .rows = options_.results.positions == Positions::kNone ? 0 : plan_.result_rows(),
          .job_bytes = bytes,
          .options = "--max-sequences or --prefill-chunk"};
}

// The caches get as many pages as the longest sequences could fill at the same time, or as many as fit into the memory
// of the fullest rank.
CacheShape GenerationJob::fit_caches() {
  CacheShape shape = plan_.limits.caches;
  const int64_t largest = pages_for(prompts_.longest, shape.page);

  const int64_t rows = is_last() ? plan_.result_rows() : 0;
  const StageMemory cost = stage_memory(config(), layers(), compute_, compute_, plan_.max_tokens(), rows);
  const uint64_t others = kBuffers * cost.residual_bytes + cost.scratch_bytes + cost.result_bytes +
                          static_cast<uint64_t>(shape.slots) * slot_bytes(config(), layers()) +
                          (is_last() ? plan_.adjustment_bytes(config().vocab) : 0) +
                          plan_.tail_bytes(config(), layers(), compute_);
  const uint64_t free = machine_.backend->free_bytes();
  const double page = static_cast<double>(page_bytes(config(), layers(), compute_, shape));
  const double left = static_cast<double>(free) / machine_.sharing * kCacheShare - static_cast<double>(others);
  const bool unknown = free == 0 && !machine_.cuda;  // this host does not say how much memory is free
  const double fit = unknown ? kUnlimited : left < 0 ? 0 : page > 0 ? std::min(left / page, kUnlimited) : kUnlimited;
  const double least = pipeline_ranks_->smallest(fit, options_.timeout_seconds);
  const auto fitting = static_cast<int64_t>(least);
  if (fitting < largest && !(may_be_shortened() && fitting > 0)) {
    if (fit > least) pipeline_ranks_->barrier(options_.timeout_seconds, "the fullest rank ends all");
    throw Error(
        ExitCode::kUnavailable,
        fmt::format("{} ({}): a sequence of {} positions needs {} pages of the key-value cache, {} fit into the "
                    "memory that is free: expected shorter samples, a smaller --generate or more ranks",
                    world_.host(), machine_.backend->description(), plan_.longest, largest, fitting));
  }
  shape.pages = std::min(prompts_.pages, fitting);
  return shape;
}

void GenerationJob::open() {
  plan_.limits.caches = fit_caches();
  say(fmt::format("up to {} sequences at a time, {} in a step; caches of {} pages of {} positions",
                  plan_.limits.caches.slots, plan_.limits.max_sequences, plan_.limits.caches.pages,
                  plan_.limits.caches.page));
  generator_.emplace(session_->links(), plan_, compute_, !options_.trace.empty());
  if (!options_.output.empty() && makes_output() && !output_)
    output_ = create_completion_file(options_.output, output_job());
  if (!options_.output.empty() && options_.replicas > 1) open_relay();
}

void GenerationJob::open_relay() {
  const MpiGroup last_stages(world_, is_last() ? 1 : 0);
  if (is_last()) relay_.emplace(last_stages);
}

std::unique_ptr<RequestSource> GenerationJob::make_requests() const {
  if (!is_first()) return nullptr;
  return std::make_unique<StreamedRequests>(samples_->own_samples(), samples_->own_range(), defaults(),
                                            config().max_positions,
                                            options_.command == Command::kPrompt ? text_.tokenizer() : nullptr);
}

std::function<bool()> GenerationJob::stop_when() const { return stop_requested; }

int64_t GenerationJob::positions() const {
  return std::min(config().max_positions, plan_.limits.caches.pages * plan_.limits.caches.page);
}

bool GenerationJob::run_once() {
  hash_ = {};
  std::vector<CompletionConsumer*> consumers{&hash_};
  if (output_) {
    if (options_.benchmark) output_->start_over();
    consumers.push_back(output_.get());
  } else if (relay_) {
    consumers.push_back(&*relay_);
  }
  Progress progress("generate", static_cast<uint64_t>(prompts_.new_tokens), Progress::Unit::kTokens,
                    makes_output() && !is_live(options_.command) ? options_.progress : ProgressMode::kOff);
  if (makes_output()) answer_errors(consumers);
  const std::unique_ptr<RequestSource> requests = make_requests();
  const auto after_step = [&](int64_t tokens) {
    progress.add(static_cast<uint64_t>(tokens));
    if (relay_) relay_->pass(output_.get());
  };
  generator_->run(requests.get(), consumers, after_step, stop_when(), token_text());
  if (relay_) relay_->end(output_.get());
  hash_.add(kept_.results);
  runs_.handed_out = hash_.count();
  return generator_->finished();
}

// What a token adds to a text; nothing where this rank has no tokenizer.
TokenText GenerationJob::token_text() const {
  const Tokenizer* tokenizer = text_.tokenizer();
  if (tokenizer == nullptr) return {};
  return [tokenizer](int32_t token) {
    return tokenizer->is_special(token) ? std::string_view() : tokenizer->bytes(token);
  };
}

void GenerationJob::add_to(StageReport& report) const {
  report.activation_bytes = generator_->activation_bytes();
  report.cache_bytes = generator_->cache_bytes();
  report.times = generator_->times();
  if (is_first()) report.generation = summarize(generator_->generation_times(), generator_->counts());
  report.not_finite = not_finite();
  if (is_last() && options_.results.positions != Positions::kNone) report.results_xxh3 = hash_.hex();
}

void GenerationJob::add_to(JobReport& report) const {
  report.micro_batches = generator_->counts().steps;
  report.largest_micro_batch = generator_->counts().largest_step;
}

}  // namespace lfm2
