// A batch that runs: which of its lines are left, and the answers that are on disk. Answers are appended in the order
// in which they are made, and a journal lists them, so that a server that comes back finishes the rest.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/batches/batch_store.h"
#include "stage/io/lines/line_reader.h"

namespace lfm2::serve {

class BatchRun {
 public:
  // Counts the lines of the batch, and keeps the answers of its journal whose bytes are there. Error(kData) if the
  // input has no lines, or one that is too long; Error(kIo) if the system fails. `made_by`: a checksum of what answers
  // depend on, besides their lines.
  BatchRun(BatchStore& store, const std::string& id, const std::string& input_id, const std::string& made_by);
  // Whether the answers that were kept depend on something else.
  bool is_of_another_server() const { return of_another_server_; }

  struct Next {
    int64_t sample = 0;     // number among the lines that are not blank
    std::string where;      // "line 3"
    std::string_view text;  // valid until the next call
  };
  std::optional<Next> next();  // the next line without an answer, in the order of the input; each once

  // Error(kIo) if the disk or the folder is full; nothing counts as written then.
  void write(int64_t sample, bool failed, std::string_view answer);
  void sync();  // so that a crash of the machine costs no more than what follows
  bool all_answered() const { return completed_ + failed_ == std::ssize(answered_); }
  // {"total", "completed", "failed"}
  OrderedJson counts() const;

  // Ends a batch: its answers become files of the store, and `object` names them. Also after an end that was cut off.
  static void publish(BatchStore& store, const std::string& owner, OrderedJson& object);

 private:
  struct Part {
    std::filesystem::path path;
    FileDescriptor file;
    uint64_t end = 0;
  };
  Part open(std::string_view ending) const;
  void append(Part& part, std::string_view text);
  void read_journal(std::string_view head);
  bool read_record(const Line& line);
  void cut_off();
  bool is_written(const Part& part, uint64_t bytes, std::string_view checksum) const;

  BatchStore& store_;
  const std::string id_;
  LineReader lines_;
  std::deque<Line> block_;  // that were read, and come next
  int64_t sample_ = 0;
  std::vector<bool> answered_;  // [lines]
  int64_t completed_ = 0, failed_ = 0;
  bool of_another_server_ = false;
  Part journal_, output_, errors_;
};

}  // namespace lfm2::serve
