// Rank 0 sends each rank only the lists that it needs, because the ids and lengths of a large job would fill every
// host.
#include "stage/job/job_samples.h"

#include <algorithm>
#include <set>

namespace lfm2 {

namespace {

SampleNumbers all_but(const FinishedRanges& finished, int64_t samples) {
  SampleNumbers left;
  int64_t next = 0;
  for (const auto& [first, count] : finished) {
    if (first > next) left.add(next, first - next);
    next = first + count;
  }
  if (samples > next) left.add(next, samples - next);
  return left;
}

SampleOffsets offsets_of(const SampleOffsets& all, const SampleNumbers& numbers, int64_t samples) {
  SampleOffsets offsets;
  for (int64_t sample = 0; sample < samples; ++sample) offsets.push_back(offsets.back() + all.length(numbers[sample]));
  return offsets;
}

// Removes the ids of samples that are left out, in place, because the ids of a job may fill most of the memory.
void keep_ids(TokenIds& ids, const SampleOffsets& all, const SampleNumbers& numbers, const SampleOffsets& left) {
  for (int64_t sample = 0; sample < left.samples(); ++sample)
    std::copy_n(ids.data() + all[numbers[sample]], left.length(sample), ids.data() + left[sample]);
  ids.resize(static_cast<size_t>(left.back()));
}

}  // namespace

JobSamples::JobSamples(const MpiWorld& world, Samples all, Distribution distribution)
    : world_(world), distribution_(std::move(distribution)), samples_(std::move(all)) {
  left_ = size_ =
      world_.broadcast_value(samples_.offsets.job_size(), 0, distribution_.timeout_seconds, "size of the job");
  for (const int rank : distribution_.listing_ranks)
    if (rank != 0) pass_offsets(rank, offsets_left(), listed_);
  scored_bytes_ = std::exchange(samples_.scored_bytes, {});
  std::set<int> of_bytes{distribution_.stages - 1};
  of_bytes.insert(distribution_.naming_ranks.begin(), distribution_.naming_ranks.end());
  for (const int rank : of_bytes)
    if (distribution_.scores && rank > 0) pass_offsets(rank, scored_bytes_, scored_bytes_);
  pass_names();
  pass_errors();
  pass_embeddings();
  if (distribution_.may_leave_out && lists(world_.rank())) whole_offsets_ = offsets_left();
}

bool JobSamples::lists(int rank) const {
  const std::vector<int>& ranks = distribution_.listing_ranks;
  return rank == 0 || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Sends rank 0's list `from` to rank `to`. Collective.
void JobSamples::pass_offsets(int to, const SampleOffsets& from, SampleOffsets& into) {
  std::string bytes;
  if (world_.rank() == 0) bytes = from.to_bytes();
  bytes = world_.pass(std::move(bytes), 0, to, distribution_.timeout_seconds, "lengths of the samples");
  if (world_.rank() == to) into = SampleOffsets::from_bytes(bytes);
}

// Rank 0 sends naming ranks a long list in pieces, which are small beside it. An empty piece is the last.
template <class Make, class Add>
void JobSamples::pass_pieces(const char* what, const Make& make, const Add& add) {
  for (const int rank : distribution_.naming_ranks) {
    const bool sends = world_.rank() == 0, receives = world_.rank() == rank;
    if (rank == 0 || (!sends && !receives)) continue;
    for (size_t number = 0;; ++number) {
      std::string piece = sends ? make(number) : "";
      piece = world_.pass(std::move(piece), 0, rank, distribution_.timeout_seconds, what);
      if (piece.empty()) break;
      if (receives) add(piece);
    }
  }
}

void JobSamples::pass_names() {
  names_ = std::exchange(samples_.names, {});
  pass_pieces(
      "sample ids", [&](size_t piece) { return names_.lines(piece * SampleNames::kPiece); },
      [&](const std::string& lines) { names_.add_lines(lines); });
}

void JobSamples::pass_errors() {
  errors_ = std::exchange(samples_.errors, {});
  using Errors = std::vector<std::pair<int64_t, std::string>>;
  constexpr size_t kPiece = 4096;
  pass_pieces(
      "errors of lines",
      [&](size_t piece) {
        Errors errors;
        for (size_t at = piece * kPiece; at < std::min((piece + 1) * kPiece, errors_.size()); ++at)
          errors.emplace_back(errors_.sample(at), errors_.text(at));
        errors_.rest();
        return errors.empty() ? "" : to_bytes(errors);
      },
      [&](const std::string& piece) {
        for (const auto& [sample, text] : from_bytes<Errors>(piece)) errors_.push_back(sample, text);
        errors_.rest();
      });
}

void JobSamples::pass_embeddings() {
  if (!distribution_.embeddings) return;
  embeddings_ = {.tokens = samples_.offsets, .in_base64 = samples_.in_base64, .errors = &errors_};
  for (const int rank : distribution_.naming_ranks) {
    if (rank == 0) continue;
    pass_offsets(rank, embeddings_.tokens, embeddings_.tokens);
    pass_offsets(rank, embeddings_.in_base64, embeddings_.in_base64);
  }
}

void JobSamples::leave_out(const FinishedRanges& finished) {
  if (finished.empty()) return;
  numbers_ = all_but(finished, size_.samples);
  int64_t count = size_.samples;
  for (const auto& [first, samples] : finished) count -= samples;
  if (world_.rank() == 0)
    keep(count);
  else if (lists(world_.rank()))
    listed_ = offsets_of(*whole_offsets_, numbers_, count);
  left_ = world_.broadcast_value(samples_.offsets.job_size(), 0, distribution_.timeout_seconds, "samples left");
}

// Rank 0: keeps only the `count` remaining samples.
void JobSamples::keep(int64_t count) {
  samples_.numbers = numbers_;
  SampleOffsets left = offsets_of(samples_.offsets, numbers_, count);
  keep_ids(samples_.ids, samples_.offsets, numbers_, left);
  samples_.offsets = std::move(left);
  if (distribution_.scores) samples_.scored = offsets_of(*whole_offsets_, numbers_, count);
  if (!distribution_.embeddings) return;
  samples_.inputs = offsets_of(*whole_offsets_, numbers_, count);
  SampleNumbers inputs;
  for (int64_t sample = 0; sample < count; ++sample)
    inputs.add((*whole_offsets_)[numbers_[sample]], samples_.inputs.length(sample));
  samples_.input_tokens = offsets_of(samples_.input_tokens, inputs, samples_.inputs.back());
}

}  // namespace lfm2
