#include "serve/batches/batch_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <span>
#include <tuple>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"

namespace lfm2::serve {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHead = "answers of ";  // the journal's first line
constexpr std::string_view kJournal = ".journal", kOutput = ".output", kErrors = ".errors";

int64_t count_lines(const fs::path& input) {
  LineReader reader(input);
  int64_t count = 0;
  try {
    for (const std::vector<Line>* lines = &reader.next(); !lines->empty(); lines = &reader.next())
      count += std::ssize(*lines);
  } catch (const Error& error) {  // the name of the file is not for clients
    const std::string why = error.what(), name = reader.name() + ": ";
    throw Error(error.code(), why.starts_with(name) ? why.substr(name.size()) : why);
  }
  if (count == 0) throw Error(ExitCode::kData, "the input file has no lines, expected one request a line");
  return count;
}

// An answer in the journal, as text: "3 0 120 5f..." is sample 3, good, of 120 bytes with this checksum.
struct Record {
  int64_t sample = 0;
  bool failed = false;
  uint64_t bytes = 0;
  std::string_view checksum;
};

std::string record_text(const Record& record) {
  return fmt::format("{} {} {} {}\n", record.sample, record.failed ? 1 : 0, record.bytes, record.checksum);
}

std::optional<Record> parse_record(std::string_view line) {
  Record record;
  int failed = 0;
  const char *at = line.data(), *const end = at + line.size();
  const auto number = [&](auto& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    const bool good = error == std::errc() && next != end && *next == ' ';
    at = good ? next + 1 : at;
    return good;
  };
  if (!number(record.sample) || !number(failed) || !number(record.bytes)) return {};
  record.failed = failed == 1;
  record.checksum = std::string_view(at, static_cast<size_t>(end - at));
  if (record_text(record) != fmt::format("{}\n", line)) return {};
  return record;
}

}  // namespace

BatchRun::BatchRun(BatchStore& store, const std::string& id, const std::string& input_id, const std::string& made_by)
    : store_(store),
      id_(id),
      lines_(store.path(input_id, ".data")),
      answered_(static_cast<size_t>(count_lines(store.path(input_id, ".data")))),
      journal_(open(kJournal)),
      output_(open(kOutput)),
      errors_(open(kErrors)) {
  const std::string head = fmt::format("{}{}\n", kHead, made_by);
  read_journal(head);
  of_another_server_ = of_another_server_ && completed_ + failed_ > 0;
  if (completed_ + failed_ == 0) journal_.end = 0;
  cut_off();
  if (journal_.end == 0) append(journal_, head);
}

BatchRun::Part BatchRun::open(std::string_view ending) const {
  fs::path path = store_.path(id_, ending);
  FileDescriptor file = open_private(path);
  return {std::move(path), std::move(file)};
}

bool BatchRun::is_written(const Part& part, uint64_t bytes, std::string_view checksum) const {
  const uint64_t size = fs::file_size(part.path);
  if (bytes == 0 || bytes > size || part.end > size - bytes) return false;
  std::string answer(bytes, '\0');
  return read_up_to(part.file, part.end, std::as_writable_bytes(std::span(answer)), part.path) == bytes &&
         checksum_of(answer) == checksum;
}

// Keeps the answers up to the first record that is cut off or whose answer is not there. What follows is cut off, and
// its lines are answered again.
void BatchRun::read_journal(std::string_view head) {
  LineReader reader(journal_.path);
  const uint64_t size = fs::file_size(journal_.path);
  bool good = true;
  for (const std::vector<Line>* lines = &reader.next(); good && !lines->empty(); lines = &reader.next())
    for (const Line& line : *lines) {
      good = journal_.end + line.text.size() < size &&
             (line.number == 1 ? line.text.starts_with(kHead) : read_record(line));
      if (!good) break;
      if (line.number == 1) of_another_server_ = fmt::format("{}\n", line.text) != head;
      journal_.end += line.text.size() + 1;
    }
}

bool BatchRun::read_record(const Line& line) {
  const std::optional<Record> record = parse_record(line.text);
  if (!record || record->sample < 0 || record->sample >= std::ssize(answered_) ||
      answered_[static_cast<size_t>(record->sample)])
    return false;
  Part& part = record->failed ? errors_ : output_;
  if (!is_written(part, record->bytes, record->checksum)) return false;
  part.end += record->bytes;
  answered_[static_cast<size_t>(record->sample)] = true;
  ++(record->failed ? failed_ : completed_);
  return true;
}

// What follows the last whole answer, or its record.
void BatchRun::cut_off() {
  for (const Part* part : {&journal_, &output_, &errors_})
    if (::ftruncate(part->file.get(), static_cast<off_t>(part->end)) != 0)
      throw_failed_call(ExitCode::kIo, "ftruncate", part->path, errno);
}

std::optional<BatchRun::Next> BatchRun::next() {
  while (true) {
    if (block_.empty()) {
      const std::vector<Line>& lines = lines_.next();
      block_.assign(lines.begin(), lines.end());
      if (block_.empty()) return {};
    }
    const Line line = block_.front();
    block_.pop_front();
    const int64_t sample = sample_++;
    if (!answered_[static_cast<size_t>(sample)]) return Next{sample, fmt::format("line {}", line.number), line.text};
  }
}

void BatchRun::append(Part& part, std::string_view text) {
  const std::string& owner = store_.batches().find(id_)->second.owner;
  if (!store_.has_room(owner, text.size()))
    throw Error(ExitCode::kIo, "the folder of --batch-dir, or the share of a key, has reached --max-batch-bytes");
  write_fully(part.file, part.end, std::as_bytes(std::span(text)), part.path);
  part.end += text.size();
  store_.count(owner, text.size());
}

void BatchRun::write(int64_t sample, bool failed, std::string_view answer) {
  Part& part = failed ? errors_ : output_;
  const uint64_t end = part.end;
  try {
    append(part, answer);
    append(journal_, record_text({sample, failed, answer.size(), checksum_of(answer)}));
  } catch (const Error&) {
    part.end = end;
    cut_off();
    throw;
  }
  answered_[static_cast<size_t>(sample)] = true;
  ++(failed ? failed_ : completed_);
}

void BatchRun::sync() {
  for (const Part* part : {&output_, &errors_, &journal_}) sync_data(part->file, part->path);
}

OrderedJson BatchRun::counts() const {
  return {{"total", std::ssize(answered_)}, {"completed", completed_}, {"failed", failed_}};
}

void BatchRun::publish(BatchStore& store, const std::string& owner, OrderedJson& object) {
  const std::string id = object.at("id"), file_id = "file-" + id.substr(std::string_view("batch_").size());
  std::optional<int64_t> lifetime;
  if (const OrderedJson& expires = object.value("output_expires_after", OrderedJson()); expires.is_object())
    lifetime = expires.at("seconds").get<int64_t>();
  for (const auto& [ending, key, name] :
       {std::tuple{kOutput, "output_file_id", "output"}, {kErrors, "error_file_id", "errors"}}) {
    const fs::path from = store.path(id, ending);
    const std::string to = fmt::format("{}-{}", file_id, name);
    std::error_code missing;
    const uintmax_t bytes = fs::file_size(from, missing);
    if (!missing && bytes > 0) rename_durably(from, store.path(to, ".data"));
    if (!missing && bytes == 0) store.remove(id, ending);
    if (!fs::exists(store.path(to, ".data"))) continue;
    store.add_file_in_place(to, owner, fmt::format("{}_{}.jsonl", id, name), "batch_output", lifetime);
    object[key] = to;
  }
}

}  // namespace lfm2::serve
