// The command line of weights-tools: parses the options, calls one command, and turns errors into one line and an exit
// code.
#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/options/choice.h"
#include "base/options/help_formatter.h"
#include "base/options/number_option.h"
#include "base/options/option_words.h"
#include "base/standard_streams.h"
#include "base/stop.h"
#include "stage/model/model_config.h"
#include "weights-tools/commands/commands.h"

namespace lfm2 {

namespace {

constexpr int64_t kMax = int64_t{1} << 20;

constexpr const char* kDescription =
    "Prepares model weights for lfm2_stage: MODEL is model.bin, model.safetensors, a Hugging Face folder\n"
    "(config.json with one or many safetensors) or a folder of shards. Of a folder that holds shards beside another\n"
    "form, split and verify --against read the other form; verify, merge, inspect and plan read the shards.";

struct Program {
  SplitOptions split;
  SynthOptions synth;
  QuantizeOptions quantize;
  MergeOptions merge;
  VerifyOptions verify;
  InspectOptions inspect;
  PlanOptions plan;
  TokenizeOptions tokenize;
  Console console;
  std::function<void()> run;
};

void add_console(CLI::App& command, Console& console) {
  const std::vector<std::pair<std::string, ProgressMode>> modes = {
      {"auto", ProgressMode::kAuto}, {"on", ProgressMode::kOn}, {"off", ProgressMode::kOff}};
  begin_group(command, help_group::kDiagnosis);
  command.add_flag("-q,--quiet", console.quiet, "Say nothing but errors");
  command.add_option("--progress", console.progress, "auto (on a terminal), on or off")
      ->transform(one_of(modes))
      ->type_name("MODE")
      ->default_str("auto");
}

// Adds a command. Its options belong to the group help_group::kInput until another group begins.
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& about) {
  CLI::App* command = app.add_subcommand(name, about);
  command->get_help_ptr()->group(help_group::kDiagnosis);
  begin_group(*command, help_group::kInput);
  return command;
}

void add_stages(CLI::App& command, std::optional<int64_t>& stages, std::vector<int64_t>& layers) {
  begin_group(command, help_group::kLayout);
  auto* by_count = add_number(command, "--stages", stages, "Number of stages, as equal as can be", 1, kMax);
  by_count->default_str("4");
  add_numbers(command, "--layers", layers, "Layers of each stage, e.g. 7,6,6,5", 1, kMax)
      ->expected(1)  // so that a further word is the model
      ->excludes(by_count);
}

void add_config(CLI::App& command, std::optional<std::string>& config) {
  command.add_option("--config", config, "Configuration to use instead of the config.json beside the model")
      ->type_name("FILE");
}

void add_dtype(CLI::App& command, std::string& dtype, const std::string& about) {
  command.add_option("--dtype", dtype, about)->capture_default_str()->type_name("TYPE");
}

void add_adapters(CLI::App& command, std::vector<std::string>& adapters, const std::string& about) {
  command.add_option("--adapter", adapters, about)->allow_extra_args(false)->type_name("DIR");
}

// The options of what becomes fp8, and how.
void add_fp8(CLI::App& command, std::string& scheme, std::string& modules) {
  command.add_option("--scheme", scheme, "Scales of fp8: by channel (row), or by block of 128 x 128")
      ->check(CLI::IsMember({"channel", "block"}))
      ->capture_default_str()
      ->type_name("SCHEME");
  command
      .add_option("--modules", modules,
                  "What becomes fp8: experts (and dense feed-forwards), or all (attention and convolution projections, "
                  "too)")
      ->check(CLI::IsMember({"experts", "all"}))
      ->capture_default_str()
      ->type_name("MODULES");
}

void add_split(CLI::App& app, Program& program) {
  CLI::App* command = add_command(app, "split", "Cut a model into one HDF5 shard for each stage");
  SplitOptions& options = program.split;
  command->add_option("MODEL", options.model, "The model")->required();
  add_config(*command, options.config);
  add_adapters(*command, options.adapters,
               "LoRA adapter (PEFT's folder) to merge into the weights; may be repeated, merged in this order");
  begin_group(*command, help_group::kOutput);
  command->add_option("--out", options.out, "Folder for the shards")->required()->type_name("DIR");
  add_dtype(*command, options.dtype, "Type of the weights: keep (the model's own), fp32, bf16 or fp16");
  command->add_flag("--force", options.force, "Replace shards that are there");
  add_stages(*command, options.stages, options.layers);
  add_console(*command, program.console);
  command->callback([&program] { program.run = [&program] { run_split(program.split, program.console); }; });
}

void add_synth(CLI::App& app, Program& program) {
  CLI::App* command = add_command(app, "synth", "Make a model with random weights");
  SynthOptions& options = program.synth;
  command->add_option("--config", options.config, fmt::format("{} or a config.json", builtin_models()))
      ->required()
      ->type_name("FILE");
  add_number(*command, "--seed", options.seed, "Seed of the random weights", 0, std::numeric_limits<uint64_t>::max())
      ->capture_default_str();
  begin_group(*command, help_group::kOutput);
  add_dtype(*command, options.dtype, "Type of the weights: fp32, bf16, fp16 or fp8");
  add_fp8(*command, options.scheme, options.modules);
  command->add_option("--out", options.out, "A .bin or .safetensors file, or a folder")->required()->type_name("FILE");
  command->add_flag("--force", options.force, "Replace a model that is there");
  add_console(*command, program.console);
  command->callback([&program, command] {
    if (program.synth.dtype != "fp8" && command->count("--scheme") + command->count("--modules") > 0)
      throw Error(ExitCode::kUsage, "--scheme and --modules need --dtype fp8");
    program.run = [&program] { run_synth(program.synth, program.console); };
  });
}

void add_quantize(CLI::App& app, Program& program) {
  CLI::App* command = add_command(app, "quantize", "Make the weights of projections fp8, and show the error by weight");
  QuantizeOptions& options = program.quantize;
  command->add_option("MODEL", options.model, "The model")->required();
  add_config(*command, options.config);
  begin_group(*command, help_group::kOutput);
  command->add_option("--to", options.to, "Type of the weights: fp8")
      ->required()
      ->check(CLI::IsMember({"fp8"}))
      ->type_name("TYPE");
  add_fp8(*command, options.scheme, options.modules);
  command->add_option("--out", options.out, "A .safetensors file, or a folder")->required()->type_name("FILE");
  command->add_flag("--force", options.force, "Replace a model that is there");
  add_console(*command, program.console);
  command->callback([&program] { program.run = [&program] { run_quantize(program.quantize, program.console); }; });
}

void add_merge(CLI::App& app, Program& program) {
  CLI::App* command = add_command(app, "merge", "Put shards together again");
  MergeOptions& options = program.merge;
  command->add_option("DIR", options.shards, "Folder of the shards")->required();
  begin_group(*command, help_group::kOutput);
  command->add_option("--out", options.out, "A .bin or .safetensors file, or a folder")->required()->type_name("FILE");
  command->add_flag("--force", options.force, "Replace a model that is there");
  add_console(*command, program.console);
  command->callback([&program] { program.run = [&program] { run_merge(program.merge, program.console); }; });
}

void add_verify(CLI::App& app, Program& program) {
  CLI::App* command = add_command(app, "verify", "Check every checksum, and with --against every element");
  VerifyOptions& options = program.verify;
  command->add_option("DIR", options.model, "Folder of the shards; with --untrusted any model")->required();
  command->add_option("--against", options.against, "The model that the shards must equal")->type_name("MODEL");
  command->add_option("--config", options.config, "Configuration of the model of --against")->type_name("FILE");
  add_adapters(*command, options.adapters, "LoRA adapter merged into the model of --against; may be repeated");
  command->add_flag("--untrusted", options.untrusted,
                    "For files from strangers: read them in a child process with limits");
  add_console(*command, program.console);
  command->callback([&program] { program.run = [&program] { run_verify(program.verify, program.console); }; });
}

void add_inspect(CLI::App& app, Program& program) {
  CLI::App* command = add_command(app, "inspect", "Show configuration, stages, layers, tensors and bytes");
  InspectOptions& options = program.inspect;
  command->add_option("MODEL", options.model, "The model, a folder of shards, or the folder of a DSpark drafter")
      ->required();
  add_config(*command, options.config);
  begin_group(*command, help_group::kOutput);
  command->add_flag("--json", options.json, "Print JSON, for programs");
  command->callback([&program] { program.run = [&program] { run_inspect(program.inspect); }; });
}

// Of a job on a machine whose costs are known.
void add_machine_plan(CLI::App& command, PlanOptions& options) {
  begin_group(command, help_group::kMachine);
  CLI::Option* machine =
      command
          .add_option("--machine", options.machine,
                      "Costs that lfm2_stage doctor --save measured: also predict the job's time, and its best layout")
          ->type_name("FILE.json")
          ->excludes("--stages", "--draft");
  CLI::Option* ranks = add_numbers(command, "--ranks", options.ranks,
                                   "Ranks of the job; several numbers print the best of each", 1, 65536)
                           ->needs(machine);
  machine->needs(ranks);
  begin_group(command, help_group::kLayout);
  add_number(command, "--replicas", options.replicas, "Pipelines side by side; ranks = replicas x stages", 1, 65536)
      ->needs(machine);
  add_number(command, "--virtual-stages", options.virtual_stages, "Pieces of layers of each rank; 0: chosen", 0, kMax)
      ->needs(machine);
  command.add_flag("--balance", options.balance, "Layers cut so that the stages take equally long")
      ->needs(machine)
      ->excludes("--layers");
  begin_group(command, help_group::kInput);
  add_number(command, "--samples", options.samples, "Samples, or prompts, of the job (1024)", 1, kMax)->needs(machine);
  command.add_option("--logits", options.logits, "Positions with results: last, all or none")
      ->check(CLI::IsMember({"last", "all", "none"}))
      ->needs(machine);
  command.add_flag("--score", options.score, "Log-probabilities of all tokens instead of logits")
      ->needs(machine)
      ->excludes("--logits");
  begin_group(command, help_group::kGeneration);
  CLI::Option* tokens =
      add_number(command, "--max-tokens", options.max_tokens, "New tokens of each prompt, instead of scoring", 1, kMax)
          ->needs(machine)
          ->excludes("--logits", "--score", "--virtual-stages");
  add_number(command, "--max-num-seqs", options.max_sequences, "Sequences generated at a time; 0: chosen", 0, kMax)
      ->needs(tokens);
  add_number(command, "--max-batched-tokens", options.prompt_tokens, "Prompt tokens in one step; 0: chosen", 0, kMax)
      ->needs(tokens);
  add_number(command, "--page-size", options.page_size, "Positions in one page of the KV cache", 1, 1 << 20)
      ->needs(tokens);
}

void add_plan(CLI::App& app, Program& program) {
  CLI::App* command = add_command(app, "plan", "Memory and cost of each stage, without a GPU");
  PlanOptions& options = program.plan;
  command
      ->add_option("MODEL", options.model,
                   fmt::format("A model, a folder of shards, a config.json, or {}", builtin_models()))
      ->required();
  add_config(*command, options.config);
  command->add_option("--draft", options.draft, "Folder of a DSpark drafter, which the last stage holds, too")
      ->type_name("DIR");
  add_number(*command, "--length", options.length, "Tokens in one sample", 1, kMax)->capture_default_str();
  begin_group(*command, help_group::kOutput);
  command->add_flag("--json", options.json, "Print JSON, for programs");
  add_stages(*command, options.stages, options.layers);
  add_number(*command, "--micro-batch", options.micro_batch, "Samples in one micro-batch; 0: enough for 2048 tokens", 0,
             kMax)
      ->capture_default_str();
  add_machine_plan(*command, options);
  begin_group(*command, help_group::kMachine);
  command->add_option("--gpu-memory", options.gpu_memory, "Report whether each stage fits, e.g. 80GB")
      ->type_name("BYTES")
      ->excludes("--machine");
  add_dtype(*command, options.dtype, "Type of the weights on the GPU: keep (the model's own), fp32, bf16 or fp16");
  command->callback([&program] { program.run = [&program] { run_plan(program.plan); }; });
}

void add_tokenize(CLI::App& app, Program& program) {
  CLI::App* command =
      add_command(app, "tokenize", "Token ids of text: each line of stdin becomes a JSON list of ids on stdout");
  TokenizeOptions& options = program.tokenize;
  command->add_option("FOLDER", options.tokenizer, "A folder with a tokenizer.json, or that file")->required();
  command->add_flag("--decode", options.decode, "The other way: each line is a JSON list of ids and becomes its text");
  command->add_flag("--no-special", options.no_special,
                    "Add no tokens around the text, such as its beginning; with --decode, leave special tokens out");
  begin_group(*command, help_group::kOutput);
  command->add_flag("--json", options.json, "Texts are JSON strings, so that they may have line breaks");
  auto* chat = command->add_flag(
      "--chat", options.chat,
      "Each line is {\"messages\": [...], \"tools\": [...]}, optionally with \"chat_template_kwargs\", "
      "which the chat template turns into text up to the assistant's answer");
  chat->excludes("--decode", "--no-special", "--json");
  command->add_flag("--render", options.render, "That text as a JSON string instead of its ids")->needs(chat);
  begin_group(*command, help_group::kMachine);
  add_number(*command, "--threads", options.threads, "Threads; 0: one for each core", 0, 1024)->capture_default_str();
  command->callback([&program] { program.run = [&program] { run_tokenize(program.tokenize); }; });
}

int report(ExitCode code, const std::string& message) {
  say("weights-tools: " + message);
  return static_cast<int>(code);
}

int run(int argc, char** argv) {
  Program program;
  CLI::App app(kDescription, "weights-tools");
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_help_ptr()->group(help_group::kDiagnosis);
  app.set_version_flag("--version", "weights-tools " LFM2_VERSION)->group(help_group::kDiagnosis);
  app.require_subcommand(1);
  add_split(app, program);
  add_synth(app, program);
  add_quantize(app, program);
  add_merge(app, program);
  add_verify(app, program);
  add_inspect(app, program);
  add_plan(app, program);
  add_tokenize(app, program);
  try {
    for (const CLI::App* command :
         app.get_subcommands([&](const CLI::App* one) { return argc > 1 && one->check_name(argv[1]); }))
      check_option_words(*command, argc - 1, argv + 1);
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help and --version arrive here
    return app.exit(asked);
  } catch (const CLI::Error& error) {
    std::string message = error.what();
    message.resize(std::min(message.find('\n'), message.size()));
    return report(ExitCode::kUsage, printable(message) + " (see --help)");
  }
  catch_interrupts();
  program.run();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return report(ExitCode::kIo, "stdout cannot be written");
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

}  // namespace lfm2

int main(int argc, char** argv) {
  lfm2::ignore_file_size_signal();
  try {
    return lfm2::run(argc, argv);
  } catch (const lfm2::Error& error) {
    const bool bug = error.code() == lfm2::ExitCode::kSoftware;
    return lfm2::report(error.code(), bug ? error.what() + (" at " + error.where()) : error.what());
  } catch (const std::bad_alloc&) {
    return lfm2::report(lfm2::ExitCode::kUnavailable, "not enough memory");
  } catch (const std::exception& error) {
    return lfm2::report(lfm2::ExitCode::kSoftware, error.what());
  }
}
