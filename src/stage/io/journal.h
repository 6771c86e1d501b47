// The journal beside a partial output: which samples are in it, and their hashes. It is append-only, and every record
// has its own checksum, so that a journal that is cut off or damaged says less but never something wrong. Its name is
// NAME.journal; further replicas keep NAME.journal.1 and so on, and all of them are read as one.
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
  int64_t first = 0, count = 0;  // the samples first ... first + count - 1
  // Their place in the partial file; bytes is 0 where the place follows from the row numbers.
  uint64_t offset = 0, bytes = 0;
  HashSum results;         // hash of the results emitted for them
  uint64_t data_hash = 0;  // XXH3-64 of the bytes in the partial file
};

struct JournalContent {
  uint64_t id = 0;   // identifies the run that wrote the journal; the journals of its replicas have the same id
  std::string text;  // JSON that describes the job
  std::deque<JournalRecord> records;  // there may be millions: a vector would copy them as it grows
};

std::filesystem::path partial_path(const std::filesystem::path& output);  // NAME.partial
// NAME.new, in which the final file is put together.
std::filesystem::path pending_path(const std::filesystem::path& output);
std::filesystem::path journal_path(const std::filesystem::path& output, int64_t replica = 0);
// The journals that exist, of all replicas; the first replica's comes first. Error(kIo) where the folder cannot be
// read.
std::vector<std::filesystem::path> journal_paths(const std::filesystem::path& output);

// What the journals of `output` say; nothing where none is intact. Journals whose id differs from that of the first
// intact one are ignored, and so are damaged records. At most `most` records are read: the journal of a job has at most
// one for each sample. Error(kCantCreate) for a file of such a name that was never a journal, Error(kIo) where one
// cannot be read.
std::optional<JournalContent> read_journals(const std::filesystem::path& output, int64_t most);
// The same for one file.
std::optional<JournalContent> read_journal(const std::filesystem::path& file, int64_t most);
// The object that describes the job. Error(kData) naming `file` where there is none.
Json job_of(const JournalContent& content, const std::filesystem::path& file);
// Sorts the records by sample, and drops those that name samples beyond `samples` or samples of another record.
void leave_out_impossible(JournalContent& content, int64_t samples);
// Whether a file of one of these names was written as a journal, intact or not. True, too, where it cannot be read.
bool has_journal(const std::filesystem::path& output);
// Error(kCantCreate) where a file exists that is no journal, under this name or under the name that it is first written
// to.
void expect_name_of_journal(const std::filesystem::path& journal);
// The name under which a journal is written until it is whole; the longest name that an output needs beside it.
std::filesystem::path new_journal_path(const std::filesystem::path& journal);
// Whether any sample is finished. True, too, where the journals cannot be read.
bool any_finished(const std::filesystem::path& output);
// Removes the journals. Files that were never journals stay, and with `id` also those of other runs.
void remove_journals(const std::filesystem::path& output, std::optional<uint64_t> id = {});
void remove_journal(const std::filesystem::path& file, std::optional<uint64_t> id = {});

class Journal {
 public:
  Journal() = default;
  // Replaces the file, durably and as a whole, by a journal with these records.
  Journal(std::filesystem::path file, const JournalContent& content);

  // The record survives the end of this process, but not yet a crash of the machine.
  void append(const JournalRecord& record);
  void sync();  // the records survive a crash of the machine, too
  // Writes the file again where somebody has removed it. May run beside append(), on the thread that syncs.
  void keep_name();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  uint64_t id_ = 0, end_ = 0, records_ = 0;
  std::unique_ptr<std::mutex> replacing_ = std::make_unique<std::mutex>();  // guards file_ and end_
};

}  // namespace lfm2
