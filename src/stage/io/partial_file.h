// An unfinished output: NAME.partial, which becomes NAME when complete, and the journal of its finished parts. However
// the process ends, every part in the journal can be read back.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <span>

#include "stage/io/background_sync.h"
#include "stage/io/file_parts.h"
#include "stage/io/journal.h"

namespace lfm2 {

// NAME.partial, open and locked against other runs (if the file system has locks), and the content of its journal.
struct Unfinished {
  FileDescriptor file;
  JournalContent content;
};
// What an earlier run left to continue; nothing if no sample is finished. Called before anything is written for the
// output. Error(kCantCreate) if another run is writing it.
std::optional<Unfinished> find_unfinished(const std::filesystem::path& output, int64_t samples);
// Error(kCantCreate) if a file has one of the names that a run uses beside its output, and no journal shows that an
// earlier run left it. Such a file belongs to somebody else and stays.
void expect_names_are_ours(const std::filesystem::path& output);
// Creates an empty NAME.partial and a journal that claims it. Error(kCantCreate) if another run is writing or has just
// begun it, or if the file belongs to somebody else.
FileDescriptor begin_partial(const std::filesystem::path& output);

// Opens the file that the first replica has created and locked, for a replica on the same host; an empty descriptor if
// it cannot be opened there.
FileDescriptor join_partial(const std::filesystem::path& output);
// Identifies the page cache of an open file. If two ranks find the same, they have the same file, and each sees the
// other's writes at once. Empty if the kernel does not tell who it is.
std::string page_cache_of(const FileDescriptor& file, const std::filesystem::path& path);

class PartialFile {
 public:
  // joins_parts: see FileParts. The journal keeps them apart.
  PartialFile(std::filesystem::path output, FileDescriptor file, int64_t replica = 0, bool joins_parts = false);
  PartialFile(PartialFile&&) = delete;
  // Without commit() the file stays if any replica has finished samples in it, else it is removed.
  ~PartialFile();

  // From here on, finished samples are written to the journal and synced every few seconds. Benchmarks never call it.
  // Replaces older journals.
  void start_journal(const JournalContent& content);
  uint64_t journal_id() const { return id_; }

  const std::filesystem::path& output() const { return output_; }
  const std::filesystem::path& path() const { return path_; }
  const FileDescriptor& file() const { return file_; }

  // Records that the samples are in the file, at places that follow from their numbers or that were reserved. Several
  // threads may call this, reserve() and append().
  void finished(const JournalRecord& record);
  uint64_t reserve(uint64_t bytes);  // the offset of a place at the end, which write() fills
  // Appends the samples' bytes to the file, and records them.
  void append(int64_t first, int64_t count, std::span<const std::byte> bytes, const HashSum& results);
  void read(uint64_t offset, std::span<std::byte> into) const;
  // Passes the bytes of a part to `take` in pieces.
  void read_pieces(uint64_t offset, uint64_t bytes, const std::function<void(std::span<const std::byte>)>& take) const;
  void write(uint64_t offset, std::span<const std::byte> bytes);
  void set_size(uint64_t bytes);
  // For appended parts: drops records of `content` whose bytes are not in the file or do not match their hash.
  void keep_intact(JournalContent& content, const std::function<void()>& pulse) const;
  void drop_unfinished();  // cuts off what was appended after the last finished part
  // For append(), and in order for the final file. Only while no other thread appends.
  FileParts& parts() { return parts_; }

  void sync();         // makes finished samples durable
  void commit();       // gives the complete file its final name
  void expect_ours();  // Error(kIo) if NAME.partial is no longer this file
  void remove();       // removes the file and its journals after its content was copied elsewhere

 private:
  void sync_all();
  void check_name();
  void save_copy();
  void remove_all();
  bool holds(const JournalRecord& record, const std::function<void()>& pulse) const;

  std::filesystem::path output_, path_;
  int64_t replica_ = 0;
  FileDescriptor file_;
  std::mutex adding_;  // guards what reserve() and finished() change
  FileParts parts_;    // all finished parts, including earlier runs'
  uint64_t id_ = 0;    // of the journal
  std::optional<Journal> journal_;
  bool done_ = false;
  BackgroundSync syncing_{[this] { sync_all(); }};  // last, because its thread uses the members above
};

}  // namespace lfm2
