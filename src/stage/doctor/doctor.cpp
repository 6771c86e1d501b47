// Facts first, then trials, so that a trial that fails or hangs cannot hide the facts.
#include "stage/doctor/doctor.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <span>

#include "base/bytes_text.h"
#include "base/checked_file.h"
#include "base/standard_streams.h"
#include "stage/doctor/measure_machine.h"
#include "stage/version.h"

namespace lfm2 {

namespace {

// The size of a transfer in the link measurement if no shards determine a micro-batch's size, and the largest size.
constexpr int64_t kTransferTokens = 512, kTransferRowBytes = 4096;
constexpr int64_t kMaxTransferBytes = int64_t{16} << 20;

// The limit of --save, in timeouts.
constexpr double kSaveTimeouts = 60;

// How long a rank whose trial failed waits for other ranks, whose trials may have to time out first; 0: forever.
double trial_timeout(const Options& options) {
  if (options.timeout_seconds == 0) return 0;
  return 3 * options.timeout_seconds + (options.device == DeviceChoice::kCpu ? 0 : kStartTimeout);
}

std::string limit_text(uint64_t limit, bool bytes) {
  if (limit == std::numeric_limits<uint64_t>::max()) return "no limit";
  return bytes ? bytes_text(limit) : fmt::format("{}", limit);
}

std::string versions_line(const RankFacts& first) {
  std::string text = first.versions.at("lfm2_stage");
  for (const auto& [name, version] : first.versions) {
    if (name == "lfm2_stage") continue;
    // Most MPI libraries name themselves in the text of their version, so the name is not repeated before it.
    text += fmt::format("; {}{}", version.find(name) == std::string::npos ? name + " " : "", version);
    if (name == "MPI") text += first.mpi_staging_reason.empty() ? " (CUDA-aware)" : " (not CUDA-aware)";
  }
  if (!first.versions.contains("NCCL")) text += "; built without CUDA";
  return text + "\n";
}

std::string rank_rows(const Examination& e) {
  size_t width = 7;  // of the layers
  for (const RankFacts& rank : e.ranks) width = std::max(width, rank.layers.size());
  std::string text = fmt::format("\n{:>4}  {:>{}}  {:>10}  {:>11}  {:>10}  host\n", "rank", "layers", width, "weights",
                                 "activations", "processors");
  for (const RankFacts& rank : e.ranks) {
    const bool planned = !rank.layers.empty();
    text += fmt::format("{:>4}  {:>{}}  {:>10}  {:>11}  {:>10}  {}\n", rank.rank, planned ? rank.layers : "-", width,
                        planned ? bytes_text(rank.weight_bytes) : "-",
                        planned ? bytes_text(rank.activation_bytes) : "-", rank.processors, rank.host);
  }
  if (const RankFacts& first = e.ranks.front(); !first.layers.empty())
    text += fmt::format("planned for scoring {} samples of {} tokens in {}, micro-batches of up to {} tokens\n",
                        e.options.samples, e.options.length, first.dtype, first.tokens);
  return text;
}

std::string gpu_rows(const Examination& e) {
  std::string text;
  for (const RankFacts& rank : e.ranks) {
    if (rank.visible_gpus == 0) continue;
    if (text.empty())
      text = fmt::format("\n{:>4}  {:>7}  {:>10}  {:>10}  {:<14}  {}\n", "rank", "visible", "free", "memory", "bus",
                         "GPU");
    text += fmt::format("{:>4}  {:>7}  {:>10}  {:>10}  {:<14}  {}, {}\n", rank.rank, rank.visible_gpus,
                        bytes_text(rank.free_gpu_bytes), bytes_text(rank.all_gpu_bytes), rank.gpu_bus, rank.gpu,
                        rank.gpu_uuid);
  }
  return text;
}

std::string host_rows(const Examination& e) {
  std::string text = fmt::format("\n{:>5}  {:>10}  {:>11}  {:>13}  {:>13}  {:>10}  {:>9}  host\n", "ranks",
                                 "processors", "free memory", "/dev/shm", "of it free", "lockable", "open files");
  for (const std::string& host : e.hosts()) {
    const std::vector<size_t> ranks = e.ranks_of(host);
    const RankFacts& first = e.ranks[ranks.front()];
    text +=
        fmt::format("{:>5}  {:>10}  {:>11}  {:>13}  {:>13}  {:>10}  {:>10}  {}\n", ranks.size(), first.all_processors,
                    bytes_text(first.free_memory_bytes), bytes_text(first.shm_bytes), bytes_text(first.free_shm_bytes),
                    limit_text(first.lockable_bytes, true), limit_text(first.open_files, false), host);
  }
  return text;
}

std::string output_row(const Examination& e) {
  const RankFacts* writer = e.writer();
  if (writer == nullptr) return "";
  const OutputPlace& place = writer->output;
  return fmt::format("\n{} by rank {} on {}: {} free, {}, largest file {}, {}\n", e.options.output.string(),
                     writer->rank, writer->host, bytes_text(place.free_bytes),
                     place.files > 0 ? fmt::format("{} files", place.free_files) : "files not counted",
                     limit_text(place.largest_file_bytes, true), place.has_locks ? "locks" : "no locks");
}

std::string device_rows(const Examination& e) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (size_t rank = 0; rank < e.trials.size(); ++rank)
    if (const std::string& device = e.trials[rank].device; !device.empty())
      ranks_of[device].push_back(static_cast<int>(rank));
  std::string text = "\n";
  for (const auto& [device, ranks] : ranks_of)
    text += fmt::format("rank{} {}: {}\n", ranks.size() == 1 ? "" : "s", processor_list(ranks), device);
  return text;
}

std::string link_rows(const Examination& e) {
  std::string text;
  for (size_t rank = 0; rank < e.trials.size(); ++rank) {
    const TrialFacts& trial = e.trials[rank];
    if (trial.bytes_per_second == 0) continue;
    if (text.empty())
      text = fmt::format("\n{:>10}  {:<16}  {:>9}  {:>20}  {}\n", "link", "way", "GB/s", "there and back, us",
                         "transport");
    text +=
        fmt::format("{:>10}  {:<16}  {:>9.3f}  {:>20.1f}  {}\n", fmt::format("{} to {}", rank, rank + 1),
                    e.way_to_next(rank), trial.bytes_per_second / 1e9, trial.round_trip_seconds * 1e6, trial.transport);
  }
  return text;
}

std::string finding_rows(const std::vector<Finding>& findings) {
  if (findings.empty()) return "\nnothing looks wrong\n";
  std::string text = "\nwhat looks wrong and what to do\n";
  for (const Finding& finding : findings) {
    text += fmt::format("  {}  {}\n", finding.stops ? "STOPS" : "slow ", finding.what);
    if (!finding.todo.empty()) text += fmt::format("         {}\n", finding.todo);
  }
  return text;
}

}  // namespace

