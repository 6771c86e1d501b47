// Declares the options to CLI11.
#include "stage/job/options.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <memory>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "base/options/choice.h"
#include "base/options/help_formatter.h"
#include "base/options/number_option.h"
#include "base/options/option_words.h"
#include "stage/generation/make_drafters.h"
#include "stage/io/inputs/input_names.h"
#include "stage/job/named_files.h"
#include "stage/version.h"

namespace lfm2 {

namespace {

CLI::Option* add_weights(CLI::App& app, Options& options) {
  begin_group(app, help_group::kInput);
  return app.add_option("--weights", options.weights, "Folder of shards made by weights-tools split")
      ->envname("LFM2_WEIGHTS")
      ->type_name("DIR");
}

void add_sample_sizes(CLI::App& app, Options& options) {
  begin_group(app, help_group::kInput);
  add_number(app, "--samples", options.samples, "Number of random samples (1024), or only the first N of the input", 1,
             kMaxCount);
  add_setting(app, "--length", options.length, "Tokens in each random sample", 1, kMaxCount);
}

void add_text_options(CLI::App& app, Options& options) {
  begin_group(app, help_group::kInput);
  app.add_option("--tokenizer", options.tokenizer,
                 "Folder of tokenizer.json and chat template, for shards that were split without them")
      ->type_name("DIR");
  begin_group(app, help_group::kGeneration);
  app.add_option(
         "--generation-config", options.generation_config,
         "How prompts and messages are continued unless options or lines say otherwise: a file, or none; default "
         "the model's own")
      ->type_name("FILE");
}

CLI::Option* add_score(CLI::App& app, Options& options) {
  begin_group(app, help_group::kOutput);
  return app.add_flag("--score", options.results.score,
                      "Log-probability of every token of a sample after the first, or of its target, instead of "
                      "logits; and perplexity");
}

void add_hidden(CLI::App& app, Options& options) {
  begin_group(app, help_group::kOutput);
  auto* hidden =
      app.add_option("--hidden", options.results.hidden,
                     "Hidden states after the final norm instead of logits: of the last position, the mean "
                     "over all positions, or of all")
          ->transform(one_of<Hidden>({{"last", Hidden::kLast}, {"mean", Hidden::kMean}, {"all", Hidden::kAll}}))
          ->type_name("WHICH");
  add_number(app, "--after-layer", options.results.after_layer,
             "With --hidden: the residual stream after the first N layers; only these are loaded", 1, kMaxCount)
      ->type_name("N")
      ->needs(hidden);
}

void add_seed(CLI::App& app, Options& options) {
  begin_group(app, help_group::kGeneration);
  const bool serves = options.command == Command::kServe;
  CLI::Option* seed = add_number(app, "--seed", options.seed,
                                 serves ? "Seed of requests without one; default: each draws its own"
                                 : is_live(options.command) ? "Seed of drawing tokens"
                                                            : "Seed of the random samples, and of drawing tokens",
                                 0, std::numeric_limits<uint64_t>::max());
  if (!serves) seed->capture_default_str();
}

CLI::Option* add_output(CLI::App& app, Options& options) {
  begin_group(app, help_group::kOutput);
  return app
      .add_option("--output", options.output,
                  "Results: .bin (last-position logits), .h5 or .jsonl; written by the last rank")
      ->type_name("FILE");
}

void add_sample_options(CLI::App& app, Options& options) {
  add_weights(app, options)->required();
  auto* input =
      app.add_option("--input", options.inputs,
                     "Samples: .bin, .h5, .npy, .jsonl or .txt (a line a sample; also .gz and .zst of these), or - for "
                     "lines of JSON from standard input; without it random ones. Several files or patterns such as "
                     "'part-*.jsonl' are read one after the other")
          ->type_name("FILE...");
  app.add_option_function<std::string>(
         "--prompt",
         [&options](const std::string& text) {
           std::tie(options.command, options.prompt) = std::pair(Command::kPrompt, text);
         },
         "Continue this text on standard output; 256 tokens unless --max-tokens says otherwise")
      ->type_name("TEXT")
      ->excludes(input);
  add_text_options(app, options);
  begin_group(app, help_group::kInput);
  app.add_flag("--strict", options.strict, "A bad batch line ends the job instead of being answered with an error");
  add_sample_sizes(app, options);
  add_seed(app, options);
  add_output(app, options);
  app.add_flag("--resume", options.resume,
               "Continue an --output that was interrupted: finished samples are kept and skipped");
  app.add_option("--logits", options.results.positions,
                 "Positions whose logits are computed and written: last, all or none")
      ->transform(one_of<Positions>({{"last", Positions::kLast}, {"all", Positions::kAll}, {"none", Positions::kNone}}))
      ->type_name("WHICH")
      ->default_str("last");
  add_number(app, "--top-logprobs", options.results.top_k, "Only the K best log-probabilities of each position", 1,
             kMaxCount)
      ->type_name("K");
  auto* score = add_score(app, options);
  add_number(app, "--stride", options.stride,
             "With --score: texts may be longer than the model, and are scored in windows that begin N tokens apart", 1,
             kMaxCount)
      ->type_name("N")
      ->needs(score);
  add_hidden(app, options);
  app.add_option(
         spellings("--reference"), options.reference,
         "Reference logits (.bin or .h5), or with --score scores (.h5), to compare with: VALID or INVALID (exit "
         "code 1)")
      ->type_name("FILE");
  add_setting(app, "--tolerance", options.tolerance, "Largest difference that is VALID", 0,
              std::numeric_limits<double>::max());
}

// Adds the option of a sampling field, with the field's name, range and default. Integers are not negative.
template <class T>
void add_rule(CLI::App& app, SamplingOverrides& sampling, std::optional<T> SamplingOverrides::*said,
              const std::string& description) {
  for_each_sampling_field([&](const auto& field) {
    if constexpr (std::is_same_v<decltype(field.said), std::optional<T> SamplingOverrides::*>) {
      if (field.said != said) return;
      const auto least = std::integral<T> ? std::max<decltype(field.least)>(0, field.least) : field.least;
      add_number(app, option_of(field.key), sampling.*said, description, static_cast<T>(least),
                 static_cast<T>(field.most))
          ->default_str(fmt::format("{}", SamplingRule().*field.rule));
    }
  });
}

void add_generation_options(CLI::App& app, Options& options) {
  GenerationOptions& generation = options.generation;
  SamplingOverrides& sampling = generation.sampling;
  begin_group(app, help_group::kGeneration);
  add_number(app, spellings("--max-tokens"), sampling.max_new,
             is_live(options.command) ? "Tokens of an answer at most, unless its request says otherwise"
                                      : "Continue each sample by up to N tokens instead of scoring it",
             1, kMaxCount)
      ->type_name("N");
  add_rule(app, sampling, &SamplingOverrides::temperature, "0: always the top-1 token; above: draw");
  add_rule(app, sampling, &SamplingOverrides::top_k, "Draw from the N most probable tokens only; 0: from all");
  add_rule(app, sampling, &SamplingOverrides::top_p,
           "Draw from the most probable tokens that together have probability X");
  add_rule(app, sampling, &SamplingOverrides::min_p,
           "Draw from the tokens that are at least X times as likely as the top-1 token");
  add_rule(app, sampling, &SamplingOverrides::repetition_penalty,
           "Divide the logits of tokens that stood before by X, and multiply negative ones; 1: none");
  add_rule(app, sampling, &SamplingOverrides::presence_penalty,
           "Lower the logits of tokens that were generated before by X");
  add_rule(app, sampling, &SamplingOverrides::frequency_penalty,
           "Lower the logits of tokens by X for each time that they were generated before");
  add_rule(app, sampling, &SamplingOverrides::min_tokens, "No text ends before it has N tokens");
  add_numbers(app, "--eos", sampling.eos_tokens, "Token ids that end a text; default: the model's own", 0,
              kMaxCount - 1)
      ->type_name("ID,ID,...");
  app.add_option("--stop", sampling.stop, "End each text before this one; may be given several times")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  if (!is_live(options.command))
    app.add_flag("--ignore-eos", generation.ignore_eos, "No token ends a text: all become equally long")
        ->excludes("--eos");
  if (options.command != Command::kChat)
    add_setting(app, spellings("--max-num-seqs"), generation.max_sequences, "Sequences generated at a time; 0: chosen",
                0, kMaxCount);
  add_setting(app, spellings("--max-batched-tokens"), generation.prompt_tokens,
              "Tokens of prompts in one step; 0: chosen", 0, kMaxCount);
  add_setting(app, spellings("--page-size"), generation.page_size, "Positions in one page of the KV cache", 1, 1 << 20);
  app.add_option("--draft", generation.draft,
                 "Guess next tokens and verify several in one step, with the same results: none; ngram, from what "
                 "followed the same tokens earlier in the text; or the folder of a DSpark drafter of the model")
      ->type_name("WHAT")
      ->capture_default_str();
  add_setting(app, "--draft-length", generation.draft_length,
              "With --draft: tokens to guess in one step; 0: chosen by how many were right and by step times", 0,
              kMaxDrafts);
}

// doctor has the options that decide which rank computes what, and on which device.
void add_doctor_options(CLI::App& app, Options& options, std::string& dtype) {
  constexpr double kDoctorTimeout = 30;
  options.timeout_seconds = kDoctorTimeout;
  CLI::Option* weights = add_weights(app, options)->description("Folder of shards whose memory is planned");
  add_sample_sizes(app, options);
  add_score(app, options)
      ->description("The job's results are scores of tokens, for which more rows of logits are held");
  add_hidden(app, options);
  app.add_option("--save", options.save,
                 "Also measure what the model's blocks, the links and steps of a generation cost, for weights-tools "
                 "plan --machine; takes minutes")
      ->type_name("FILE.json")
      ->needs(weights)
      ->excludes("--hidden");
  add_output(app, options)->description("Where a job would write: its locks, room and limits are looked at");
  add_layout_options(app, options);
  add_machine_options(app, options, dtype);
  begin_group(app, help_group::kDiagnosis);
  app.add_flag("-v,--verbose", options.verbose, "Say where errors were thrown");
}

void add_report_options(CLI::App& app, Options& options) {
  begin_group(app, help_group::kDiagnosis);
  auto* benchmark = app.add_flag("--benchmark", options.benchmark, "Repeat the job and report median and spread");
  add_setting(app, "--warmup", options.warmup, "Runs before those that count", 0, 1000000)->needs(benchmark);
  add_setting(app, "--repeat", options.repeat, "Runs that count", 1, 1000000)->needs(benchmark);
  app.add_option("--report", options.report, "Everything that the end table shows, as JSON")->type_name("FILE.json");
  app.add_option("--trace", options.trace, "A timeline of all ranks for Perfetto: what ran when, by micro-batch")
      ->type_name("FILE.json");
  app.add_option("--progress", options.progress, "Progress bar on stderr: auto (on a terminal), on or off")
      ->transform(
          one_of<ProgressMode>({{"auto", ProgressMode::kAuto}, {"on", ProgressMode::kOn}, {"off", ProgressMode::kOff}}))
      ->type_name("MODE")
      ->default_str("auto");
  auto* quiet = app.add_flag("-q,--quiet", options.quiet, "No end table");
  app.add_flag("-v,--verbose", options.verbose, "Report what each rank does, and where errors were thrown")
      ->excludes(quiet);
}

void add_job_options(CLI::App& app, Options& options, std::string& dtype) {
  add_sample_options(app, options);
  add_generation_options(app, options);
  add_layout_options(app, options);
  add_machine_options(app, options, dtype);
  add_report_options(app, options);
}

// Of a conversation and of a server.
void add_live_options(CLI::App& app, Options& options, std::string& dtype) {
  constexpr int64_t kLivePage = 64;  // as fast as larger ones, and short prompts have whole pages for the prefix cache
  options.generation.page_size = kLivePage;
  add_weights(app, options)->required();
  if (options.command == Command::kServe) {
    begin_group(app, help_group::kServer);
    add_serve_options(app, options.serve);
    begin_group(app, help_group::kDiagnosis);
    auto* quiet = app.add_flag("-q,--quiet", options.quiet, "No line for each request on standard output");
    app.get_option("--log-requests")->excludes(quiet);
  }
  add_text_options(app, options);
  add_seed(app, options);
  add_generation_options(app, options);
  add_layout_options(app, options);
  add_machine_options(app, options, dtype);
  begin_group(app, help_group::kDiagnosis);
  app.add_flag("-v,--verbose", options.verbose, "Report what each rank does, and where errors were thrown");
}

struct CommandWords {
  Command command;
  const char *name, *about, *footer;
  void (*add_options)(CLI::App& app, Options& options, std::string& dtype);
};
constexpr const char* kProgram = "lfm2_stage";
constexpr std::array<CommandWords, 4> kCommands = {
    {{Command::kRun, kProgram,
      "Scores and continues samples with LFM2 models over a pipeline of MPI ranks.\n"
      "Example: mpirun -np 4 lfm2_stage --weights shards/",
      "Other commands (--help of each): lfm2_stage doctor looks at the machine, lfm2_stage chat is a conversation in\n"
      "the terminal, lfm2_stage serve is a server.\n"
      "Exit codes: 0 done; 1 validation failed; 64 usage; 65 bad input or weights; 66 missing file; 69 no GPU, ranks "
      "or\nmemory; 70 bug or GPU fault; 73 output cannot be created; 74 I/O error. 75 stopped by USR1, USR2, TERM or "
      "INT:\n--resume continues; 76 a rank was lost or timed out.",
      add_job_options},
     {Command::kDoctor, "doctor",
      "Looks at the machine that a run would use, and reports what is wrong and what to do.\n"
      "Example: mpirun -np 4 lfm2_stage doctor --weights shards/",
      "Exit codes: 0 nothing would stop a run; 64 usage; 69 something would; 76 a rank was lost or timed out.",
      add_doctor_options},
     {Command::kChat, "chat", "A conversation in the terminal.\nExample: launch/run.sh -n 4 chat --weights shards/",
      "A line is a message. /clear begins again, /exit or the end of the input ends. Ctrl-C ends the answer, and "
      "twice\n"
      "the program: under mpirun by way of launch/run.sh, under srun with -X.",
      add_live_options},
     {Command::kServe, "serve",
      "Answers OpenAI's clients over HTTP.\nExample: mpirun -np 4 lfm2_stage serve --weights shards/ --port 8000",
      "USR1 and TERM end the server once its running requests have ended. docs/serving.md says more.",
      add_live_options}}};

}  // namespace

std::string spellings(const std::string& name) {
  for (const RenamedOption& one : kRenamedOptions)
    if (name == one.name) return name + ',' + one.old;
  return name;
}

ParsedCommandLine parse_command_line(int argc, const char* const* argv) {
  ParsedCommandLine parsed;
  Options& options = parsed.options;
  std::string dtype = "auto";
  CLI::App program;
  program.formatter(std::make_shared<HelpFormatter>());
  for (const CommandWords& one : kCommands) program.add_subcommand(one.name, one.about)->footer(one.footer);
  const auto known = std::find_if(kCommands.begin(), kCommands.end(), [&](const CommandWords& one) {
    return argc > 1 && std::string_view(argv[1]) == one.name;
  });
  const bool named = known != kCommands.end();
  const CommandWords& command = named ? *known : kCommands.front();
  CLI::App& app = *program.get_subcommand(command.name);
  app.get_help_ptr()->group(help_group::kDiagnosis);
  app.set_version_flag("--version", kVersionText)->group(help_group::kDiagnosis);
  options.command = command.command;
  command.add_options(app, options, dtype);  // only of this command; other commands also read LFM2_WEIGHTS
  std::vector<std::string> words(std::make_reverse_iterator(argv + argc), std::make_reverse_iterator(argv + 1));
  if (!named) words.emplace_back(kProgram);
  try {
    check_option_words(app, named ? argc - 1 : argc, named ? argv + 1 : argv);
    program.require_subcommand(1)->parse(std::move(words));
    if (dtype != "auto") options.dtype = dtype == name(DType::kF8) ? DType::kF8 : parse_dtype(dtype);
    const bool prompted = options.command == Command::kPrompt;
    if (prompted || options.command == Command::kChat)
      options.quiet = !options.verbose;  // standard output is for the text
    if (prompted || is_live(options.command))
      options.samples = 1;
    else if (options.samples == 0 && options.inputs.empty())
      options.samples = 1024;
    options.inputs = named_inputs(options.inputs);
    if (prompted || options.command == Command::kRun)
      settle_results([&](const char* option) { return app.count(option) > 0; }, options);
    const bool is_job = options.command != Command::kDoctor;
    options.seed_given = is_job && app.count("--seed") > 0;
    options.generation.sampling.seed = options.seed;
    check_together(options);
    if (is_job) check_files(options);
    parsed.run = true;
  } catch (const CLI::CallForHelp&) {
    parsed.text = app.help(&command == &kCommands.front() ? "" : kProgram);
  } catch (const CLI::CallForVersion&) {
    parsed.text = std::string(kVersionText) + "\n";
  } catch (const CLI::ParseError& error) {
    parsed.exit_code = static_cast<int>(ExitCode::kUsage);
    parsed.text = fmt::format("lfm2_stage: {} (see --help)\n", printable(error.what()));
  } catch (const Error& error) {
    parsed.exit_code = static_cast<int>(error.code());
    parsed.text = fmt::format("lfm2_stage: {}\n", error.what());
  }
  return parsed;
}

}  // namespace lfm2
