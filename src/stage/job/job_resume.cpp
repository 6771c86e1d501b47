// Determines which samples an earlier run has finished, and whether that was the same job.
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/json/json.h"
#include "base/standard_streams.h"
#include "stage/io/inputs/input_names.h"
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

// The option --simd with which this CPU can resume a job of another kind of CPU; "" if there is none.
std::string way_on(const std::string& key, const Json& begun) {
  constexpr std::string_view kCpu = "CPU, ";
  const std::string machine = key == "--device" && begun.is_string() ? begun.get<std::string>() : "";
  if (!machine.starts_with(kCpu) || machine.find(" and ") != std::string::npos) return "";
  return fmt::format(": --simd {} continues it on a processor that has these instructions",
                     machine.substr(kCpu.size()));
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

// The name of an identity's key in messages: options in their new spelling, with the rest of the key.
std::string shown(const std::string& key) {
  for (const RenamedOption& one : kRenamedOptions) {
    const std::string old = one.old, rest = key.starts_with(old) ? key.substr(old.size()) : "-";
    if (!rest.starts_with('-')) return one.name + rest;
  }
  return key;
}

void expect_same_job(const std::filesystem::path& journal, const Json& begun, const Json& now) {
  const std::optional<Difference> found = difference(begun, now);
  if (!found) return;
  const std::string& key = found->key;
  const bool file = key == "files" || key == "input" || key == "lines" || key == "tokenizer" || key == "weights";
  throw Error(
      file ? ExitCode::kData : ExitCode::kUsage,
      fmt::format("--resume: {} is of a run with other {}: {} {}, expected {}{}", journal.string(),
                  file ? key : "options", shown(key), found->begun, found->now, way_on(key, begun.value(key, Json()))));
}

// The mark of the output, if this job has finished it. The kinds of machines may differ, because finished results hold
// for all of them.
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
                  output.string(), shown(found->key), found->begun, found->now));
  return {};
}

// Reports that --report and --trace are not written, because there was no run.
void say_what_is_not_made(const Options& options) {
  std::vector<std::string> files;
  for (const std::filesystem::path& file : {options.report, options.trace})
    if (!file.empty()) files.push_back(file.string());
  if (!files.empty())
    say(fmt::format("lfm2_stage: {}: not made, for all samples were finished before and nothing ran",
                    fmt::join(files, ", ")));
}

// The identity of the job, made on rank 0, which has the input: everything that the results depend on, and nothing
// else.
std::string identity_of(const JobFrame& job, const Workload& workload) {
  Checksum input;
  const Samples& all = job.samples->all();
  input.add(std::as_bytes(std::span<const int32_t>(all.ids)));
  for (int64_t sample = 0; sample < all.count(); ++sample) {
    const int64_t length = all.offsets.length(sample);
    input.add(std::as_bytes(std::span(&length, 1)));
  }
  if (job.options.output.extension() != ".bin")
    for (size_t first = 0; first < job.samples->names().size(); first += SampleNames::kPiece)
      input.add(std::as_bytes(std::span<const char>(job.samples->names().lines(first))));
  Json identity{{"input", fmt::format("{} samples, {} tokens, {}", all.count(), all.offsets.back(), input.hex())},
                {"weights", job.shards->split_id()},
                {"--dtype", job.dtype()},
                {"--device", job.machines},
                {"--output", job.options.output.extension().string()},
                {"--logits", name(job.options.results.positions)},
                {"--top-logprobs", job.options.results.top_k},
                {"version", kVersionText},
                {"bits", kBits}};
  if (job.options.inputs.size() > 1) identity["files"] = names_text(job.options.inputs);
  if (job.config().fp8_cache) identity["--cache-dtype"] = job.cache_dtype();
  if (job.machine.cuda) identity["--fp32"] = job.options.plain_fp32 ? "simt" : "auto";
  workload.add_to_identity(identity);
  return json_text(identity);
}

// Opens the unfinished output of an earlier run, on the rank that writes it, and keeps it locked until this run ends.
// Without --resume finished samples are an error, so that they are not overwritten by accident.
void open_unfinished_output(JobFrame& job, Workload& workload) {
  std::optional<Unfinished> begun = find_unfinished(job.options.output, job.samples->size().samples);
  if (!begun) return;
  const std::filesystem::path journal = journal_path(job.options.output);
  if (!job.options.resume) {
    int64_t count = 0;
    leave_out_impossible(begun->content, std::numeric_limits<int64_t>::max());
    for (const JournalRecord& record : begun->content.records) count += record.count;
    throw Error(
        ExitCode::kCantCreate,
        fmt::format("{}: {} of {} samples of an earlier run are finished: expected --resume, or the file removed",
                    journal.string(), count, job.samples->size().samples));
  }
  expect_same_job(journal, job_of(begun->content, journal), parse_json(job.identity, "identity of the job"));
  workload.resume(*begun);
  for (const JournalRecord& record : begun->content.records) {
    FinishedRanges& ranges = job.kept.ranges;
    if (!ranges.empty() && ranges.back().first + ranges.back().second == record.first)
      ranges.back().second += record.count;
    else
      ranges.emplace_back(record.first, record.count);
    job.kept.results.add(record.results);
    job.kept.samples += record.count;
  }
}

}  // namespace

bool Kept::holds(int64_t sample) const {
  const auto behind = std::upper_bound(ranges.begin(), ranges.end(), sample,
                                       [](int64_t at, const auto& range) { return at < range.first; });
  return behind != ranges.begin() && sample < std::prev(behind)->first + std::prev(behind)->second;
}

