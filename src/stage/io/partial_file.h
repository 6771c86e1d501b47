// An output in the making: NAME.partial, which becomes NAME when it is whole, and the journal that says what of it is
// finished. Whatever ends the process, what the journal says can be read back.
#pragma once

#include <array>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "stage/io/journal.h"

namespace lfm2 {

// NAME.partial, open and locked: one run at a time. File systems without locks do not check.
struct Unfinished {
  FileDescriptor file;
  JournalContent content;
};
// What an earlier run left, to go on with; nothing where no sample is finished. Before anything is done for the output:
// Error(kCantCreate) where another run is writing it.
std::optional<Unfinished> find_unfinished(const std::filesystem::path& output, int64_t samples);
// Error(kCantCreate) where a file stands under one of the names that a run takes beside its output, and no journal of
// ours says that an earlier run left it: it is somebody else's, and stays.
void expect_names_are_ours(const std::filesystem::path& output);
// A new, empty one, with a journal that says whose it is. Error(kCantCreate) where another run is writing it, or has
// meanwhile begun it, or where it is not ours.
FileDescriptor begin_partial(const std::filesystem::path& output);

// Random bytes behind the end of NAME.partial, by which another replica knows that it is the maker's file: the folder
// of that name may be another one on another host.
struct PartialTag {
  static PartialTag make(uint64_t offset);
  static PartialTag from_hex(const std::string& text, uint64_t offset);
  std::string hex() const;

  uint64_t offset = 0;
  std::array<uint64_t, 2> words{};
};
// Another replica's share of the one that is made, and locked, by the first. Error(kCantCreate) where it has not that
// tag.
FileDescriptor join_partial(const std::filesystem::path& output, const PartialTag& tag);

class PartialFile {
 public:
  // Where the parts of single samples are not asked for again before the next run, `joins_records`: records that follow
  // one another are one in memory, though not in the journal.
  PartialFile(std::filesystem::path output, FileDescriptor file, int64_t replica = 0, bool joins_records = false);
  PartialFile(PartialFile&&) = delete;
  // Without commit(): stays where something is finished in it, by any replica, else goes.
  ~PartialFile();

  // From here on finished() is written down, and made durable every few seconds. Without: for benchmarks, of which
  // nothing is kept. Journals that were there before are replaced.
  void start_journal(JournalContent content);
  const JournalContent& journal() const { return content_; }

  const std::filesystem::path& output() const { return output_; }
  const std::filesystem::path& path() const { return path_; }
  const FileDescriptor& file() const { return file_; }

  // The samples are in the file, at places that follow from their numbers.
  void finished(int64_t first, int64_t count, const HashSum& results);
  // Writes them behind what is there, and says so.
  void append(int64_t first, int64_t count, std::span<const std::byte> bytes, const HashSum& results);
  void read(uint64_t offset, std::span<std::byte> into) const;
  void read_pieces(const JournalRecord& record, const std::function<void(std::span<const std::byte>)>& take) const;
  void write(uint64_t offset, std::span<const std::byte> bytes);
  void set_size(uint64_t bytes);
  void write_tag();  // durably, behind the end; commit() takes it off again
  const PartialTag& tag() const { return tag_; }
  // The same text on two ranks where what one writes into the file is seen at once by the other.
  std::string page_cache() const;
  // Of appended parts: leaves out of `content` what is not in the file as the journal says.
  void keep_intact(JournalContent& content, const std::function<void()>& pulse) const;
  void drop_unfinished();  // what was appended behind the last of them
  // What append() wrote, in the order of the samples.
  std::vector<JournalRecord> ordered() const;
  // Whether the file itself is in that order, without gaps.
  bool is_ordered() const;
  void start_over();  // a benchmark's next pass

  void sync();               // what is finished is durable
  void commit();             // the file is whole: it gets its name
  void expect_ours() const;  // NAME.partial is still this file: Error(kIo)
  void remove();             // its content stands elsewhere: it and its journals go

 private:
  void note(const JournalRecord& record);
  void sync_loop();
  void stop_syncing();
  void sync_data();
  bool holds(const JournalRecord& record, const std::function<void()>& pulse) const;

  std::filesystem::path output_, path_;
  int64_t replica_ = 0;
  bool joins_ = false;
  FileDescriptor file_;
  PartialTag tag_;          // offset 0: there is none
  uint64_t end_ = 0;        // of what was appended
  JournalContent content_;  // with all records: those of this run too
  std::optional<Journal> journal_;
  bool done_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false, dirty_ = false;
  std::exception_ptr error_;  // from mutex_ on: shared with the thread
  std::thread syncing_;       // the disk may be slow: nobody waits for it
};

}  // namespace lfm2
