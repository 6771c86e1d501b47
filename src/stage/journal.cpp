// Little-endian words: a header with the text, then records of eight words each.
#include "stage/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "kernels/error.h"

namespace lfm2 {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic{'L', 'F', 'M', '2', 'J', 'R', 'N', '1'};  // the last one: the version
constexpr uint64_t kLongestText = uint64_t{1} << 20;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint64_t id = 0, text_bytes = 0, check = 0;
};

using Words = std::array<uint64_t, 8>;  // of a record; the last one checks the others

uint64_t hash(const void* data, size_t bytes, uint64_t seed) { return XXH3_64bits_withSeed(data, bytes, seed); }

// The place is part of it: a record is one only where it was written.
uint64_t check_of(const Words& words, uint64_t id, uint64_t index) {
  return hash(words.data(), sizeof words - sizeof words.back(), id + index);
}

Words to_words(const JournalRecord& record, uint64_t id, uint64_t index) {
  const std::array<uint64_t, 2> results = record.results.words();
  Words words{static_cast<uint64_t>(record.first),
              static_cast<uint64_t>(record.count),
              record.offset,
              record.bytes,
              results[0],
              results[1],
              record.data_hash,
              0};
  words.back() = check_of(words, id, index);
  return words;
}

std::string bytes_of(const JournalContent& content) {
  Header header{.id = content.id, .text_bytes = content.text.size()};
  header.check = hash(content.text.data(), content.text.size(), hash(&header, sizeof header, 0));
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += content.text;
  for (size_t i = 0; i < content.records.size(); ++i) {
    const Words words = to_words(content.records[i], content.id, i);
    bytes.append(reinterpret_cast<const char*>(words.data()), sizeof words);
  }
  return bytes;
}

void leave_out_impossible(std::vector<JournalRecord>& records, int64_t samples) {
  std::stable_sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  int64_t next = 0;
  std::erase_if(records, [&](const JournalRecord& record) {
    if (record.first < next || record.count <= 0 || record.count > samples - record.first) return true;
    next = record.first + record.count;
    return false;
  });
}

}  // namespace

std::filesystem::path partial_path(const std::filesystem::path& output) { return output.string() + ".partial"; }

std::filesystem::path journal_path(const std::filesystem::path& output, int64_t replica) {
  return output.string() + (replica == 0 ? ".journal" : fmt::format(".journal.{}", replica));
}

std::vector<std::filesystem::path> journal_paths(const std::filesystem::path& output) {
  const std::filesystem::path first = journal_path(output);
  const std::string prefix = first.filename().string() + ".";
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  if (std::filesystem::exists(first, error)) paths.push_back(first);
  const std::filesystem::path folder = output.has_parent_path() ? output.parent_path() : ".";
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos)
      paths.push_back(entry.path());
  }
  return paths;
}

std::optional<JournalContent> read_journal(const std::filesystem::path& file) {
  const CheckedFile journal(file);
  Header header;
  std::vector<char> start(std::min<uint64_t>(journal.size(), kMagic.size()));
  journal.read(0, std::as_writable_bytes(std::span(start)));
  // All but the version, so that neither an older nor a newer journal is overwritten.
  if (!std::equal(start.begin(), start.begin() + static_cast<std::ptrdiff_t>(std::min(start.size(), size_t{7})),
                  kMagic.begin()))
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: is no journal of an output, expected none of that name", file.string()));
  if (start.size() == kMagic.size() && start.back() != kMagic.back())
    throw Error(ExitCode::kCantCreate, fmt::format("{}: a journal of version {}, expected version {}", file.string(),
                                                   start.back(), kMagic.back()));
  if (journal.size() < sizeof header) return std::nullopt;
  journal.read(0, std::as_writable_bytes(std::span(&header, 1)));
  JournalContent content{.id = header.id, .text = {}, .records = {}};
  if (header.text_bytes > kLongestText || header.text_bytes > journal.size() - sizeof header) return std::nullopt;
  content.text.resize(header.text_bytes);
  journal.read(sizeof header, std::as_writable_bytes(std::span(content.text)));
  const uint64_t check = std::exchange(header.check, 0);
  if (hash(content.text.data(), content.text.size(), hash(&header, sizeof header, 0)) != check) return std::nullopt;

  const uint64_t first = sizeof header + content.text.size();
  std::vector<Words> records((journal.size() - first) / sizeof(Words));  // a piece of one at the end was never whole
  journal.read(first, std::as_writable_bytes(std::span(records)));
  for (size_t i = 0; i < records.size(); ++i) {
    const Words& words = records[i];
    if (words.back() != check_of(words, content.id, i)) continue;
    content.records.push_back({.first = static_cast<int64_t>(words[0]),
                               .count = static_cast<int64_t>(words[1]),
                               .offset = words[2],
                               .bytes = words[3],
                               .results = HashSum::from_words({words[4], words[5]}),
                               .data_hash = words[6]});
  }
  return content;
}

std::optional<JournalContent> read_journals(const std::filesystem::path& output, int64_t samples) {
  std::optional<JournalContent> all;
  for (const std::filesystem::path& path : journal_paths(output)) {
    const bool first = path == journal_path(output);
    if (!first && !all) break;
    std::optional<JournalContent> one = read_journal(path);
    if (first)
      all = std::move(one);
    else if (one && one->id == all->id)
      all->records.insert(all->records.end(), one->records.begin(), one->records.end());
  }
  if (all) leave_out_impossible(all->records, samples);
  return all;
}

Journal::Journal(std::filesystem::path file, const JournalContent& content)
    : path_(std::move(file)), id_(content.id), records_(content.records.size()) {
  // Under a name that the next run takes again, so that a run killed just here leaves nothing for ever.
  const std::filesystem::path made = path_.string() + ".new";
  const std::string bytes = bytes_of(content);
  file_ = create_file(made);
  write_fully(file_, 0, std::as_bytes(std::span(bytes)), made);
  sync_path(made);
  rename_durably(made, path_);
  end_ = bytes.size();
}

void Journal::append(const JournalRecord& record) {
  const Words words = to_words(record, id_, records_);
  write_fully(file_, end_, std::as_bytes(std::span(words)), path_);
  end_ += sizeof words;
  ++records_;
}

void Journal::sync() {
  if (::fdatasync(file_.get()) != 0)
    throw Error(ExitCode::kIo, fmt::format("{}: fsync failed: {}", path_.string(), std::strerror(errno)));
}

}  // namespace lfm2
