// The journal beside a partial output: which samples it contains, and their hashes. It is append-only, and every record
// has a checksum. So a truncated or damaged journal loses records but never yields a wrong one. The first replica
// writes NAME.journal, further replicas NAME.journal.1 and so on; all of them are read as one.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/checked_file.h"
#include "base/checksum.h"
#include "base/json/json_fwd.h"

namespace lfm2 {

struct JournalRecord {
  int64_t first = 0, count = 0;  // samples `first` to `first + count - 1`
  // Their place in the partial file; `bytes` is 0 if the place follows from the row numbers.
  uint64_t offset = 0, bytes = 0;
  HashSum results;         // hash of their results
  uint64_t data_hash = 0;  // XXH3-64 of the bytes in the partial file
};

struct JournalContent {
  uint64_t id = 0;                    // identifies the run that wrote the journal, the same for all replicas
  std::string text;                   // JSON that describes the job
  std::deque<JournalRecord> records;  // a deque, because a growing vector would copy millions of them
};

std::filesystem::path partial_path(const std::filesystem::path& output);  // NAME.partial
// NAME.new, in which the final file is assembled.
std::filesystem::path pending_path(const std::filesystem::path& output);
std::filesystem::path journal_path(const std::filesystem::path& output, int64_t replica = 0);
// The existing journals of all replicas, the first replica's first. Error(kIo) if the folder cannot be read.
std::vector<std::filesystem::path> journal_paths(const std::filesystem::path& output);

// The content of the journals of `output`; nothing if none is intact. Ignores damaged records, and journals whose id
// differs from that of the first intact one. Reads at most `most` records, because a job has at most one for each
// sample. Error(kCantCreate) for a file of such a name that was never a journal, Error(kIo) if one cannot be read.
std::optional<JournalContent> read_journals(const std::filesystem::path& output, int64_t most);
// The same for one file.
std::optional<JournalContent> read_journal(const std::filesystem::path& file, int64_t most);
// The object that describes the job. Error(kData) naming `file` if there is none.
Json job_of(const JournalContent& content, const std::filesystem::path& file);
// Sorts the records by sample, and drops records with samples beyond `samples` or samples of another record.
void leave_out_impossible(JournalContent& content, int64_t samples);
// Whether any file of these names was written as a journal, intact or not. Also true if a file cannot be read.
bool has_journal(const std::filesystem::path& output);
// Error(kCantCreate) if a file that is not a journal has this name, or the temporary name of a new journal.
void expect_name_of_journal(const std::filesystem::path& journal);
// The temporary name of a new journal, which is the longest of all names beside an output.
std::filesystem::path new_journal_path(const std::filesystem::path& journal);
// Whether any sample is finished. Also true if the journals cannot be read.
bool any_finished(const std::filesystem::path& output);
// Removes the journals; with `id`, only those of that run. Files that were never journals stay.
void remove_journals(const std::filesystem::path& output, std::optional<uint64_t> id = {});
void remove_journal(const std::filesystem::path& file, std::optional<uint64_t> id = {});

class Journal {
 public:
  Journal() = default;
  // Replaces the file atomically and durably by a journal with these records.
  Journal(std::filesystem::path file, const JournalContent& content);

  // The record survives the end of this process, but a crash of the machine only after sync().
  void append(const JournalRecord& record);
  void sync();  // makes the records survive a crash of the machine
  // Writes the file again if somebody has removed it. The syncing thread may call this during append().
  void keep_name();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  uint64_t id_ = 0, end_ = 0, records_ = 0;
  std::unique_ptr<std::mutex> replacing_ = std::make_unique<std::mutex>();  // guards file_ and end_
};

}  // namespace lfm2
