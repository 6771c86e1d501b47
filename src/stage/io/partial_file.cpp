// The order of writing is data, then journal. The journal holds the hash of the data, in case the disk reordered them.
#include "stage/io/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>

#include "base/error.h"

namespace lfm2 {

namespace {

// Bytes to read at a time, because a damaged record may claim more than memory holds.
constexpr uint64_t kPiece = uint64_t{1} << 22;

// Whether `path` still names the open file.
bool is_at(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat ours {};
  struct stat named {};
  return ::fstat(file.get(), &ours) == 0 && ::lstat(path.c_str(), &named) == 0 && ours.st_dev == named.st_dev &&
         ours.st_ino == named.st_ino;
}

void expect_regular(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_failed_call(ExitCode::kIo, "fstat", path, errno);
  if (!S_ISREG(status.st_mode))
    throw Error(ExitCode::kCantCreate, fmt::format("{}: not a regular file", path.string()));
}

// Opens and locks NAME.partial. Returns an empty descriptor if there is no such file and `create` is 0. Another run may
// rename or remove the file between open and flock; the lock is then on a file of another name, and the loop tries
// again.
FileDescriptor lock_partial(const std::filesystem::path& path, int create) {
  for (;;) {
    FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | create, 0666));
    if (file.get() < 0 && errno == ENOENT && create == 0) return file;
    if (file.get() < 0) throw_failed_call(ExitCode::kCantCreate, "open", path, errno);
    expect_regular(file, path);
    // If the file system has no locks, the user must prevent two runs from writing one output.
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw Error(ExitCode::kCantCreate, fmt::format("{}: another run is writing it", path.string()));
    if (is_at(file, path)) return file;
  }
}

// Bytes of the file; 0 if there is none, 1 for a folder or device, so that these count as content.
uint64_t bytes_at(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return 0;
  return S_ISREG(status.st_mode) ? static_cast<uint64_t>(status.st_size) : 1;
}

uint64_t size_of(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_failed_call(ExitCode::kIo, "fstat", path, errno);
  return static_cast<uint64_t>(status.st_size);
}

void resize(const FileDescriptor& file, uint64_t bytes, const std::filesystem::path& path) {
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    throw_failed_call(ExitCode::kIo, "ftruncate", path, errno);
}

}  // namespace

// The lock is taken before the journal is read, so that no other run changes the file in between.
std::optional<Unfinished> find_unfinished(const std::filesystem::path& output, int64_t samples) {
  FileDescriptor file = lock_partial(partial_path(output), 0);
  std::optional<JournalContent> content = read_journals(output, samples);
  if (file.get() < 0 || !content || content->records.empty()) return std::nullopt;
  ::unlink(pending_path(output).c_str());  // left by a run that was killed while it assembled the final file
  return Unfinished{.file = std::move(file), .content = std::move(*content)};
}

namespace {

// Removes the journals of further replicas of earlier runs.
void remove_journals_of_others(const std::filesystem::path& output) {
  for (const std::filesystem::path& path : journal_paths(output))
    if (path != journal_path(output)) remove_journal(path);
}

}  // namespace

void expect_names_are_ours(const std::filesystem::path& output) {
  for (const std::filesystem::path& path : {partial_path(output), pending_path(output)})
    if (const uint64_t bytes = bytes_at(path); bytes > 0 && !has_journal(output))
      throw Error(
          ExitCode::kCantCreate,
          fmt::format("{}: {} bytes that no journal of an earlier run tells of, expected no file of that name, or "
                      "one that a run left beside {}",
                      path.string(), bytes, journal_path(output).string()));
  expect_name_of_journal(journal_path(output));
}

namespace {

// The journal is written before the first byte of content, so that the next run recognises the file whenever this one
// is killed.
void claim_names(const std::filesystem::path& output) {
  constexpr uint64_t kClaim = 0;
  expect_names_are_ours(output);
  try {
    const Journal claim(journal_path(output), {.id = kClaim, .text = R"({"job":{}})", .records = {}});
  } catch (const Error&) {  // the folder may not have become durable
    remove_journal(journal_path(output), kClaim);
    throw;
  }
  remove_journals_of_others(output);
  ::unlink(pending_path(output).c_str());
}

}  // namespace

// Two runs may begin at the same time, and both find nothing. The slower run must not overwrite samples that the faster
// one has finished.
FileDescriptor begin_partial(const std::filesystem::path& output) {
  const std::filesystem::path path = partial_path(output);
  expect_names_are_ours(output);
  FileDescriptor file = lock_partial(path, O_CREAT);
  if (size_of(file, path) > 0 && any_finished(output))
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: another run has begun it meanwhile, expected none", path.string()));
  try {
    claim_names(output);
  } catch (const Error&) {
    if (size_of(file, path) == 0 && is_at(file, path)) ::unlink(path.c_str());
    throw;
  }
  resize(file, 0, path);
  return file;
}

