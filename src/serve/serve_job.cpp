#include "serve/serve_job.h"

#include <unistd.h>

#include <cstdio>

#include "base/checked_file.h"
#include "base/checksum.h"
#include "base/standard_streams.h"
#include "base/stop.h"
#include "base/words.h"
#include "openai/openai_request.h"
#include "serve/api.h"
#include "serve/listener.h"
#include "serve/log_writer.h"
#include "serve/open_files.h"
#include "stage/io/output_place.h"
#include "stage/version.h"

namespace lfm2::serve {

namespace {

constexpr int64_t kCpuSequences = 32, kCudaSequences = 256;  // at a time, unless --max-num-seqs says otherwise
constexpr int64_t kUsualLength = 4096;  // on CPUs, which share the host's memory: this amount for each sequence
constexpr int64_t kMaxEdits = 1280;     // of one request: biases, and tokens that end its text
constexpr uint64_t kMaxKeyBytes = 1 << 16;
constexpr int64_t kMaxConnections = 1024;
constexpr int64_t kOtherFiles = 128;  // that libraries may open while the server runs

// One key a line.
std::vector<std::string> read_keys(const std::filesystem::path& path) {
  if (path.empty()) return {};
  const std::string text = read_text_file(path, kMaxKeyBytes);
  std::vector<std::string> keys;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string& key = keys.emplace_back(text.substr(at, end - at));
    at = end + 1;
    key.erase(key.find_last_not_of(" \t\r") + 1);
    if (key.empty()) keys.pop_back();
  }
  if (keys.empty()) throw Error(ExitCode::kData, fmt::format("{}: no key, expected keys, one a line", path.string()));
  return keys;
}

void write_address(const std::filesystem::path& path, const http::Address& address) {
  if (path.empty()) return;
  const std::string text = fmt::format("http://{}\n", address.text());
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

// A file of an earlier run must not name a server that is gone.
void remove_address(const std::filesystem::path& path) {
  if (path.empty()) return;
  check_output_place(path);
  std::error_code ignored;  // a file that cannot be removed cannot be replaced later either, which is then an error
  if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
}

void print_line(const std::string& line) { say("lfm2_stage: " + line); }

size_t max_connections() {
  const int64_t files = raise_open_files(kMaxConnections + kOtherFiles), left = files - kOtherFiles;
  if (left < 1)
    throw Error(ExitCode::kUnavailable,
                fmt::format("{} more files may be open, expected more than {}: raise ulimit -n", files, kOtherFiles));
  if (left < kMaxConnections)
    print_line(fmt::format("at most {} connections at a time, as {} more files may be open (ulimit -n)", left, files));
  return static_cast<size_t>(std::min(left, kMaxConnections));
}

// The requests of clients, together with their server, which lives as long as the generation accepts requests.
class ServedRequests : public SharedRequests {
 public:
  ServedRequests(ApiSettings settings, Listener& listener, int replicas, const Capacity& each)
      : live_(settings.max_queue, static_cast<size_t>(replicas), each), api_(std::move(settings), live_, listener) {}

  RequestSource& replica(size_t number) override { return live_.replica(number); }
  void poll() override {
    if (!stop_requested() || live_.draining()) return;
    live_.drain();
    print_line(fmt::format("ending: {} requests run, {} wait", live_.running(), live_.waiting()));
  }

 private:
  LiveRequests live_;
  Api api_;
};

// A checksum of what the answers of a batch's lines depend on. Servers whose ranks are cut differently give the same.
std::string made_by(const JobFrame& job) {
  const RequestDefaults defaults = request_defaults(job);
  return checksum_of(fmt::format("{} {} {} {} {} {} {} {} ", job.shards->split_id(), job.text.checksum(), job.dtype(),
                                 job.cache_dtype(), job.machines, job.options.plain_fp32,
                                 static_cast<int>(job.options.serve.embeddings), kBits) +
                     to_bytes(defaults.of_ids) + to_bytes(defaults.of_text));
}

class Server : public Traffic {
 public:
  explicit Server(const JobFrame& job)
      : Traffic({.live = true,
                 .may_be_shortened = true,
                 .keeps_prefixes = job.options.serve.prefix_cache,
                 .max_top_logprobs = RequestLimits{}.max_top_logprobs,
                 .times_interval = 1}),
        job_(job) {}
  PromptSizes measure(int64_t slots) const override;
  void before_loading() override;
  std::unique_ptr<SharedRequests> open(const Capacity& capacity) override;
  std::function<bool()> stop_when() const override;
  void close() override;

 private:
  std::string model_name() const;
  int64_t max_length() const;  // of a prompt and its answer

  const JobFrame& job_;
  // From before_loading() on:
  std::unique_ptr<LogWriter> log_;  // null with --quiet
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<BatchStore> batches_;  // null without --batch-dir
};

// The number of sequences that fit, each of any length that the model allows.
PromptSizes Server::measure(int64_t slots) const {
  const int64_t length = max_length();
  const int64_t page_size = std::min(job_.options.generation.page_size, length);
  if (job_.options.generation.max_sequences == 0) slots = job_.machine.cuda ? kCudaSequences : kCpuSequences;
  const int64_t usual = job_.machine.cuda ? length : std::min(length, kUsualLength);
  PromptSizes sizes{.tokens = length,
                    .sequences = slots,
                    .new_tokens = length,
                    .longest = length,
                    .page_size = page_size,
                    .counts = true,
                    .edits = kMaxEdits,
                    .constrained = job_.text.model() != nullptr,
                    .pages = std::max(pages_for(length, page_size), slots * pages_for(usual, page_size)),
                    .prompt_log_probs = true,
                    .hidden = true};
  return sizes;
}

int64_t Server::max_length() const {
  const int64_t most = job_.config().max_positions, asked = job_.options.serve.max_length;
  return asked > 0 ? std::min(asked, most) : most;
}

std::string Server::model_name() const {
  if (!job_.options.serve.model_name.empty()) return job_.options.serve.model_name;
  const std::filesystem::path folder = std::filesystem::absolute(job_.options.weights).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename();
}

// The port is open while the weights are loaded, so /health reports that the server is starting.
void Server::before_loading() {
  const ServeOptions& serve = job_.options.serve;
  remove_address(serve.address_file);
  const std::vector<std::string> keys = read_keys(serve.api_key_file);
  if (!serve.batch_dir.empty()) {
    const auto bytes = static_cast<uint64_t>(serve.max_batch_bytes);
    batches_ = std::make_unique<BatchStore>(serve.batch_dir,
                                            BatchStore::Room{bytes, bytes / std::max<uint64_t>(1, keys.size())});
  }
  if (!job_.options.quiet) log_ = std::make_unique<LogWriter>(STDOUT_FILENO);
  listener_ =
      std::make_unique<Listener>(ListenerSettings{.host = serve.host,
                                                  .port = static_cast<uint16_t>(serve.port),
                                                  .api_keys = keys,
                                                  .allowed_hosts = serve.allowed_hosts,
                                                  .cors_origins = serve.cors_origins,
                                                  .root_path = serve.root_path,
                                                  .max_body_bytes = static_cast<size_t>(serve.max_body),
                                                  .request_timeout = std::chrono::seconds(serve.request_timeout),
                                                  .max_connections = max_connections()},
                                 log_.get());
  if (serve.api_key_file.empty() && !listener_->address().is_loopback())
    print_line(fmt::format("no --api-key-file: whoever reaches http://{} is answered", listener_->address().text()));
  print_line(fmt::format("loading; http://{} answers with 503 meanwhile", listener_->address().text()));
}

std::unique_ptr<SharedRequests> Server::open(const Capacity& capacity) {
  const ServeOptions& serve = job_.options.serve;
  const int64_t positions = capacity.positions;
  ApiSettings settings{.model_name = model_name(),
                       .version = kVersionText,
                       .max_queue = serve.max_queue,
                       .request_timeout = std::chrono::seconds(serve.request_timeout),
                       .defaults = request_defaults(job_, std::min(positions, max_length())),
                       .limits = {.max_requests = std::min(RequestLimits{}.max_requests, serve.max_queue),
                                  .max_prompt_tokens = std::min(positions, max_length()),
                                  .max_edits = kMaxEdits,
                                  .max_inputs = std::min(RequestLimits{}.max_inputs, serve.max_queue)},
                       .lines = {.vocab = job_.config().vocab,
                                 .max_positions = job_.config().max_positions,
                                 .hidden = job_.config().hidden,
                                 .text = job_.text.model(),
                                 .text_error = "the model has no tokenizer: expected token ids, as [1, 2, 3]",
                                 .constraints = job_.text.constraints(),
                                 .continues = true,
                                 .drafts = job_.options.generation.drafts()},
                       .embeddings = serve.embeddings,
                       .fresh_seeds = !job_.options.seed_given,
                       .log_requests = serve.log_requests};
  const Tokenizer* const tokenizer = job_.text.model() != nullptr ? &job_.text.model()->tokenizer() : nullptr;
  // Lines of batches leave half of the sequences to clients. Their answers are those of a job without a server. Lines
  // do not wait in the queue of clients, so it does not limit them.
  RequestLimits limits_of_lines = settings.limits;
  limits_of_lines.max_requests = RequestLimits{}.max_requests;
  limits_of_lines.max_inputs = RequestLimits{}.max_inputs;
  settings.batches = {
      .store = batches_.get(),
      .has_keys = !serve.api_key_file.empty(),
      .max_open = std::max<int64_t>(1, capacity.sequences * job_.options.replicas / 2),
      .made_by = made_by(job_),
      .context = {.lines = settings.lines,
                  .defaults = request_defaults(job_),
                  .limits = limits_of_lines,
                  .embeddings = serve.embeddings,
                  .facts = {.model = std::string(job_.config().type_name()),
                            .tokenizer = tokenizer,
                            .answer_tokens = tokenizer != nullptr ? answer_tokens(*tokenizer) : AnswerTokens{}}}};
  if (job_.text.model() == nullptr) print_line(job_.text.missing() + "; requests of token ids are answered");
  auto requests = std::make_unique<ServedRequests>(std::move(settings), *listener_, job_.options.replicas, capacity);
  if (stop_requested()) return requests;  // stopped while loading: announces no address
  write_address(serve.address_file, listener_->address());
  print_line(fmt::format("serving on http://{}", listener_->address().text()));
  return requests;
}

// Asked to end, the server lets its requests run for some time. Rank 0 decides for all.
std::function<bool()> Server::stop_when() const {
  if (job_.world.rank() != 0) return [] { return false; };
  using Clock = std::chrono::steady_clock;
  return [seconds = std::chrono::seconds(job_.options.serve.drain_seconds),
          asked = std::optional<Clock::time_point>()]() mutable {
    if (!stop_requested()) return false;
    if (!asked) asked = Clock::now();
    return Clock::now() - *asked > seconds;
  };
}

void Server::close() {
  listener_.reset();
  batches_.reset();
  log_.reset();  // writes its buffered lines, so that the end table follows them
}

}  // namespace

std::unique_ptr<Traffic> make_server(const JobFrame& job) { return std::make_unique<Server>(job); }

}  // namespace lfm2::serve
