// The form of a journal: little-endian words; a header with the job's text, then records of eight words each.
#include "stage/io/journal.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>
#include <tuple>

#include "base/error.h"
#include "base/json/json.h"

namespace lfm2 {

namespace {

static_assert(std::endian::native == std::endian::little);

// The last character is the version.
constexpr std::array<char, 8> kMagic{'L', 'F', 'M', '2', 'J', 'R', 'N', '1'};
constexpr uint64_t kMaxTextBytes = uint64_t{1} << 20;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint64_t id = 0, text_bytes = 0, check = 0;
};

using Words = std::array<uint64_t, 8>;  // the words of a record; the last one is the checksum of the others

uint64_t hash(const void* data, size_t bytes, uint64_t seed) { return XXH3_64bits_withSeed(data, bytes, seed); }

// The checksum covers the record's index, so that a record counts only at the place where it was written.
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

// Writes a whole journal, in pieces, and returns its size.
uint64_t write_content(const FileDescriptor& file, const JournalContent& content, const std::filesystem::path& path) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  Header header{.id = content.id, .text_bytes = content.text.size()};
  header.check = hash(content.text.data(), content.text.size(), hash(&header, sizeof header, 0));
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += content.text;
  uint64_t end = 0;
  const auto write = [&] {
    write_fully(file, end, std::as_bytes(std::span(bytes)), path);
    end += bytes.size();
    bytes.clear();
  };
  for (size_t i = 0; i < content.records.size(); ++i) {
    const Words words = to_words(content.records[i], content.id, i);
    bytes.append(reinterpret_cast<const char*>(words.data()), sizeof words);
    if (bytes.size() >= kPieceBytes) write();
  }
  write();
  return end;
}

// Compares all of the magic but the version.
bool begins_as_journal(std::span<const char> start) {
  return std::equal(start.begin(),
                    start.begin() + static_cast<std::ptrdiff_t>(std::min(start.size(), kMagic.size() - 1)),
                    kMagic.begin());
}

std::vector<char> start_of(const CheckedFile& journal) {
  std::vector<char> start(std::min<uint64_t>(journal.size(), kMagic.size()));
  journal.read(0, std::as_writable_bytes(std::span(start)));
  return start;
}

// Prevents overwriting files of another kind and journals of another version.
void expect_journal(const CheckedFile& journal) {
  const std::vector<char> start = start_of(journal);
  if (!begins_as_journal(start))
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: is no journal of an output, expected none of that name", journal.path().string()));
  if (start.size() == kMagic.size() && start.back() != kMagic.back())
    throw Error(ExitCode::kCantCreate, fmt::format("{}: a journal of version {}, expected version {}",
                                                   journal.path().string(), start.back(), kMagic.back()));
}

bool is_intact(Header header, const std::string& text) {
// Fuzzing accepts any checksum, because mutated input would otherwise never pass this point.
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  return true;
#endif
  const uint64_t check = std::exchange(header.check, 0);
  return hash(text.data(), text.size(), hash(&header, sizeof header, 0)) == check;
}

bool is_intact(const Words& words, uint64_t id, uint64_t index) {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  return true;
#endif
  return words.back() == check_of(words, id, index);
}

JournalRecord to_record(const Words& words) {
  return {.first = static_cast<int64_t>(words[0]),
          .count = static_cast<int64_t>(words[1]),
          .offset = words[2],
          .bytes = words[3],
          .results = HashSum::from_words({words[4], words[5]}),
          .data_hash = words[6]};
}

// Reads in pieces, because a damaged file may claim more records than memory holds.
void read_records(const CheckedFile& journal, uint64_t begin, uint64_t most, JournalContent& content) {
  constexpr uint64_t kPiece = 4096;
  // A truncated record was never complete.
  const uint64_t count = std::min(most, (journal.size() - begin) / sizeof(Words));
  std::vector<Words> piece;
  for (uint64_t first = 0; first < count; first += kPiece) {
    piece.resize(std::min(kPiece, count - first));
    journal.read(begin + first * sizeof(Words), std::as_writable_bytes(std::span(piece)));
    for (size_t i = 0; i < piece.size(); ++i)
      if (is_intact(piece[i], content.id, first + i)) content.records.push_back(to_record(piece[i]));
  }
}

}  // namespace

std::filesystem::path partial_path(const std::filesystem::path& output) { return output.string() + ".partial"; }

std::filesystem::path pending_path(const std::filesystem::path& output) { return output.string() + ".new"; }

std::filesystem::path journal_path(const std::filesystem::path& output, int64_t replica) {
  return output.string() + (replica == 0 ? ".journal" : fmt::format(".journal.{}", replica));
}

// The name is constant, so that a killed run leaves at most one such file, which the next run overwrites.
std::filesystem::path new_journal_path(const std::filesystem::path& journal) { return journal.string() + ".new"; }

std::vector<std::filesystem::path> journal_paths(const std::filesystem::path& output) {
  const std::filesystem::path first = journal_path(output);
  const std::string prefix = first.filename().string() + ".";
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  const std::filesystem::path folder = output.has_parent_path() ? output.parent_path() : ".";
  for (auto entry = std::filesystem::directory_iterator(folder, error); !error && entry != end(entry);
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos)
      paths.push_back(entry->path());
  }
  // A missing folder has no journal. In a folder that cannot be listed, only the first replica's journal is opened.
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::permission_denied)
    throw Error(ExitCode::kIo, fmt::format("{}: cannot be listed: {}", folder.string(), error.message()));
  std::sort(paths.begin(), paths.end());
  if (std::filesystem::exists(first, error)) paths.insert(paths.begin(), first);
  return paths;
}

