#include "stage/job/job_text.h"

#include "base/json/json.h"
#include "base/stop.h"
#include "openai/request_line.h"
#include "stage/io/inputs/input_names.h"
#include "stage/io/inputs/line_samples.h"
#include "stage/io/journal.h"
#include "stage/model/model_config.h"
#include "stage/shards/shard_format.h"
#include "stage/shards/shard_reader.h"
#include "stage/shards/text_folder.h"

namespace lfm2 {

namespace {

constexpr uint64_t kMaxGenerationConfigBytes = 1 << 20;

}  // namespace

int64_t max_sample_tokens(const Options& options, const ModelConfig& config) {
  if (options.stride > 0) return static_cast<int64_t>(TokenIds::kMaxIds);
  return config.max_positions + (options.results.score ? 1 : 0);
}

int ranks_of_a_pipeline(int ranks, int replicas) {
  if (ranks % replicas != 0)
    throw Error(ExitCode::kUsage,
                fmt::format("{} ranks for --replicas {}: expected the same number for each replica", ranks, replicas));
  return ranks / replicas;
}

void pulse_while_reading(MpiWorld& world) {
  world.watchdog().pulse();
  if (stop_requested())
    throw Error(ExitCode::kStopped, "stopped on request while the input was read: nothing was computed");
}

JobText::JobText(const Options& options, MpiWorld& world)
    : options_(options), world_(world), writer_(ranks_of_a_pipeline(world.size(), options.replicas) - 1) {
  world.watchdog().enter({.phase = Phase::kRead});
  if (world.rank() == 0) {
    expect_inputs(options.inputs);
    if (is_input_of_lines(options.first_input()))
      lines_ = std::make_unique<LineReader>(options.inputs, [&world] { pulse_while_reading(world); });
    const std::optional<bool> known = continues_samples(options);
    const bool asks = lines_ && extension_of_lines(options.first_input()) != ".txt" && !known.value_or(false) &&
                      !options.results.score;
    const LineKind kind = asks || (lines_ && !known) ? kind_of_lines(*lines_) : LineKind::kNone;
    if (asks && kind == LineKind::kEmbeddings)
      kind_ = JobKind::kEmbeds;
    else if (known ? *known : kind == LineKind::kContinued || is_batch(kind))
      kind_ = JobKind::kContinues;
  }
  const double timeout = kDiskFactor * options.timeout_seconds;
  kind_ = world.broadcast_value(kind_, 0, timeout, "kind of job");
  if (embeds())
    check_embeddings(options);
  else
    check_kind(options, continues());
  now_ = world.broadcast_value(world.rank() == writer_ ? time_of_job() : 0, writer_, timeout, "time of the job");
}

std::time_t JobText::time_of_job() const {
  if (options_.resume)
    if (const std::optional<JournalContent> begun = read_journals(options_.output, 0)) {
      const Json text = Json::parse(begun->text, nullptr, false);
      if (text.is_object() && text.contains("created") && text["created"].is_number_integer())
        return text["created"].get<std::time_t>();
    }
  return std::time(nullptr);
}

void JobText::open(const ShardSet& shards) {
  const bool writes_text = continues() && options_.output.extension() == ".jsonl";
  stops_ = continues() && !options_.generation.sampling.stop.empty();
  const bool needed = stops_ || lines_ || options_.command != Command::kRun || writes_text || options_.results.score ||
                      !options_.tokenizer.empty();
  const std::filesystem::path folder =
      needed ? text_folder(shards, options_.weights, options_.tokenizer) : std::filesystem::path();
  if (!folder.empty()) {
    model_ = TextModel::open(folder);
    const auto tokens = static_cast<int64_t>(model_->tokenizer().size());
    if (tokens > shards.config().vocab)
      throw Error(
          ExitCode::kData,
          fmt::format("{}: {} tokens, expected at most vocab_size = {}: tokenizer and weights are of two models",
                      (folder / shard::kTokenizerFile).string(), tokens, shards.config().vocab));
  } else {
    missing_ = fmt::format(
        "text needs a tokenizer, and the shards in {} list none: expected --tokenizer FOLDER, a folder with "
        "tokenizer.json, or shards that were split from such a folder",
        options_.weights.string());
    if (stops_) throw Error(ExitCode::kData, "--stop: " + missing_);
  }
  if (continues()) read_generation_config(folder);
}

void JobText::read_generation_config(const std::filesystem::path& folder) {
  std::filesystem::path file = options_.generation_config;
  if (file == "none") return;
  if (file.empty()) {
    if (folder.empty() || !std::filesystem::exists(folder / shard::kGenerationConfigFile)) return;
    file = folder / shard::kGenerationConfigFile;
  }
  generation_config_.text = read_text_file(file, kMaxGenerationConfigBytes);
  generation_config_.sampling = parse_generation_config(generation_config_.text, file.string());
  if (generation_config_.sampling.stop.empty()) return;
  if (!model_) throw Error(ExitCode::kData, fmt::format("{}: \"stop_strings\": {}", file.string(), missing_));
  stops_ = true;
}

Samples JobText::read(const ModelConfig& config, ThreadPool& threads) {
  if (model_ && continues())
    constraints_ = std::make_unique<grammar::ConstraintCache>(model_->tokenizer(), config.vocab);
  const LineContext context{.vocab = config.vocab,
                            .max_positions = max_sample_tokens(options_, config),
                            .hidden = config.hidden,
                            .text = model_ ? &*model_ : nullptr,
                            .text_error = missing_,
                            .constraints = constraints_.get(),
                            .strict = options_.strict,
                            .continues = continues(),
                            .scores = options_.results.score,
                            .states = options_.results.hidden != Hidden::kNone,
                            .embeddings = embeds(),
                            .drafts = options_.generation.drafts(),
                            .now = now_};
  if (is_live(options_.command)) {
    if (!model_ && options_.command == Command::kChat) throw Error(ExitCode::kData, missing_);
    if (options_.command == Command::kChat) model_->expect_template();
    stops_ |= options_.command == Command::kServe;
    return {.ids = {0}, .offsets = {0, 1}};  // stands for what is not known yet
  }
  if (options_.command != Command::kPrompt) {
    Samples samples = read_lines(*lines_, context, options_.samples, threads);
    for (const SampleRules& rules : samples.rules.distinct())
      stops_ |= !rules.sampling.stop.empty() || !rules.constraint.empty();
    return samples;
  }
  RequestLine line = parse_text_line(options_.prompt, context, "--prompt");
  Samples samples{.ids = TokenIds(line.ids.begin(), line.ids.end()),
                  .offsets = {0, static_cast<int64_t>(line.ids.size())}};
  line.rules.form = LineForm::kPrompt;
  samples.rules.push_back(std::move(line.rules));
  return samples;
}

void JobText::share(const ModelConfig& config, double timeout_seconds) {
  if (!continues()) return;
  const int stages = world_.size() / options_.replicas;
  for (int last = stages - 1; last < world_.size(); last += stages) {
    if (last == 0) continue;
    const bool needed = stops_ || (last == writer_ && options_.output.extension() == ".jsonl");
    const bool gives = world_.rank() == 0 && model_ && needed;
    const std::string json = world_.pass(gives ? model_->tokenizer_json() : "", 0, last, timeout_seconds, "tokenizer");
    if (world_.rank() != last || json.empty()) continue;
    tokenizer_ = Tokenizer::parse(json, "tokenizer.json");
    constraints_ = std::make_unique<grammar::ConstraintCache>(*tokenizer_, config.vocab);
  }
  if (options_.replicas == 1) return;
  const std::string file(shard::kGenerationConfigFile);
  generation_config_.text = world_.broadcast(generation_config_.text, 0, timeout_seconds, file.c_str());
  if (world_.rank() != 0 && !generation_config_.text.empty())
    generation_config_.sampling = parse_generation_config(generation_config_.text, file);
}

const Tokenizer* JobText::tokenizer() const {
  return model_ ? &model_->tokenizer() : tokenizer_ ? &*tokenizer_ : nullptr;
}

}  // namespace lfm2
