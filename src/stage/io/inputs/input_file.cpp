// Readers of integers: .bin and .npy here, .h5 beside it.
#include "stage/io/inputs/input_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>

#include "base/checked_file.h"
#include "base/integers.h"
#include "base/split_mix.h"
#include "stage/io/inputs/h5_samples.h"
#include "stage/io/inputs/npy_file.h"
#include "stage/io/inputs/sample_checks.h"

namespace lfm2 {

namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian, and so is the code here");

void read_bin(const std::filesystem::path& path, const InputLimits& limits, const std::function<void()>& pulse,
              Samples& samples) {
  const CheckedFile file(path);
  std::array<int32_t, 2> header{};
  file.read(0, std::as_writable_bytes(std::span(header)));
  const auto [count, length] = header;
  if (count < 0 || length < 0)
    throw Error(ExitCode::kData, fmt::format("{}: {} samples of {} tokens", path.string(), count, length));
  const uint64_t expected =
      8 + checked_multiply(static_cast<uint64_t>(count) * 4, static_cast<uint64_t>(length), path.string());
  if (file.size() != expected)
    throw Error(ExitCode::kData, fmt::format("{}: {} bytes, but {} samples of {} tokens need {}", path.string(),
                                             file.size(), count, length, expected));
  std::vector<int32_t> row(count > 0 ? static_cast<size_t>(length) : 0);
  if (count > 0) check_length(length, limits, fmt::format("{}: sample 0", path.string()));
  const uint64_t wanted = samples_to_read(static_cast<uint64_t>(count), samples, limits);
  samples.ids.reserve(samples.ids.size() + wanted * row.size());
  for (uint64_t sample = 0; sample < wanted; ++sample) {
    pulse();
    file.read(8 + sample * row.size() * 4, std::as_writable_bytes(std::span(row)));
    samples.ids.append(row);
    finish_sample(samples, limits, fmt::format("{}: sample {}", path.string(), sample));
  }
}

void read_npy(const std::filesystem::path& path, const InputLimits& limits, const std::function<void()>& pulse,
              Samples& samples) {
  const NpyFile file(path);
  const uint64_t count = samples_to_read(file.rows(), samples, limits), columns = file.columns();
  const auto where_of = [&](uint64_t sample) { return fmt::format("{}: sample {}", path.string(), sample); };
  if (count == 0) return;
  check_length(static_cast<int64_t>(std::min<uint64_t>(columns, INT64_MAX)), limits, where_of(0));
  check_more(checked_multiply(count, columns, path.string()), path.string(), samples);
  for (uint64_t first = 0, rows = 0; first < count; first += rows) {
    pulse();
    rows = std::min(std::max<uint64_t>(kPieceIds / columns, 1), count - first);
    const std::vector<int64_t> ids = file.read(first, rows);
    for (uint64_t row = 0; row < rows; ++row) {
      add_ids(std::span(ids).subspan(row * columns, columns), limits, where_of(first + row), samples);
      finish_sample(samples, limits, where_of(first + row));
    }
  }
}

// Adds the samples of a file.
void read_file(const std::filesystem::path& path, const InputLimits& limits, const std::function<void()>& pulse,
               Samples& samples) {
  if (path.extension() == ".bin")
    read_bin(path, limits, pulse, samples);
  else if (path.extension() == ".h5")
    read_h5(path, limits, pulse, samples);
  else if (path.extension() == ".npy")
    read_npy(path, limits, pulse, samples);
  else
    throw Error(ExitCode::kUsage,
                fmt::format("--input {}: expected a name ending in .bin, .h5, .npy, .jsonl or .txt, the "
                            "last two optionally with .gz or .zst, or - for lines of JSON from standard input",
                            path.string()));
}

}  // namespace

std::string Samples::where(int64_t sample, const std::string& input) const {
  const auto next = std::upper_bound(files.begin(), files.end(), sample,
                                     [](int64_t at, const auto& file) { return at < file.second; });
  if (next == files.begin()) return fmt::format("{}: sample {}", input, sample);
  return fmt::format("{}: sample {}", std::prev(next)->first, sample - std::prev(next)->second);
}

Samples read_samples(const std::vector<std::filesystem::path>& paths, const InputLimits& limits,
                     const std::function<void()>& pulse) {
  if (paths.size() > 1)
    for (const std::filesystem::path& path : paths) const CheckedFile exists(path);  // before a long file is read
  Samples samples{.ids = {}, .offsets = {0}};
  for (const std::filesystem::path& path : paths) {
    if (enough(samples, limits)) break;
    if (paths.size() > 1) samples.files.emplace_back(path.string(), samples.count());
    read_file(path, limits, pulse, samples);
  }
  if (samples.count() == 0) refuse_empty(paths.front().string(), paths.size());
  // The last files may have no names.
  if (!samples.names.empty() && samples.names.size() < static_cast<size_t>(samples.count()))
    samples.names.add(static_cast<size_t>(samples.count()) - 1, "");
  return samples;
}

Samples random_samples(int64_t count, int64_t length, uint64_t seed, int64_t vocab) {
  const std::string what = fmt::format("--samples {} --length {}", count, length);
  Samples samples{.ids = {}, .offsets = SampleOffsets::equally_long(count, length)};
  check_total(checked_multiply(static_cast<uint64_t>(count), static_cast<uint64_t>(length), what), what);
  samples.ids.reserve(static_cast<uint64_t>(count * length));
  for (int64_t sample = 0; sample < count; ++sample) {
    const uint64_t stream = split_mix(split_mix(seed, 1) + static_cast<uint64_t>(sample), 1);
    for (int64_t i = 0; i < length; ++i)
      samples.ids.push_back(
          static_cast<int32_t>(split_mix(stream + static_cast<uint64_t>(i), 1) % static_cast<uint64_t>(vocab)));
  }
  return samples;
}

}  // namespace lfm2