std::string kinds_of_machines(const JobFrame& job) {
  const std::vector<std::string> machines =
      job.world.gather(kind_of_machine(job.machine.backend->description()), 0, job.load_timeout(), "machines");
  const std::set<std::string> kinds(machines.begin(), machines.end());
  return fmt::format("{}", fmt::join(kinds, " and "));
}

void leave_out_finished(JobFrame& job, Workload& workload) {
  if (job.options.output.empty()) return;
  job.identity = job.world.broadcast(job.world.rank() == 0 ? identity_of(job, workload) : "", 0, job.load_timeout(),
                                     "what the job is");
  if (!job.is_last()) job.samples->forget_names();
  if (job.makes_output()) open_unfinished_output(job, workload);
  if (!job.options.resume) return;
  std::optional<FinishedMark> mark;
  if (job.makes_output())
    mark = find_finished(job.options.output, job.identity);  // always called, because it refuses other people's files
  if (mark && job.kept.ranges.empty()) {
    job.kept.mark = std::move(mark);
    job.kept.samples = job.samples->size().samples;
    job.kept.ranges = {{0, job.kept.samples}};
  }
  FinishedRanges finished = job.kept.ranges;
  const int writer = job.pipeline.size() - 1;
  // In place: a generation's list may have a range for every few samples.
  const int64_t count = job.world.broadcast_value(std::ssize(finished), writer, job.load_timeout(), "finished samples");
  finished.resize(static_cast<size_t>(count));
  job.world.broadcast(finished.data(), finished.size() * sizeof(FinishedRanges::value_type), writer, job.load_timeout(),
                      "finished samples");
  job.samples->leave_out(finished);
}

ExitCode finish_without_run(JobFrame& job, Workload& workload) {
  if (job.world.rank() == 0) say_what_is_not_made(job.options);
  const int writer = job.pipeline.size() - 1;
  bool valid = true;
  JobReport report;
  if (job.world.rank() == 0)
    report.scored_words = job.samples->all().scored_words;  // the writer does not know the texts
  if (writer > 0 && (job.world.rank() == 0 || job.world.rank() == writer))
    report.scored_words = job.world.pass_value(report.scored_words, 0, writer, job.load_timeout(), "words");
  if (job.makes_output()) {
    if (!job.kept.mark) {
      workload.add_kept(report);
      report.results_xxh3 = job.kept.results.hex();
      if (const SampleOffsets* bytes = job.samples->scored_bytes()) report.scored_bytes = bytes->back();
      if (job.output) job.output->commit();
      if (report.verdict) valid = report.verdict->valid();
      if (valid) mark_finished(job, found_text(report));
    }
    if (!job.options.quiet)
      print_results(fmt::format("{}: all {} samples were finished before, {}", job.options.output.string(),
                                job.kept.samples, job.kept.mark ? job.kept.mark->found : found_text(report)));
  }
  valid = job.world.broadcast_value(valid, writer, job.load_timeout(), "verdict");
  return valid ? ExitCode::kOk : ExitCode::kInvalid;
}

void mark_finished(const JobFrame& job, const std::string& found) {
  if (!job.options.resume || !job.makes_output()) return;
  try {
    write_finished_mark(job.options.output, {job.identity, found});
  } catch (const Error& error) {
    say(fmt::format("lfm2_stage: {}: --resume will compute {} again", error.what(), job.options.output.string()));
  }
}

void say_not_finite(const JobFrame& job, const NotFinite& found) {
  if (found.count == 0) return;
  const std::string cause = job.compute == DType::kF32
                                ? "far too large"
                                : fmt::format("too large for {}: try --dtype fp32", lfm2::name(job.compute));
  say(fmt::format("lfm2_stage: {}: weights in {} are not finite, or {}", not_finite_text(found),
                  job.options.weights.string(), cause));
}

namespace {

// The number of finished samples of the whole job, on rank 0. Collective.
int64_t count_finished(const JobFrame& job, int64_t finished_here) {
  const int64_t mine = job.is_last() ? job.kept.samples + finished_here : 0;
  int64_t finished = 0;
  for (const int64_t of_rank : job.world.gather_values(mine, 0, job.load_timeout(), "finished samples"))
    finished += of_rank;
  return finished;
}

}  // namespace

void expect_all_samples(const JobFrame& job, int64_t finished_here) {
  if (is_live(job.options.command) || job.options.results.positions == Positions::kNone) return;
  const int64_t finished = count_finished(job, finished_here), samples = job.samples->size().samples;
  if (job.world.rank() == 0 && finished != samples)
    throw Error(ExitCode::kSoftware, fmt::format("{} samples were finished, expected {}", finished, samples));
}

ExitCode finish_stopped(JobFrame& job, const Workload& workload, int64_t finished_here) {
  // A server that was asked to end is done, even with unanswered requests, because there is nothing to resume.
  const bool serves = job.options.command == Command::kServe;
  if (job.output) job.output->keep();
  if (!serves) {
    const int64_t finished = count_finished(job, finished_here);
    NotFinite found;
    for (const NotFinite& part :
         job.world.gather_values(workload.not_finite(), 0, job.load_timeout(), "results not finite"))
      found.add(part);
    say_not_finite(job, found);
    if (job.world.rank() == 0)
      say(fmt::format(
          "lfm2_stage: stopped at {} of {} samples; {}", finished, job.samples->size().samples,
          job.options.output.empty() || job.options.benchmark ? "nothing was written" : "resume with --resume"));
  }
  job.world.barrier(job.load_timeout(), "stopped");
  return serves ? ExitCode::kOk : ExitCode::kStopped;
}

}  // namespace lfm2
