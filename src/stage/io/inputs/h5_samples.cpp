#include "stage/io/inputs/h5_samples.h"

#include <fmt/ranges.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/checked_file.h"
#include "base/integers.h"
#include "base/json/json.h"
#include "base/utf8.h"
#include "stage/hdf5/h5.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/hdf5/h5_texts.h"
#include "stage/io/inputs/sample_checks.h"

namespace lfm2 {

namespace {

// A file of integers. The HDF5 library opens it as `h5` when it is first needed.
struct IntegerFile {
  CheckedFile file;
  std::optional<h5::File> h5 = {};
};

// Rows [first, first + rows) of a dataset of integers. The HDF5 library reads chunked, compact or big-endian data.
std::vector<int64_t> read_integers(IntegerFile& input, const std::string& name, const h5::ScannedDataset& dataset,
                                   uint64_t first, uint64_t rows, hid_t memory = H5T_NATIVE_INT64) {
  const CheckedFile& file = input.file;
  constexpr uint64_t kMaxCount = uint64_t{1} << 31;
  const std::string where = fmt::format("{}: dataset {}", file.path().string(), name);
  const uint64_t columns = dataset.dims.size() == 2 ? dataset.dims[1] : 1;
  const uint64_t count = checked_multiply(rows, columns, where);
  const size_t width = dataset.type.bytes;
  if (dataset.type.kind != h5::ScannedType::Class::kInteger)
    throw Error(ExitCode::kData, fmt::format("{} holds {}, expected integers", where, dataset.type.text()));
  if (count >= kMaxCount)
    throw Error(ExitCode::kData, fmt::format("{}: {} elements to read, expected fewer than 2^31", where, count));
  if (dataset.storage != h5::ScannedDataset::Storage::kContiguous || !dataset.type.little_endian) {
    if (!input.h5) input.h5 = h5::File::open(file);
    std::vector<int64_t> values(count);
    input.h5->read_rows(name, first, rows, memory, values.data());
    return values;
  }
  std::vector<std::byte> bytes(count * width);
  file.read(checked_add(dataset.offset, checked_multiply(first, columns * width, where), where), bytes);
  return integers_of(bytes, width, dataset.type.is_signed);
}

// A file may claim more samples than it has bytes. No memory is allocated for the claim.
void check_extent(const CheckedFile& file, const h5::ScannedDataset& dataset, uint64_t count) {
  if (dataset.storage != h5::ScannedDataset::Storage::kContiguous || count == 0) return;
  const std::string where = file.path().string();
  const uint64_t end = checked_add(dataset.offset, checked_multiply(count, dataset.type.bytes, where), where);
  if (end > file.size())
    throw Error(ExitCode::kData, fmt::format("{}: dataset input_ids: {} ids end at byte {}, but the file has {} bytes",
                                             where, count, end, file.size()));
}

// Of the datasets that Hugging Face's tokenizers write beside input_ids, a mask gives the samples' lengths. Datasets
// that would change the job are refused.
void refuse_others(const h5::Scan& scan, bool flat, const std::filesystem::path& path) {
  for (const char* name : {"labels", "position_ids", "token_type_ids"})
    if (scan.datasets.contains(name))
      throw Error(ExitCode::kData, fmt::format("{}: dataset {} is not supported: leave it out", path.string(), name));
  for (const char* name : {"attention_mask", "lengths"})
    if (flat && scan.datasets.contains(name))
      throw Error(ExitCode::kData,
                  fmt::format("{}: dataset {} beside offsets, expected one of them", path.string(), name));
  if (scan.datasets.contains("attention_mask") && scan.datasets.contains("lengths"))
    throw Error(ExitCode::kData, fmt::format("{}: attention_mask beside lengths, expected one of them", path.string()));
}

// The lengths of the samples [first, end), at most `columns` tokens, from an attention_mask [samples, columns] of ones,
// then zeros, or from lengths [samples]. Empty if the file has neither.
std::vector<int64_t> read_lengths(IntegerFile& input, const h5::Scan& scan, uint64_t first, uint64_t end,
                                  const std::vector<uint64_t>& dims) {
  const std::string path = input.file.path().string();
  std::vector<int64_t> lengths;
  if (const auto mask = scan.datasets.find("attention_mask"); mask != scan.datasets.end()) {
    if (mask->second.dims != dims)
      throw Error(ExitCode::kData, fmt::format("{}: attention_mask has another shape than input_ids", path));
    const std::vector<int64_t> values = read_integers(input, "attention_mask", mask->second, first, end - first);
    for (auto row = values.begin(); row != values.end(); row += static_cast<std::ptrdiff_t>(dims[1])) {
      const auto row_end = row + static_cast<std::ptrdiff_t>(dims[1]), zeros = std::find(row, row_end, 0);
      if (std::find_if(row, zeros, [](int64_t one) { return one != 1; }) != zeros ||
          std::find_if(zeros, row_end, [](int64_t zero) { return zero != 0; }) != row_end)
        throw Error(ExitCode::kData, fmt::format("{}: sample {}: attention_mask is not ones and then zeros", path,
                                                 first + lengths.size()));
      lengths.push_back(zeros - row);
    }
  } else if (const auto given = scan.datasets.find("lengths"); given != scan.datasets.end()) {
    if (given->second.dims != std::vector<uint64_t>{dims[0]})
      throw Error(ExitCode::kData, fmt::format("{}: lengths has another shape than [samples]", path));
    lengths = read_integers(input, "lengths", given->second, first, end - first);
    for (size_t i = 0; i < lengths.size(); ++i)
      if (lengths[i] < 0 || static_cast<uint64_t>(lengths[i]) > dims[1])
        throw Error(ExitCode::kData,
                    fmt::format("{}: sample {}: length {}, expected at most the {} columns of input_ids", path,
                                first + i, lengths[i], dims[1]));
  }
  return lengths;
}

// Integers that name samples, as JSON. Unsigned ones of 64 bits keep their digits.
std::vector<std::string> read_number_names(IntegerFile& input, h5::ScannedDataset ids, uint64_t first, uint64_t count) {
  const bool large = !ids.type.is_signed && ids.type.bytes == sizeof(uint64_t);
  if (large) ids.type.is_signed = true;  // for the bits as they are
  std::vector<std::string> names;
  for (const int64_t id : read_integers(input, "ids", ids, first, count, large ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64))
    names.push_back(large ? std::to_string(static_cast<uint64_t>(id)) : std::to_string(id));
  return names;
}

// The names of the first `count` of `samples` samples: ids [samples], strings or integers. An empty string is no name.
// In the job these samples begin at number `before`.
void read_names(IntegerFile& input, const h5::ScannedDataset& ids, uint64_t samples, uint64_t count, uint64_t before,
                const std::function<void()>& pulse, SampleNames& names) {
  const std::string path = input.file.path().string();
  if (ids.dims != std::vector<uint64_t>{samples})
    throw Error(ExitCode::kData, fmt::format("{}: dataset ids has shape [{}], expected [{}], one for each sample", path,
                                             fmt::join(ids.dims, ", "), samples));
  using Class = h5::ScannedType::Class;
  const bool numbers = ids.type.kind == Class::kInteger;
  if (!numbers && ids.type.kind != Class::kText && ids.type.kind != Class::kVariableText)
    throw Error(ExitCode::kData,
                fmt::format("{}: dataset ids holds {}, expected strings or integers", path, ids.type.text()));
  std::optional<h5::TextReader> texts;
  if (!numbers) texts.emplace(input.file, "ids", ids);
  constexpr uint64_t kPieceBytes = uint64_t{1} << 24;
  const uint64_t most = std::max<uint64_t>(kPieceBytes / ids.type.bytes, 1);
  for (uint64_t first = 0; first < count; first += most) {
    pulse();
    names.rest();
    const uint64_t rows = std::min(most, count - first);
    std::vector<std::string> piece = numbers ? read_number_names(input, ids, first, rows) : texts->read(first, rows);
    for (uint64_t i = 0; i < rows; ++i) {
      if (!numbers && !is_utf8(piece[i]))
        throw Error(ExitCode::kData, fmt::format("{}: sample {}: its id in dataset ids is not UTF-8", path, first + i));
      names.add(before + first + i, numbers || piece[i].empty() ? piece[i] : json_text(Json(piece[i])));
    }
  }
}

// Checks HDF5's own lock: a file that is open for writing may contain zeros in place of ids. File systems without locks
// do not show this.
void refuse_while_written(const CheckedFile& file) {
  if (::flock(file.descriptor(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw Error(ExitCode::kData,
                fmt::format("{}: another program is writing it: expected a file that is closed", file.path().string()));
}

}  // namespace

void read_h5(const std::filesystem::path& path, const InputLimits& limits, const std::function<void()>& pulse,
             Samples& samples) {
  IntegerFile file{CheckedFile(path)};
  refuse_while_written(file.file);
  const h5::Scan scan = h5::scan(file.file, {.only = {"input_ids", "offsets", "ids", "attention_mask", "lengths",
                                                      "labels", "position_ids", "token_type_ids"}});
  const auto input_ids = scan.datasets.find("input_ids"), packed = scan.datasets.find("offsets");
  if (input_ids == scan.datasets.end())
    throw Error(ExitCode::kData, fmt::format("{}: no dataset input_ids", path.string()));
  const std::vector<uint64_t>& dims = input_ids->second.dims;
  const bool flat = packed != scan.datasets.end();
  refuse_others(scan, flat, path);
  const bool padded = scan.datasets.contains("attention_mask") || scan.datasets.contains("lengths");
  if (dims.size() != (flat ? 1u : 2u))
    throw Error(
        ExitCode::kData,
        flat
            ? fmt::format("{}: input_ids has {} dimensions beside a dataset offsets, expected 1", path.string(),
                          dims.size())
            : fmt::format("{}: input_ids has {} dimensions, expected [samples, length], or flat with a dataset offsets",
                          path.string(), dims.size()));
  if (!flat && dims[1] == 0)  // of any number of samples
    throw Error(ExitCode::kData, fmt::format("{}: input_ids has shape [{}, 0], expected samples of 1 token or more",
                                             path.string(), dims[0]));
  if (flat && packed->second.dims.size() != 1)
    throw Error(ExitCode::kData,
                fmt::format("{}: offsets has {} dimensions, expected 1", path.string(), packed->second.dims.size()));
  const uint64_t entries = flat ? packed->second.dims[0] : dims[0] + 1;
  const uint64_t before = static_cast<uint64_t>(samples.count());
  const uint64_t read = entries > 0 ? samples_to_read(entries - 1, samples, limits) + 1 : 0;
  std::vector<int64_t> offsets;
  const auto where_of = [&](uint64_t sample) { return fmt::format("{}: sample {}", path.string(), sample); };
  if (flat) {
    offsets = read_integers(file, "offsets", packed->second, 0, read);
    const bool all = read == entries;
    if (offsets.empty() || offsets.front() != 0 || !std::is_sorted(offsets.begin(), offsets.end()) ||
        static_cast<uint64_t>(offsets.back()) > dims[0] || (all && static_cast<uint64_t>(offsets.back()) != dims[0]))
      throw Error(ExitCode::kData,
                  fmt::format("{}: offsets do not rise from 0 to the {} ids of input_ids", path.string(), dims[0]));
    for (size_t sample = 0; sample + 1 < offsets.size(); ++sample)
      check_length(offsets[sample + 1] - offsets[sample], limits, where_of(sample));
  } else if (dims[0] > 0 && !padded) {
    check_length(static_cast<int64_t>(std::min<uint64_t>(dims[1], INT64_MAX)), limits, where_of(0));
  }
  const uint64_t count = read - 1;
  const auto offset_of = [&](uint64_t sample) {
    return flat ? static_cast<uint64_t>(offsets[sample]) : checked_multiply(sample, dims[1], path.string());
  };
  check_total(offset_of(count), path.string());
  if (count > 0)
    read_integers(file, "input_ids", input_ids->second, 0, 0);  // checks the type before it allocates memory
  check_extent(file.file, input_ids->second, offset_of(count));
  check_more(offset_of(count), path.string(), samples);
  for (uint64_t first = 0; first < count;) {
    pulse();
    uint64_t end = first + 1;
    while (end < count && offset_of(end + 1) - offset_of(first) <= kPieceIds) ++end;
    const uint64_t begin = offset_of(first), tokens = offset_of(end) - begin;
    const std::vector<int64_t> ids = flat ? read_integers(file, "input_ids", input_ids->second, begin, tokens)
                                          : read_integers(file, "input_ids", input_ids->second, first, end - first);
    const std::vector<int64_t> lengths = padded ? read_lengths(file, scan, first, end, dims) : std::vector<int64_t>();
    for (uint64_t i = 0; first < end; ++first, ++i) {
      const uint64_t from = offset_of(first) - begin, all = offset_of(first + 1) - offset_of(first);
      add_ids(std::span(ids).subspan(from, padded ? static_cast<uint64_t>(lengths[i]) : all), limits, where_of(first),
              samples);
      finish_sample(samples, limits, where_of(first));
    }
  }
  if (const auto ids = scan.datasets.find("ids"); ids != scan.datasets.end())
    read_names(file, ids->second, entries - 1, count, before, pulse, samples.names);
}

}  // namespace lfm2
