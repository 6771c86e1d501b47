// Which options may be combined, and which results they ask for.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "stage/generation/make_drafters.h"
#include "stage/io/completions.h"
#include "stage/io/inputs/input_names.h"
#include "stage/io/lines/line_reader.h"
#include "stage/io/output_file.h"
#include "stage/job/options.h"

namespace lfm2 {

namespace {

void check_needs(const OptionGiven& given, const Options& options) {
  if (continues_samples(options).value_or(true)) return;
  std::vector<std::string> names;
  for_each_sampling_field([&](const auto& field) { names.push_back(option_of(field.key)); });
  std::erase(names, "--seed");  // random samples have seeds, too
  names.insert(names.end(), {"--stop", "--eos", "--ignore-eos", "--max-num-seqs", "--max-batched-tokens", "--page-size",
                             "--draft", "--draft-length"});
  for (const std::string& name : names)
    if (given(name.c_str())) throw Error(ExitCode::kUsage, fmt::format("{} requires --max-tokens (see --help)", name));
}

void check_alone(const OptionGiven& given, const std::string& option, std::initializer_list<const char*> others) {
  for (const char* name : others)
    if (given(name))
      throw Error(ExitCode::kUsage, fmt::format("{} and {} exclude each other: expected one of them", option, name));
}

void check_hidden(const OptionGiven& given, Options& options) {
  if (options.results.hidden == Hidden::kNone) return;
  check_alone(given, "--hidden", {"--score", "--logits", "--top-logprobs", "--max-tokens", "--prompt"});
  if (!options.reference.empty())
    throw Error(ExitCode::kUsage, "--reference with --hidden: a reference has logits or scores, expected no --hidden");
  options.results.positions = options.results.hidden == Hidden::kAll ? Positions::kAll : Positions::kLast;
}

// --score is a separate kind of result. Its rows are positions, like those of --logits all.
void check_score(const OptionGiven& given, Options& options) {
  if (!options.results.score) return;
  check_alone(given, "--score", {"--logits", "--top-logprobs", "--max-tokens", "--prompt"});
  if (!options.reference.empty() && options.reference.extension() != ".h5")
    throw Error(ExitCode::kUsage,
                fmt::format("--reference {} with --score: expected a name ending in .h5", options.reference.string()));
  options.results.positions = Positions::kAll;
}

void check_serve(const ServeOptions& serve) {
  const std::vector<std::string>& origins = serve.cors_origins;
  if (origins.size() > 1 && std::find(origins.begin(), origins.end(), "*") != origins.end())
    throw Error(ExitCode::kUsage, "--cors-origin *: every page may use the server, expected no other --cors-origin");
}

}  // namespace

void settle_results(const OptionGiven& given, Options& options) {
  check_needs(given, options);
  check_score(given, options);
  check_hidden(given, options);
}

void check_together(const Options& options) {
  if (const std::optional<bool> continues = continues_samples(options)) check_kind(options, *continues);
  if (options.virtual_stages == 0 && !options.layer_counts.empty())
    throw Error(ExitCode::kUsage,
                "--layers with --virtual-stages 0: the cut is given, expected the number of pieces for each rank");
  check_serve(options.serve);
  check_draft(options.generation.draft);
  if (options.generation.draft_length > 0 && !options.generation.drafts())
    throw Error(ExitCode::kUsage, "--draft-length without --draft: nothing is guessed, expected --draft ngram");
  if (options.command == Command::kPrompt && options.replicas > 1)
    throw Error(ExitCode::kUsage, "--replicas with --prompt: one text is continued, expected one pipeline");
  if (options.resume && options.first_input() == "-")
    throw Error(ExitCode::kUsage, "--resume with --input -: standard input cannot be read again, expected a file");
  if (options.resume && options.output.empty())
    throw Error(ExitCode::kUsage, "--resume without --output: nothing would be kept, expected --output");
  if (options.resume && options.benchmark)
    throw Error(ExitCode::kUsage, "--resume with --benchmark: a benchmark keeps nothing, expected one of them");
  if (options.resume && !options.reference.empty() && options.output.extension() == ".jsonl")
    throw Error(
        ExitCode::kUsage,
        "--resume with --reference and a .jsonl output: finished samples are not compared again, expected .bin or "
        ".h5");
  if (options.results.positions == Positions::kNone && options.results.top_k > 0)
    throw Error(ExitCode::kUsage, "--top-logprobs with --logits none: no position has log-probabilities");
  if (!options.reference.empty() && (options.results.positions == Positions::kNone || options.results.top_k > 0))
    throw Error(ExitCode::kUsage, "--reference compares logits: expected --logits last or all, and no --top-logprobs");
  if (moves_gpu_memory(options.transport) && options.device == DeviceChoice::kCpu)
    throw Error(ExitCode::kUsage, fmt::format("--transport {} with --device cpu: it moves GPU memory, expected "
                                              "--transport mpi",
                                              transport_option(options.transport)));
}

std::optional<bool> continues_samples(const Options& options) {
  if (options.generation.sampling.max_new || options.command == Command::kPrompt || is_live(options.command))
    return true;
  if (options.results.score || options.results.hidden != Hidden::kNone) return false;
  const std::filesystem::path input = options.first_input();
  if (extension_of_lines(input) == ".jsonl" || input == "-" || is_pattern(input.extension())) return {};
  return false;
}

void check_kind(const Options& options, bool continues) {
  if (!options.output.empty()) {
    if (continues)
      check_completion_form(options.output);
    else
      check_output_form(options.output, options.results);
  }
  if (!continues) return;
  if (options.virtual_stages != 1)
    throw Error(ExitCode::kUsage,
                fmt::format("--virtual-stages {} applies to scoring, not to generation: a step waits for the one "
                            "before it, expected 1",
                            options.virtual_stages));
  if (!options.reference.empty())
    throw Error(ExitCode::kUsage,
                "--reference with --max-tokens: a reference has logits of whole samples, expected no --max-tokens");
  if (options.results.positions != Positions::kLast)
    throw Error(ExitCode::kUsage,
                "--logits with --max-tokens: a generation writes tokens, expected --top-logprobs at most");
  for (const std::string& stop : options.generation.sampling.stop)
    if (stop.empty() || !is_utf8(stop))
      throw Error(ExitCode::kUsage, "--stop: no text in UTF-8, expected one of at least a character");
}

void check_embeddings(const Options& options) {
  const std::string lines = " with lines of /v1/embeddings";
  const ResultKind& results = options.results;
  if (!options.output.empty() && options.output.extension() != ".jsonl")
    throw Error(ExitCode::kUsage,
                fmt::format("--output {}{}: expected a name ending in .jsonl", options.output.string(), lines));
  if (results.hidden == Hidden::kAll)
    throw Error(ExitCode::kUsage, "--hidden all" + lines + ": an answer has one for each input, expected last or mean");
  if (results.hidden == Hidden::kNone && (results.positions != Positions::kLast || results.top_k > 0))
    throw Error(ExitCode::kUsage, "--logits or --top-logprobs" + lines + ": answers are embeddings, expected neither");
  if (!options.reference.empty())
    throw Error(ExitCode::kUsage,
                "--reference" + lines + ": a reference has logits or scores, expected no --reference");
}

}  // namespace lfm2
