// The part of Job that goes on with an earlier run: it finds out which samples are finished already, and whether that
// was the same job.
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/json/json.h"
#include "base/standard_streams.h"
#include "base/stop.h"
#include "stage/job/job.h"
#include "stage/report/end_table.h"
#include "stage/version.h"

namespace lfm2 {

namespace {

std::string_view name(Positions positions) { return positions == Positions::kAll ? "all" : "last"; }

// The description of a machine without the part between the first and the last comma, which does not change the bits:
// "CPU, 2 threads, avx512" becomes "CPU, avx512".
std::string kind_of_machine(const std::string& description) {
  const size_t first = description.find(", "), last = description.rfind(", ");
  return first == last ? description : description.substr(0, first) + description.substr(last);
}

// How to go on with what the CPUs of another kind began: their instructions can be chosen. "" where they cannot.
std::string way_on(const std::string& key, const Json& begun) {
  constexpr std::string_view kCpu = "CPU, ";
  const std::string machine = key == "--device" && begun.is_string() ? begun.get<std::string>() : "";
  if (!machine.starts_with(kCpu) || machine.find(" and ") != std::string::npos) return "";
  return fmt::format(": --simd {} goes on with it on a processor that has it", machine.substr(kCpu.size()));
}

// The first difference between two identities, if there is one.
struct Difference {
  std::string key, begun, now;  // JSON
};
std::optional<Difference> difference(const Json& begun, const Json& now) {
  std::set<std::string> keys;
  for (const Json* job : {&begun, &now})
    for (const auto& [key, value] : job->items()) keys.insert(key);
  for (const std::string& key : keys) {
    const auto text = [&](const Json& job) { return job.contains(key) ? json_text(job.at(key)) : "nothing"; };
    if (text(begun) != text(now)) return Difference{key, text(begun), text(now)};
  }
  return {};
}

void expect_same_job(const std::filesystem::path& journal, const Json& begun, const Json& now) {
  const std::optional<Difference> found = difference(begun, now);
  if (!found) return;
  const std::string& key = found->key;
  const bool file = key == "input" || key == "lines" || key == "tokenizer" || key == "weights";
  throw Error(
      file ? ExitCode::kData : ExitCode::kUsage,
      fmt::format("--resume: {} is of a run with other {}: {} {}, expected {}{}", journal.string(),
                  file ? key : "options", key, found->begun, found->now, way_on(key, begun.value(key, Json()))));
}

// What marks the output as finished by this job. Its results hold whatever machine computed them.
std::optional<FinishedMark> find_finished(const std::filesystem::path& output, const std::string& identity) {
  std::optional<FinishedMark> mark = read_finished_mark(output);
  if (!mark) return {};
  Json before = parse_json(mark->job, finished_path(output).string()),
       now = parse_json(identity, "identity of the job");
  before.erase("--device");
  now.erase("--device");
  const std::optional<Difference> found = difference(before, now);
  if (!found) return mark;
  say(fmt::format("lfm2_stage: {}: the output is of another job ({} {}, expected {}): it is computed again",
                  output.string(), found->key, found->begun, found->now));
  return {};
}

// Says that --report and --trace are not written: they would tell of a run, and there was none.
void say_what_is_not_made(const Options& options) {
  std::vector<std::string> files;
  for (const std::filesystem::path& file : {options.report, options.trace})
    if (!file.empty()) files.push_back(file.string());
  if (!files.empty())
    say(fmt::format("lfm2_stage: {}: not made, for all samples were finished before and nothing ran",
                    fmt::join(files, ", ")));
}

}  // namespace

// The identity of the job, made on rank 0, which has the input: everything that the results depend on, and nothing
// else.
std::string Job::identity(const std::vector<std::string>& machines) const {
  const std::set<std::string> kinds(machines.begin(), machines.end());
  Checksum input;
  const Samples& all = samples_->all();
  input.add(std::as_bytes(std::span<const int32_t>(all.ids)));
  for (int64_t sample = 0; sample < all.count(); ++sample) {
    const int64_t length = all.offsets.length(sample);
    input.add(std::as_bytes(std::span(&length, 1)));
  }
  if (options_.output.extension() != ".bin")
    for (size_t first = 0; first < samples_->names().size(); first += SampleNames::kPiece)
      input.add(std::as_bytes(std::span<const char>(samples_->names().lines(first))));
  Json job{{"input", fmt::format("{} samples, {} tokens, {}", all.count(), all.offsets.back(), input.hex())},
           {"weights", shards_->split_id()},
           {"--dtype", lfm2::name(compute_)},
           {"--device", fmt::format("{}", fmt::join(kinds, " and "))},
           {"--output", options_.output.extension().string()},
           {"--logits", name(options_.results.positions)},
           {"--top-logprobs", options_.results.top_k},
           {"version", kVersionText},
           {"bits", kBits}};
  if (machine_.cuda) job["--fp32"] = options_.plain_fp32 ? "simt" : "auto";
  add_to_identity(job);
  return json_text(job);
}

// Opens what an earlier run has left of the output, on the rank that makes it, and keeps it locked until this run ends.
// Without --resume this is an error, so that nothing finished is overwritten unasked.
void Job::open_unfinished_output() {
  std::optional<Unfinished> begun = find_unfinished(options_.output, samples_->size().samples);
  if (!begun) return;
  const std::filesystem::path journal = journal_path(options_.output);
  if (!options_.resume) {
    int64_t count = 0;
    leave_out_impossible(begun->content, std::numeric_limits<int64_t>::max());
    for (const JournalRecord& record : begun->content.records) count += record.count;
    throw Error(
        ExitCode::kCantCreate,
        fmt::format("{}: {} of {} samples of an earlier run are finished: expected --resume, or the file removed",
                    journal.string(), count, samples_->size().samples));
  }
  expect_same_job(journal, job_of(begun->content, journal), parse_json(identity_, "identity of the job"));
  resume_output_file(*begun);
  for (const JournalRecord& record : begun->content.records) {
    FinishedRanges& ranges = kept_.ranges;
    if (!ranges.empty() && ranges.back().first + ranges.back().second == record.first)
      ranges.back().second += record.count;
    else
      ranges.emplace_back(record.first, record.count);
    kept_.results.add(record.results);
    kept_.samples += record.count;
  }
}

bool Job::Kept::holds(int64_t sample) const {
  const auto behind = std::upper_bound(ranges.begin(), ranges.end(), sample,
                                       [](int64_t at, const auto& range) { return at < range.first; });
  return behind != ranges.begin() && sample < std::prev(behind)->first + std::prev(behind)->second;
}

// Compares the job with the one that is to be resumed, and leaves out the samples that are finished. Collective.
void Job::leave_out_finished() {
  if (options_.output.empty()) return;
  const std::vector<std::string> machines =
      world_.gather(kind_of_machine(machine_.backend->description()), 0, load_timeout(), "machines");
  identity_ = world_.broadcast(world_.rank() == 0 ? identity(machines) : "", 0, load_timeout(), "what the job is");
  if (!makes_output()) samples_->forget_names();
  if (makes_output()) open_unfinished_output();
  if (!options_.resume) return;
  std::optional<FinishedMark> mark;
  if (makes_output()) mark = find_finished(options_.output, identity_);  // in any case: it refuses a file of others
  if (mark && kept_.ranges.empty()) {
    kept_.mark = std::move(mark);
    kept_.samples = samples_->size().samples;
    kept_.ranges = {{0, kept_.samples}};
  }
  FinishedRanges finished = kept_.ranges;
  uint64_t count = finished.size();
  const int writer = pipeline_ranks_->size() - 1;
  world_.broadcast(&count, sizeof count, writer, load_timeout(), "finished samples");
  finished.resize(count);
  world_.broadcast(finished.data(), count * sizeof(FinishedRanges::value_type), writer, load_timeout(),
                   "finished samples");
  samples_->leave_out(finished);
}

// Ends a job of which an earlier run has finished all samples: the output only needs its final name, so no weights are
// loaded. Collective.
ExitCode Job::finish_without_run() {
  if (world_.rank() == 0) say_what_is_not_made(options_);
  const int writer = pipeline_ranks_->size() - 1;
  int32_t valid = 1;
  JobReport report;
  if (world_.rank() == 0) report.scored_words = samples_->all().scored_words;  // the writer does not know the texts
  if (writer > 0 && (world_.rank() == 0 || world_.rank() == writer))
    world_.pass(&report.scored_words, sizeof report.scored_words, 0, writer, load_timeout(), "words");
  if (makes_output()) {
    if (!kept_.mark) {
      report.verdict = verdict_of_kept();
      report.scores = scores_of_kept();
      report.results_xxh3 = kept_.results.hex();
      if (const SampleOffsets* bytes = samples_->scored_bytes()) report.scored_bytes = bytes->back();
      if (output() != nullptr) output()->commit();
      if (report.verdict) valid = report.verdict->valid() ? 1 : 0;
      if (valid != 0) mark_finished(found_text(report));
    }
    if (!options_.quiet)
      print_results(fmt::format("{}: all {} samples were finished before, {}", options_.output.string(), kept_.samples,
                                kept_.mark ? kept_.mark->found : found_text(report)));
  }
  world_.broadcast(&valid, sizeof valid, writer, load_timeout(), "verdict");
  return valid != 0 ? ExitCode::kOk : ExitCode::kInvalid;
}

// With --resume, on the rank that made the output. The output is whole whether or not this can be written.
void Job::mark_finished(const std::string& found) const {
  if (!options_.resume || !makes_output()) return;
  try {
    write_finished_mark(options_.output, {identity_, found});
  } catch (const Error& error) {
    lfm2::say(fmt::format("lfm2_stage: {}: --resume will compute {} again", error.what(), options_.output.string()));
  }
}

bool Job::is_stopped_before_loading() {
  runs_.stopped = world_.smallest(stop_requested() ? 0 : 1, load_timeout()) == 0;
  return runs_.stopped;
}

// How many samples of the whole job have their results, on rank 0. Collective.
int64_t Job::count_finished() {
  const int64_t mine = is_last() ? kept_.samples + runs_.handed_out : 0;
  int64_t finished = 0;
  for (const std::string& text : world_.gather(std::to_string(mine), 0, load_timeout(), "finished samples"))
    finished += std::stoll(text);
  return finished;
}

// Before an output gets its name. Error(kSoftware) on rank 0. Collective.
void Job::expect_all_samples() {
  if (is_live(options_.command) || options_.results.positions == Positions::kNone) return;
  const int64_t finished = count_finished(), samples = samples_->size().samples;
  if (world_.rank() == 0 && finished != samples)
    throw Error(ExitCode::kSoftware, fmt::format("{} samples were finished, expected {}", finished, samples));
}

// Ends a job that a signal has stopped. All ranks have come here between two micro-batches or steps. Collective.
ExitCode Job::finish_stopped() {
  if (output() != nullptr) output()->keep();
  const int64_t finished = count_finished();
  NotFinite found;
  for (const std::string& part :
       world_.gather(json_text(as_json(not_finite())), 0, load_timeout(), "results not finite"))
    found.add(not_finite_from_json(parse_json(part, "results not finite")));
  say_not_finite(found);
  if (world_.rank() == 0)
    lfm2::say(
        fmt::format("lfm2_stage: stopped at {} of {} samples; {}", finished, samples_->size().samples,
                    options_.output.empty() || options_.benchmark ? "nothing was written" : "resume with --resume"));
  world_.barrier(load_timeout(), "stopped");
  return ExitCode::kStopped;
}

}  // namespace lfm2
