// The journal beside a partial output: which samples are in it, with what they hash to. Append-only; every record
// carries its own checksum, so that a journal cut off or damaged anywhere says less, never something else. Lies in
// NAME.journal; further replicas keep NAME.journal.1 and so on, which are read as one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "stage/checked_file.h"
#include "stage/checksum.h"

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
std::filesystem::path journal_path(const std::filesystem::path& output, int64_t replica = 0);
// Those of all replicas that are there.
std::vector<std::filesystem::path> journal_paths(const std::filesystem::path& output);

// What the journals of `output` say; nothing where there is none, or none that begins as a journal must. Records that
// are damaged, or that name samples beyond `samples` or twice, are left out. Error(kCantCreate) for a file of that name
// that was never a journal, Error(kIo) where it cannot be read.
std::optional<JournalContent> read_journals(const std::filesystem::path& output, int64_t samples);
// Of one file.
std::optional<JournalContent> read_journal(const std::filesystem::path& file);

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