double max_doctor_seconds(const Options& options) {
  return 2 * options.timeout_seconds + trial_timeout(options) +
         (options.save.empty() ? 0 : kSaveTimeouts * options.timeout_seconds);
}

std::string facts_table(const Examination& e) {
  return versions_line(e.ranks.front()) + rank_rows(e) + gpu_rows(e) + host_rows(e) + output_row(e);
}

std::string trials_table(const Examination& e, const std::vector<Finding>& findings) {
  return device_rows(e) + link_rows(e) + finding_rows(findings);
}

Doctor::TransferSize Doctor::choose_transfer_size(const RankFacts& first) {
  const int64_t row_bytes = first.row_bytes > 0 ? first.row_bytes : kTransferRowBytes;
  const int64_t most = std::max<int64_t>(1, kMaxTransferBytes / row_bytes);
  return {.tokens = std::min(first.tokens > 0 ? first.tokens : kTransferTokens, most), .row_bytes = row_bytes};
}

ExitCode Doctor::run() {
  Examination examination{.ranks = {}, .trials = {}, .options = options_};
  const std::string mine = to_json(find_facts(options_, world_));
  for (const std::string& text : talk_.gather(mine, 0, options_.timeout_seconds, "facts"))
    examination.ranks.push_back(rank_facts_from_json(text));
  TransferSize size;
  if (world_.rank() == 0) {
    size = choose_transfer_size(examination.ranks.front());
    print_results(facts_table(examination));  // before the trials, because those may hang
  }
  talk_.broadcast(&size, sizeof size, 0, options_.timeout_seconds, "size of the transfers");

  const std::string trial = to_json(try_machine(size));
  for (const std::string& text : talk_.gather(trial, 0, trial_timeout(options_), "trials"))
    examination.trials.push_back(trial_facts_from_json(text));
  if (world_.rank() == 0) {
    const std::vector<Finding> findings = diagnose(examination);
    print_results(trials_table(examination, findings));
    const auto stops = std::count_if(findings.begin(), findings.end(), [](const Finding& each) { return each.stops; });
    if (stops > 0)
      throw Error(ExitCode::kUnavailable, fmt::format("doctor: {} thing{} would stop a run: see the end of the table",
                                                      stops, stops == 1 ? "" : "s"));
  }
  talk_.barrier(options_.timeout_seconds, "verdict");
  if (!options_.save.empty()) save(examination);
  return ExitCode::kOk;
}

void Doctor::save(const Examination& examination) {
  std::optional<AtomicFile> file;
  if (world_.rank() == 0) file.emplace(options_.save);
  ShardSet shards = ShardSet::open(options_.weights);
  const MachineCosts costs = measure_machine(options_, world_, machine_, shards, examination);
  if (world_.rank() != 0) return;
  const std::string text = to_json(costs, shards.config());
  file->write(std::as_bytes(std::span(text)));
  file->commit();
  print_results(fmt::format("\nsaved what the model costs on this machine: {}\n", options_.save.string()));
}

TrialFacts Doctor::try_machine(TransferSize size) {
  TrialFacts facts;
  world_.watchdog().enter({.phase = Phase::kPrepare, .limit_seconds = trial_timeout(options_)});
  try {
    machine_ = choose_machine(options_, world_, world_.size());
    facts.device = machine_.backend->description();
    facts.transport = machine_.transport_name();
  } catch (const Error& error) {
    facts.problem = error.what();
  }
  if (talk_.all_ranks(facts.problem.empty()) && world_.size() % options_.replicas == 0) try_links(size, facts);
  return facts;
}

void Doctor::try_links(TransferSize size, TrialFacts& facts) {
  pipeline_.emplace(world_, world_.rank() / (world_.size() / options_.replicas));
  if (pipeline_->size() == 1) return;
  channel_ = make_channel(*pipeline_, machine_, {.ring = options_.virtual_stages > 1});
  link_measurement_.emplace(*pipeline_, *machine_.backend, *channel_, size.tokens, size.row_bytes,
                            options_.timeout_seconds);
  if (const std::optional<LinkSpeed> speed = link_measurement_->measure()) {
    facts.bytes_per_second = speed->bytes_per_second;
    facts.round_trip_seconds = speed->round_trip_seconds;
  }
}

}  // namespace lfm2
