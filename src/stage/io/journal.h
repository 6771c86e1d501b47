// The journal beside a partial output: which samples are in it, with what they hash to. Append-only; every record
// carries its own checksum, so that a journal cut off or damaged anywhere says less, never something else. Lies in
// NAME.journal; further replicas keep NAME.journal.1 and so on, which are read as one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "stage/support/checked_file.h"
#include "stage/support/checksum.h"
#include "stage/support/json.h"

namespace lfm2 {

struct JournalRecord {
  int64_t first = 0, count = 0;    // samples
  uint64_t offset = 0, bytes = 0;  // where they lie in the partial file; 0 bytes: at the places of their rows
  HashSum results;                 // of what was handed out
  uint64_t data_hash = 0;          // XXH3-64 of those bytes
};

struct JournalContent {
  uint64_t id = 0;   // of the run that made it: its replicas' journals have the same
  std::string text;  // JSON: what the job is
  std::vector<JournalRecord> records;
};

std::filesystem::path partial_path(const std::filesystem::path& output);  // NAME.partial
std::filesystem::path pending_path(const std::filesystem::path& output);  // NAME.new: put together at the end
std::filesystem::path journal_path(const std::filesystem::path& output, int64_t replica = 0);
// Those of all replicas that are there, the first one's first. Error(kIo) where the folder cannot be read.
std::vector<std::filesystem::path> journal_paths(const std::filesystem::path& output);

// What the journals of `output` say, all that begin as the first one that is intact; nothing where there is none.
// Records that are damaged are left out, and no more than `most` are looked at: a journal of a job has one a sample at
// most. Error(kCantCreate) for a file of that name that was never a journal, Error(kIo) where it cannot be read.
std::optional<JournalContent> read_journals(const std::filesystem::path& output, int64_t most);
// Of one file.
std::optional<JournalContent> read_journal(const std::filesystem::path& file, int64_t most);
// What the job is: an object. Error(kData) naming `file`.
Json job_of(const JournalContent& content, const std::filesystem::path& file);
// Brings the records into the samples' order, without those that name samples beyond `samples`, or twice.
void leave_out_impossible(JournalContent& content, int64_t samples);
// Whether one of the files of these names was written as a journal, intact or not; also true where that cannot be read.
bool has_journal(const std::filesystem::path& output);
// Error(kCantCreate) where a file of that name, or of the name that it is written under, is no journal.
void expect_name_of_journal(const std::filesystem::path& journal);
// Whether any sample is finished; also true where that cannot be read.
bool any_finished(const std::filesystem::path& output);
// Files that were never journals stay, and so do those of other runs where `id` is given.
void remove_journals(const std::filesystem::path& output, std::optional<uint64_t> id = {});
void remove_journal(const std::filesystem::path& file, std::optional<uint64_t> id = {});

class Journal {
 public:
  Journal() = default;
  // Replaces the file, durably and as a whole, by one with these records.
  Journal(std::filesystem::path file, const JournalContent& content);

  void append(const JournalRecord& record);  // survives this process, not yet a crash of the machine
  void sync();                               // survives that too
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  uint64_t id_ = 0, end_ = 0, records_ = 0;
};

}  // namespace lfm2