FileDescriptor join_partial(const std::filesystem::path& output) {
  return FileDescriptor(::open(partial_path(output).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

// Each kernel caches the pages of a file once for each mount, so the text names kernel, device and inode.
std::string page_cache_of(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_failed_call(ExitCode::kIo, "fstat", path, errno);
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string kernel;
  if (!(boot >> kernel)) return {};
  return fmt::format("{} {} {}", kernel, status.st_dev, status.st_ino);
}

PartialFile::PartialFile(std::filesystem::path output, FileDescriptor file, int64_t replica, bool joins_parts)
    : output_(std::move(output)),
      path_(partial_path(output_)),
      replica_(replica),
      file_(std::move(file)),
      parts_(joins_parts) {}

PartialFile::~PartialFile() {
  syncing_.stop();
  if (done_ || (journal_ && !parts_.empty())) return;
  if (replica_ > 0) {
    if (journal_) remove_journal(journal_->path(), id_);
    return;
  }
  if (!is_at(file_, path_) || any_finished(output_)) return;
  remove_all();
}

void PartialFile::start_journal(const JournalContent& content) {
  id_ = content.id;
  parts_.clear();
  for (const JournalRecord& record : content.records) parts_.add(record);
  sync_data(file_, path_);
  journal_.emplace(journal_path(output_, replica_), content);
  if (replica_ == 0) remove_journals_of_others(output_);
  syncing_.start();
}

uint64_t PartialFile::reserve(uint64_t bytes) {
  const std::lock_guard lock(adding_);
  return parts_.reserve(bytes);
}

void PartialFile::append(int64_t first, int64_t count, std::span<const std::byte> bytes, const HashSum& results) {
  const uint64_t offset = reserve(bytes.size());
  write(offset, bytes);
  finished({.first = first,
            .count = count,
            .offset = offset,
            .bytes = bytes.size(),
            .results = results,
            .data_hash = XXH3_64bits(bytes.data(), bytes.size())});
}

void PartialFile::finished(const JournalRecord& record) {
  const std::lock_guard lock(adding_);
  if (journal_) journal_->append(record);
  parts_.add(record);
  syncing_.note_change();
}

void PartialFile::read(uint64_t offset, std::span<std::byte> into) const {
  if (const size_t got = read_up_to(file_, offset, into, path_); got < into.size())
    throw Error(ExitCode::kIo, fmt::format("{}: ends at {} bytes, expected more", path_.string(), offset + got));
}

void PartialFile::write(uint64_t offset, std::span<const std::byte> bytes) { write_fully(file_, offset, bytes, path_); }

void PartialFile::set_size(uint64_t bytes) { resize(file_, bytes, path_); }

bool PartialFile::holds(const JournalRecord& record, const std::function<void()>& pulse) const {
  const uint64_t size = size_of(file_, path_);
  if (record.offset > size || record.bytes > size - record.offset) return false;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  read_pieces(record.offset, record.bytes, [&](std::span<const std::byte> piece) {
    XXH3_64bits_update(hash.get(), piece.data(), piece.size());
    pulse();
  });
  return XXH3_64bits_digest(hash.get()) == record.data_hash;
}

void PartialFile::read_pieces(uint64_t offset, uint64_t bytes,
                              const std::function<void(std::span<const std::byte>)>& take) const {
  std::vector<std::byte> piece;
  for (uint64_t done = 0; done < bytes; done += piece.size()) {
    piece.resize(std::min(kPiece, bytes - done));
    read(offset + done, piece);
    take(piece);
  }
}

void PartialFile::keep_intact(JournalContent& content, const std::function<void()>& pulse) const {
  std::erase_if(content.records, [&](const JournalRecord& record) { return !holds(record, pulse); });
}

void PartialFile::drop_unfinished() { set_size(parts_.end()); }

void PartialFile::sync_all() {
  sync_data(file_, path_);
  check_name();
  if (journal_) journal_->sync();
}

// Purges of scratch folders may remove files that a run is writing. The journal is restored first, because without it
// the copy would count as somebody else's. Only the first replica makes the copy and ends the run.
void PartialFile::check_name() {
  if (journal_) journal_->keep_name();
  if (replica_ > 0 || is_at(file_, path_)) return;
  if (journal_ && is_free(path_)) save_copy();
  throw Error(ExitCode::kIo,
              fmt::format("{}: was replaced or removed, expected the file that this run is writing", path_.string()));
}

// A file whose name was removed cannot get one again. So its content moves to a new file, which the next run uses.
void PartialFile::save_copy() {
  std::string problem;
  try {
    const FileDescriptor copy(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (copy.get() < 0) throw_failed_call(ExitCode::kIo, "open", path_, errno);
    copy_data(file_, copy, path_);
    sync_file(copy, path_);
  } catch (const Error& error) {
    problem = error.what();
  }
  throw Error(ExitCode::kIo, fmt::format("{}: was removed while this run was writing it: {}", path_.string(),
                                         problem.empty() ? "what is finished is saved, resume with --resume"
                                                         : "what is finished cannot be saved: " + problem));
}

void PartialFile::sync() {
  syncing_.finish();
  sync_all();
}

// The journals are removed last, because they hold true until then. NAME.partial is free by then, and another run may
// have begun journals of its own: only those with this run's id go.
void PartialFile::commit() {
  syncing_.finish();
  sync_file(file_, path_);
  expect_ours();
  rename_durably(path_, output_);
  remove_journals(output_, id_);
  file_.close();  // this releases the lock as well: others may read the file now
  done_ = true;
}

void PartialFile::expect_ours() {
  syncing_.finish();
  check_name();
}

void PartialFile::remove() {
  syncing_.stop();
  remove_all();
  file_.close();
  done_ = true;
}

// A run may be killed at any point of this function, so the order matters. The content is removed first, because
// without a journal it would count as somebody else's; a journal without its content has no valid record. The name is
// removed last, because until then the lock on the file keeps other runs away from the journals.
void PartialFile::remove_all() {
  [[maybe_unused]] const int truncated = ::ftruncate(file_.get(), 0);
  remove_journals(output_);
  ::unlink(path_.c_str());
}

}  // namespace lfm2
