// The command line of lfm2_stage. It is parsed before MPI starts, so that --help and mistakes need no MPI.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/progress.h"
#include "kernels/ops.h"
#include "openai/sampling_overrides.h"
#include "stage/io/results.h"
#include "stage/model/hidden.h"

namespace CLI {
class App;
}

namespace lfm2 {

enum class DeviceChoice : uint8_t { kAuto, kCuda, kCpu };
enum class TransportChoice : uint8_t { kAuto, kNccl, kPeer, kMpi };
const char* transport_option(TransportChoice transport);   // the value of --transport
inline bool moves_gpu_memory(TransportChoice transport) {  // true for transports that exist only between GPUs
  return transport == TransportChoice::kPeer || transport == TransportChoice::kNccl;
}

// What the command line asks for.
enum class Command : uint8_t {
  kRun,     // scores or generates; the command without a word
  kPrompt,  // --prompt: generates from one text on standard output, instead of an input
  kChat,    // a conversation on standard input and output, instead of an input
  kServe,   // requests over HTTP, instead of an input
  kDoctor   // diagnoses the machine instead of running a job
};
// Whether requests arrive, as text, while the job runs.
constexpr bool is_live(Command command) { return command == Command::kChat || command == Command::kServe; }

// --max-tokens and the options that need it.
struct GenerationOptions {
  SamplingOverrides sampling;  // without max_new the job scores, unless its input asks for a generation
  bool ignore_eos = false;
  int64_t prompt_tokens = 0;   // --max-batched-tokens: tokens of prompts in a step; 0: chosen
  int64_t max_sequences = 0;   // --max-num-seqs; 0: chosen
  int64_t page_size = 256;     // positions in a page of the cache
  std::string draft = "none";  // --draft: see make_drafters()
  int64_t draft_length = 0;    // drafts of a sequence in a step; 0: chosen
  bool drafts() const { return draft != "none"; }
};

struct ServeOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000;                 // 0: any free one
  std::filesystem::path address_file;  // file to which the address is written; empty: none
  std::filesystem::path api_key_file;  // file of keys, one a line; empty: no key is needed
  std::vector<std::string> allowed_hosts, cors_origins;
  std::string root_path;     // "" or "/prefix"
  std::string model_name;    // empty: the last component of --weights
  int64_t max_queue = 1024;  // waiting requests
  int64_t max_body = int64_t{16} << 20;
  int64_t max_length = 0;             // tokens of a prompt and its answer; 0: the number of the model's positions
  Hidden embeddings = Hidden::kMean;  // the states that embeddings are made of: kMean or kLast
  bool prefix_cache = true;
  int64_t request_timeout = 600, drain_seconds = 30;  // seconds
  bool log_requests = false;
  std::filesystem::path batch_dir;              // folder of files and batches; empty: there are none
  int64_t max_batch_bytes = int64_t{10} << 30;  // of that folder
};

struct Options {
  Command command = Command::kRun;
  std::filesystem::path weights;
  // Read one after the other; none: random samples; "-" alone: lines of JSON from standard input.
  std::vector<std::filesystem::path> inputs;
  std::string prompt;               // kPrompt: the text
  ServeOptions serve;               // kServe
  std::filesystem::path tokenizer;  // folder of tokenizer and templates; empty: the shards' own
  std::string generation_config;    // a file, or "none"; empty: the model's own
  bool strict = false;              // a bad batch line ends the job
  std::filesystem::path output;     // empty: no results are written
  std::filesystem::path reference;
  std::filesystem::path report, trace;
  double tolerance = 1e-3;
  int64_t samples = 0;  // 0: all of the input; without an input the parser sets 1024
  int64_t length = 32;
  uint64_t seed = 0;
  bool seed_given = false;
  ResultKind results;
  int64_t stride = 0;  // --score: tokens between the starts of two windows of a text; 0: no windows
  GenerationOptions generation;
  std::optional<DType> dtype;        // ShardSet::choose_dtype
  std::optional<DType> cache_dtype;  // ShardSet::choose_cache_dtype
  std::filesystem::path save;        // kDoctor: where measured costs are written; empty: none are measured
  bool plain_fp32 = false;           // --fp32-math simt
  DeviceChoice device = DeviceChoice::kAuto;
  TransportChoice transport = TransportChoice::kAuto;
  int64_t micro_batch = 0;           // samples per micro-batch; 0: chosen
  int64_t virtual_stages = 1;        // pieces of layers on each rank
  std::vector<double> layer_counts;  // layers of each (virtual) stage; empty: equal, or balanced
  bool balance = false;
  int replicas = 1;
  std::string simd = "auto";  // instruction set of the CPU backend
  int threads = 0;            // threads of the CPU backend in each rank; 0: this rank's share of the processors
  bool resume = false;
  bool benchmark = false;
  int warmup = 1, repeat = 5;
  double timeout_seconds = 300;
  ProgressMode progress = ProgressMode::kAuto;
  bool quiet = false, verbose = false;

  // Its ending is the form of all inputs; "" if there is none.
  std::filesystem::path first_input() const { return inputs.empty() ? std::filesystem::path() : inputs.front(); }
};

// An option with an older spelling, which still works, is not in --help, and may be in journals of --resume.
struct RenamedOption {
  const char *name, *old;
};
inline constexpr RenamedOption kRenamedOptions[] = {
    {"--max-tokens", "--generate"},        {"--page-size", "--cache-page"}, {"--max-batched-tokens", "--prefill-chunk"},
    {"--max-num-seqs", "--max-sequences"}, {"--reference", "--answers"},    {"--fp32-math", "--fp32"}};

// For CLI11: an option's name and, as a hidden alias, its older spelling.
std::string spellings(const std::string& name);

inline constexpr int64_t kMaxCount = int64_t{1} << 31;  // the largest value of options that are counts

// Rules between options (option_rules.cpp). They are checked before MPI starts, except check_kind and check_embeddings,
// which depend on the first line of the input.

// Whether an option of this name was on the command line.
using OptionGiven = std::function<bool(const char* name)>;

// Whether a job generates, as far as the command line determines it. Nothing: the first line of input decides.
std::optional<bool> continues_samples(const Options& options);

// For a job that reads samples: sets the positions whose results --score and --hidden ask for. Error(kUsage) for
// results of two kinds, or for generation options without a generation.
void settle_results(const OptionGiven& given, Options& options);
// Error(kUsage) for options that contradict each other in any job.
void check_together(const Options& options);
// The same for a job that generates (`continues`), or for one that scores.
void check_kind(const Options& options, bool continues);
// The same for a job whose lines are /v1/embeddings'.
void check_embeddings(const Options& options);

// What main does next: runs the command with `options`, or prints `text` and ends with `exit_code`.
struct ParsedCommandLine {
  Options options;
  bool run = false;
  int exit_code = 0;
  std::string text;  // help or version for stdout (exit code 0), or one line for stderr
};

void add_serve_options(CLI::App& app, ServeOptions& options);                   // serve_options.cpp
void add_layout_options(CLI::App& app, Options& options);                       // machine_options.cpp
void add_machine_options(CLI::App& app, Options& options, std::string& dtype);  // machine_options.cpp
ParsedCommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace lfm2