std::optional<JournalContent> read_journal(const std::filesystem::path& file, int64_t most) {
  const CheckedFile journal(file);
  expect_journal(journal);
  Header header;
  if (journal.size() < sizeof header) return std::nullopt;
  journal.read(0, std::as_writable_bytes(std::span(&header, 1)));
  JournalContent content{.id = header.id, .text = {}, .records = {}};
  if (header.text_bytes > kMaxTextBytes || header.text_bytes > journal.size() - sizeof header) return std::nullopt;
  content.text.resize(header.text_bytes);
  journal.read(sizeof header, std::as_writable_bytes(std::span(content.text)));
  if (!is_intact(header, content.text)) return std::nullopt;
  read_records(journal, sizeof header + content.text.size(), static_cast<uint64_t>(most), content);
  return content;
}

// The journals of further replicas describe the same job, and replace the first replica's if that is damaged.
std::optional<JournalContent> read_journals(const std::filesystem::path& output, int64_t most) {
  std::optional<JournalContent> all;
  for (const std::filesystem::path& path : journal_paths(output)) {
    const int64_t left = all ? most - static_cast<int64_t>(all->records.size()) : most;
    std::optional<JournalContent> one = read_journal(path, std::max<int64_t>(left, 0));
    if (!all)
      all = std::move(one);
    else if (one && one->id == all->id)
      all->records.insert(all->records.end(), one->records.begin(), one->records.end());
  }
  return all;
}

Json job_of(const JournalContent& content, const std::filesystem::path& file) {
  const Json text = parse_json(content.text, file.string());
  if (!text.is_object() || !text.contains("job") || !text.at("job").is_object())
    throw Error(ExitCode::kData, fmt::format("{}: does not name its job, expected an object \"job\"", file.string()));
  return text.at("job");
}

void leave_out_impossible(JournalContent& content, int64_t samples) {
  std::deque<JournalRecord>& records = content.records;
  // In place: a stable sort would need half the memory in addition.
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.offset, a.count) < std::tie(b.first, b.offset, b.count);
  });
  int64_t next = 0;
  std::erase_if(records, [&](const JournalRecord& record) {
    if (record.first < next || record.count <= 0 || record.count > samples - record.first) return true;
    next = record.first + record.count;
    return false;
  });
}

bool has_journal(const std::filesystem::path& output) {
  try {
    for (const std::filesystem::path& path : journal_paths(output)) {
      const std::vector<char> start = start_of(CheckedFile(path));
      if (start.size() == kMagic.size() && begins_as_journal(start)) return true;
    }
  } catch (const Error& error) {
    return error.code() == ExitCode::kIo;
  }
  return false;
}

void expect_name_of_journal(const std::filesystem::path& journal) {
  std::error_code unknown;
  for (const std::filesystem::path& path : {journal, new_journal_path(journal)})
    if (std::filesystem::exists(std::filesystem::symlink_status(path, unknown))) expect_journal(CheckedFile(path));
}

bool any_finished(const std::filesystem::path& output) {
  try {
    for (const std::filesystem::path& path : journal_paths(output)) {
      const std::optional<JournalContent> content = read_journal(path, std::numeric_limits<int64_t>::max());
      if (content && !content->records.empty()) return true;
    }
  } catch (const Error&) {
    return true;
  }
  return false;
}

void remove_journal(const std::filesystem::path& file, std::optional<uint64_t> id) {
  try {
    const CheckedFile journal(file);
    const std::vector<char> start = start_of(journal);
    if (start.size() < kMagic.size() || !begins_as_journal(start)) return;
    Header header;
    if (id && journal.size() < sizeof header) return;
    if (id) journal.read(0, std::as_writable_bytes(std::span(&header, 1)));
    if (!id || header.id == *id) ::unlink(file.c_str());
  } catch (const Error&) {  // a file that cannot be read stays
  }
}

void remove_journals(const std::filesystem::path& output, std::optional<uint64_t> id) {
  try {
    for (const std::filesystem::path& journal : journal_paths(output)) remove_journal(journal, id);
    // The folder cannot be listed: only the first replica's journal has a name that is known.
  } catch (const Error&) {
    remove_journal(journal_path(output), id);
  }
}

Journal::Journal(std::filesystem::path file, const JournalContent& content)
    : path_(std::move(file)), id_(content.id), records_(content.records.size()) {
  expect_name_of_journal(path_);
  const std::filesystem::path made = new_journal_path(path_);
  file_ = create_file(made);
  PendingPath pending(path_, made);
  end_ = write_content(file_, content, made);
  pending.commit();
}

void Journal::append(const JournalRecord& record) {
  const std::lock_guard lock(*replacing_);
  const Words words = to_words(record, id_, records_);
  write_fully(file_, end_, std::as_bytes(std::span(words)), path_);
  end_ += sizeof words;
  ++records_;
}

void Journal::sync() { sync_data(file_, path_); }

void Journal::keep_name() {
  if (!is_free(path_)) return;
  const std::lock_guard lock(*replacing_);
  const std::filesystem::path made = new_journal_path(path_);
  FileDescriptor copy = create_file(made);
  PendingPath pending(path_, made);
  copy_data(file_, copy, path_);
  pending.commit();
  file_ = std::move(copy);
}

}  // namespace lfm2
