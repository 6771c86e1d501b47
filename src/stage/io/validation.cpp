// Readers of reference logits and the comparison.
#include "stage/io/validation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/checked_file.h"
#include "stage/hdf5/h5.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/model/tensor_table.h"

namespace lfm2 {

namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& found, const std::string& expected) {
  throw Error(ExitCode::kData, fmt::format("{}: holds {}, expected {}", path.string(), found, expected));
}

class BinReference : public Reference {
 public:
  BinReference(const std::filesystem::path& path, int64_t rows, int64_t vocab) : file_(path), vocab_(vocab) {
    std::array<int32_t, 2> header{};
    file_.read(0, std::as_writable_bytes(std::span(header)));
    if (header[0] != rows || header[1] != vocab)
      refuse(path, fmt::format("{} samples of {} logits", header[0], header[1]), fmt::format("{} of {}", rows, vocab));
    const uint64_t bytes = 8 + static_cast<uint64_t>(rows * vocab) * sizeof(float);
    if (file_.size() != bytes) refuse(path, fmt::format("{} bytes", file_.size()), fmt::format("{}", bytes));
  }
  void read(int64_t first, int64_t count, std::vector<float>& into) const override {
    into.resize(static_cast<size_t>(count * vocab_));
    file_.read(8 + static_cast<uint64_t>(first * vocab_) * sizeof(float), std::as_writable_bytes(std::span(into)));
  }

 private:
  CheckedFile file_;
  int64_t vocab_;
};

// A dataset of numbers.
h5::ScannedDataset scan_numbers(const CheckedFile& file, const std::string& name) {
  using Class = h5::ScannedType::Class;
  const h5::Scan scan = h5::scan(file, {.only = {name}});
  const auto found = scan.datasets.find(name);
  if (found == scan.datasets.end()) refuse(file.path(), "no dataset " + name, "reference " + name);
  const h5::ScannedType& type = found->second.type;
  if (type.kind != Class::kFloat && type.kind != Class::kInteger)
    refuse(file.path(), name + " of " + type.text(), "numbers");
  return found->second;
}

class H5Reference : public Reference {
 public:
  H5Reference(const CheckedFile& file, Positions positions, const SampleOffsets& offsets, int64_t vocab)
      : dims_(scan_numbers(file, "logits").dims), file_(h5::File::open(file)), vocab_(vocab) {
    const std::vector<uint64_t>& dims = dims_;
    const std::filesystem::path& path = file.path();
    const auto samples = static_cast<uint64_t>(offsets.samples()), tokens = static_cast<uint64_t>(offsets.back());
    rank3_ = dims.size() == 3;
    const bool last_columns = !dims.empty() && dims.back() == static_cast<uint64_t>(vocab);
    const bool each_position = rank3_ ? last_columns && dims[0] * dims[1] == tokens && dims[0] == samples
                                      : last_columns && dims.size() == 2 && dims[0] == tokens;
    const bool each_sample = last_columns && dims.size() == 2 && dims[0] == samples;
    if (rank3_ && each_position) length_ = static_cast<int64_t>(dims[1]);
    if (positions == Positions::kLast && !each_sample && each_position)
      last_rows_of_ = &offsets;
    else if (positions == Positions::kLast ? !each_sample : !each_position)
      refuse(path, fmt::format("logits of shape {}", dims_text(dims)),
             fmt::format("{} samples, {} tokens, vocab {}", samples, tokens, vocab));
    if (rank3_ && !offsets.all_have_length(length_))
      refuse(path, fmt::format("samples of {} positions each", length_), "the lengths of the input's samples");
  }
  void read(int64_t first, int64_t count, std::vector<float>& into) const override {
    into.resize(static_cast<size_t>(count * vocab_));
    for (int64_t i = 0; i < count; ++i)
      read_row(last_rows_of_ == nullptr ? first + i : (*last_rows_of_)[first + i + 1] - 1, into.data() + i * vocab_);
  }

 private:
  void read_row(int64_t row, float* into) const {
    if (!rank3_) return file_.read_rows("logits", static_cast<uint64_t>(row), 1, H5T_NATIVE_FLOAT, into);
    if (row / length_ != cached_sample_) {
      cache_.resize(static_cast<size_t>(length_ * vocab_));
      cached_sample_ = row / length_;
      file_.read_rows("logits", static_cast<uint64_t>(cached_sample_), 1, H5T_NATIVE_FLOAT, cache_.data());
    }
    std::copy_n(cache_.data() + row % length_ * vocab_, vocab_, into);
  }

  std::vector<uint64_t> dims_;  // before file_, because a refused file must not be opened
  h5::File file_;
  int64_t vocab_, length_ = 1;
  bool rank3_ = false;
  const SampleOffsets* last_rows_of_ = nullptr;  // null: rows are read as they are numbered
  mutable std::vector<float> cache_;             // rank 3: one sample
  mutable int64_t cached_sample_ = -1;
};

class ScoreReference : public Reference {
 public:
  ScoreReference(const CheckedFile& file, int64_t rows) : file_(open(file, rows)) {}
  void read(int64_t first, int64_t count, std::vector<float>& into) const override {
    into.resize(static_cast<size_t>(2 * count));
    std::vector<float> column(static_cast<size_t>(count));
    for (size_t place = 0; place < kDatasets.size(); ++place) {
      file_.read_rows(kDatasets[place], static_cast<uint64_t>(first), static_cast<uint64_t>(count), H5T_NATIVE_FLOAT,
                      column.data());
      for (size_t row = 0; row < column.size(); ++row) into[2 * row + place] = column[row];
    }
  }

