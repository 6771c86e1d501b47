// Data first, then the journal; and the data's own hash in the journal, should the disk have done it the other way
// round.
#include "stage/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/error.h"

namespace lfm2 {

namespace {

// A crash of the machine costs the results of so many seconds; one of the process costs none.
constexpr std::chrono::seconds kSyncTime{5};

[[noreturn]] void fail(ExitCode code, const char* call, const std::filesystem::path& path) {
  throw Error(code, fmt::format("{}: {} failed: {}", path.string(), call, std::strerror(errno)));
}

// File systems without locks: two runs with one output are then the user's care.
void lock(const FileDescriptor& file, const std::filesystem::path& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw Error(ExitCode::kCantCreate, fmt::format("{}: another run is writing it", path.string()));
}

}  // namespace

PartialFile::PartialFile(std::filesystem::path output, std::filesystem::path path, int64_t replica, int flags)
    : output_(std::move(output)),
      path_(std::move(path)),
      replica_(replica),
      file_(::open(path_.c_str(), O_RDWR | O_CLOEXEC | flags, 0666)) {
  if (file_.get() < 0) fail(ExitCode::kCantCreate, "open", path_);
}

PartialFile::PartialFile(std::filesystem::path output, Open how)
    : PartialFile(output, partial_path(output), 0, how == Open::kEmpty ? O_CREAT : 0) {
  done_ = true;  // not ours to remove until it is ours
  lock(file_, path_);
  if (how == Open::kEmpty) {
    remove_journals(output_);
    if (::ftruncate(file_.get(), 0) != 0) fail(ExitCode::kIo, "ftruncate", path_);
  }
  done_ = false;
}

void PartialFile::expect_unused(const std::filesystem::path& output) {
  const std::filesystem::path path = partial_path(output);
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() >= 0) lock(file, path);
}

PartialFile PartialFile::joined(std::filesystem::path output, int64_t replica) {
  const std::filesystem::path path = partial_path(output);
  return {std::move(output), path, replica, 0};
}

PartialFile::~PartialFile() {
  stop_syncing();
  if (done_ || (journal_ && !content_.records.empty())) return;
  if (journal_) ::unlink(journal_->path().c_str());
  if (replica_ > 0) return;
  for (const std::filesystem::path& other : journal_paths(output_)) {
    try {
      const std::optional<JournalContent> content = read_journal(other);
      if (content && !content->records.empty()) return;
    } catch (const Error&) {
      return;
    }
  }
  remove_journals(output_);
  ::unlink(path_.c_str());
}

void PartialFile::start_journal(JournalContent content) {
  content_ = std::move(content);
  end_ = 0;
  for (const JournalRecord& record : content_.records) end_ = std::max(end_, record.offset + record.bytes);
  if (::fdatasync(file_.get()) != 0) fail(ExitCode::kIo, "fsync", path_);
  journal_.emplace(journal_path(output_, replica_), content_);
  if (replica_ == 0)
    for (const std::filesystem::path& other : journal_paths(output_))
      if (other != journal_->path()) ::unlink(other.c_str());
  syncing_ = std::thread([this] { sync_loop(); });
}

void PartialFile::finished(int64_t first, int64_t count, const HashSum& results) {
  note({.first = first, .count = count, .results = results});
}

void PartialFile::append(int64_t first, int64_t count, std::span<const std::byte> bytes, const HashSum& results) {
  write_fully(file_, end_, bytes, path_);
  const JournalRecord record{.first = first,
                             .count = count,
                             .offset = end_,
                             .bytes = bytes.size(),
                             .results = results,
                             .data_hash = XXH3_64bits(bytes.data(), bytes.size())};
  end_ += bytes.size();
  note(record);
}

void PartialFile::note(const JournalRecord& record) {
  if (journal_) journal_->append(record);
  content_.records.push_back(record);
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  dirty_ = true;
}

void PartialFile::read(uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(file_.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ExitCode::kIo, "read", path_);
    if (got == 0)
      throw Error(ExitCode::kIo, fmt::format("{}: ends at {} bytes, expected more", path_.string(), offset));
    offset += static_cast<uint64_t>(got);
    into = into.subspan(static_cast<size_t>(got));
  }
}

bool PartialFile::holds(const JournalRecord& record, std::vector<std::byte>& buffer) const {
  const off_t size = ::lseek(file_.get(), 0, SEEK_END);
  if (size < 0) fail(ExitCode::kIo, "lseek", path_);
  const auto bytes = static_cast<uint64_t>(size);
  if (record.offset > bytes || record.bytes > bytes - record.offset) return false;
  buffer.resize(record.bytes);
  read(record.offset, buffer);
  return XXH3_64bits(buffer.data(), buffer.size()) == record.data_hash;
}

void PartialFile::keep_intact(JournalContent& content) const {
  std::vector<std::byte> buffer;
  std::erase_if(content.records, [&](const JournalRecord& record) { return !holds(record, buffer); });
}

void PartialFile::drop_unfinished() {
  if (::ftruncate(file_.get(), static_cast<off_t>(end_)) != 0) fail(ExitCode::kIo, "ftruncate", path_);
}

std::vector<JournalRecord> PartialFile::ordered() const {
  std::vector<JournalRecord> records = content_.records;
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return records;
}

bool PartialFile::is_ordered() const {
  uint64_t next = 0;
  for (const JournalRecord& record : ordered()) {
    if (record.offset != next) return false;
    next += record.bytes;
  }
  return next == end_;
}

void PartialFile::start_over() {
  end_ = 0;
  content_.records.clear();
}

void PartialFile::sync_data() {
  if (::fdatasync(file_.get()) != 0) fail(ExitCode::kIo, "fsync", path_);
  if (journal_) journal_->sync();
}

void PartialFile::sync_loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, kSyncTime, [this] { return stopping_; });
    if (stopping_ || !std::exchange(dirty_, false)) continue;
    lock.unlock();
    std::exception_ptr failure;
    try {
      sync_data();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (!failure) continue;
    error_ = failure;
    return;
  }
}

void PartialFile::stop_syncing() {
  if (!syncing_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  syncing_.join();
}

void PartialFile::sync() {
  stop_syncing();
  if (error_) std::rethrow_exception(error_);
  sync_data();
}

// The journals go last: until then they say the truth.
void PartialFile::commit() {
  stop_syncing();
  if (error_) std::rethrow_exception(error_);
  if (::fsync(file_.get()) != 0) fail(ExitCode::kIo, "fsync", path_);
  rename_durably(path_, output_);
  remove_journals(output_);
  file_.close();  // and with it the lock: others may read it now
  done_ = true;
}

void PartialFile::remove() {
  stop_syncing();
  ::unlink(path_.c_str());
  remove_journals(output_);
  file_.close();
  done_ = true;
}

void PartialFile::remove_journals(const std::filesystem::path& output) {
  for (const std::filesystem::path& journal : journal_paths(output)) ::unlink(journal.c_str());
}

}  // namespace lfm2