 private:
  static constexpr std::array<const char*, 2> kDatasets{"logprobs", "is_greedy"};
  // The scan comes first, because a file that it refuses is not opened.
  static h5::File open(const CheckedFile& file, int64_t rows) {
    for (const char* name : kDatasets) {
      const std::vector<uint64_t> dims = scan_numbers(file, name).dims;
      if (dims != std::vector<uint64_t>{static_cast<uint64_t>(rows)})
        refuse(file.path(), fmt::format("{} of shape {}", name, dims_text(dims)),
               fmt::format("those of {} scored tokens", rows));
    }
    return h5::File::open(file);
  }

  h5::File file_;
};

struct Softmax {
  double largest, log_sum;  // log-probability of x: x - largest - log_sum
  explicit Softmax(std::span<const float> row) : largest(*std::max_element(row.begin(), row.end())), log_sum(0) {
    double sum = 0;
    for (float x : row) sum += std::exp(static_cast<double>(x) - largest);
    log_sum = std::log(sum);
  }
  double log_prob(float x) const { return static_cast<double>(x) - largest - log_sum; }
};

double kl_divergence(std::span<const float> reference, std::span<const float> ours) {
  const Softmax p(reference), q(ours);
  double sum = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double log_p = p.log_prob(reference[i]);
    const double probability = std::exp(log_p);
    if (probability > 0) sum += probability * (log_p - q.log_prob(ours[i]));
  }
  return sum;
}

// |a - b|, except that equal infinities, and two NaN, differ by 0.
double difference(float a, float b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::abs(static_cast<double>(a) - static_cast<double>(b));
}

}  // namespace

std::unique_ptr<Reference> open_reference(const std::filesystem::path& path, Positions positions,
                                          const SampleOffsets& offsets, int64_t vocab) {
  if (path.extension() == ".bin") {
    if (positions != Positions::kLast)
      throw Error(
          ExitCode::kUsage,
          fmt::format("--reference {} with --logits all: .bin holds last positions only, expected .h5", path.string()));
    return std::make_unique<BinReference>(path, offsets.samples(), vocab);
  }
  if (path.extension() == ".h5") return std::make_unique<H5Reference>(CheckedFile(path), positions, offsets, vocab);
  throw Error(ExitCode::kUsage, fmt::format("--reference {}: expected a name ending in .bin or .h5", path.string()));
}

std::unique_ptr<Reference> open_score_reference(const std::filesystem::path& path, int64_t rows) {
  return std::make_unique<ScoreReference>(CheckedFile(path), rows);
}

void OrderlessSum::add(double x) {
  constexpr double kMaxSummed = 1099511627776;  // 2^40
  if (!(std::fabs(x) < kMaxSummed)) {
    ++not_summed;
    return;
  }
  const double whole = std::floor(std::ldexp(x, 20));
  coarse += static_cast<int64_t>(whole);
  fine += std::llround(std::ldexp(x - std::ldexp(whole, -20), 50));
}

void OrderlessSum::add(const OrderlessSum& other) {
  coarse += other.coarse;
  fine += other.fine;
  not_summed += other.not_summed;
}

double OrderlessSum::value() const {
  if (not_summed > 0) return std::numeric_limits<double>::quiet_NaN();
  return std::ldexp(static_cast<double>(coarse), -20) + std::ldexp(static_cast<double>(fine), -50);
}

void Validation::add_difference(float ours, float reference) {
  double& largest = sums_.largest_difference;
  if (std::isnan(largest)) return;  // a NaN stays
  const double distance = difference(ours, reference);
  if (!(distance <= largest)) largest = distance;
}

void Validation::compare_logits(std::span<const float> ours, std::span<const float> reference) {
  for (size_t i = 0; i < ours.size(); ++i) add_difference(ours[i], reference[i]);
  const auto best = [](std::span<const float> x) { return std::max_element(x.begin(), x.end()) - x.begin(); };
  if (best(ours) == best(reference)) ++sums_.top1_equal;
  sums_.kl.add(kl_divergence(reference, ours));
}

void Validation::consume(const ResultRows& rows) {
  reference_file_->read(rows.first, rows.count, reference_);
  const std::span<const float> reference(reference_);
  const auto columns = static_cast<size_t>(vocab_);
  sums_.of_scores = rows.logits.empty();
  for (size_t row = 0; row < static_cast<size_t>(rows.count); ++row) {
    if (sums_.of_scores) {
      add_difference(rows.log_probs[row], reference[2 * row]);
      if ((rows.is_greedy[row] != 0) == (reference[2 * row + 1] != 0)) ++sums_.top1_equal;
    } else {
      compare_logits(rows.logits.subspan(row * columns, columns), reference.subspan(row * columns, columns));
    }
    ++sums_.rows;
  }
}

Verdict Validation::verdict() const {
  Verdict verdict = sums_;
  verdict.tolerance = tolerance_;
  return verdict;
}

}  // namespace lfm2
