// Reads pieces until a line is complete, and returns complete lines together.
#include "stage/io/lines/line_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/line_text.h"

namespace lfm2 {

namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr int kPulseMilliseconds = 200;

FileDescriptor open_lines(const std::filesystem::path& path) {
  if (path == "-") return FileDescriptor(::dup(STDIN_FILENO));
  const CheckedFile regular(path);
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw_failed_call(ExitCode::kNoInput, "open", path, errno);
  return file;
}

}  // namespace

std::filesystem::path extension_of_lines(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  return extension == ".gz" || extension == ".zst" ? path.stem().extension() : extension;
}

LineReader::LineReader(std::vector<std::filesystem::path> paths, std::function<void()> pulse)
    : paths_(std::move(paths)), pulse_(std::move(pulse)), piece_(std::make_unique_for_overwrite<char[]>(kPieceBytes)) {
  for (const std::filesystem::path& path : paths_)
    if (path != "-") const CheckedFile regular(path);
  open();
}

void LineReader::open() {
  file_ = {.descriptor = open_lines(path())};
  if (file_.descriptor.get() < 0) throw_failed_call(ExitCode::kNoInput, "dup", name(), errno);
  file_.unpacker = make_unpacker(path(), [this](std::span<char> into) { return read_some(into); });
}

bool LineReader::open_next() {
  if (at_ + 1 == paths_.size()) return false;
  ++at_;
  open();
  // Lines that move from one file to another change the messages about them, and thus the checksum.
  const std::string file = path().filename().string() + '\0';
  checksum_.add(std::as_bytes(std::span(file)));
  return true;
}

// A read would wait without limit while no process writes.
void LineReader::wait_for_input() {
  pollfd input{.fd = file_.descriptor.get(), .events = POLLIN, .revents = 0};
  for (int ready = 0; ready <= 0;) {
    ready = ::poll(&input, 1, kPulseMilliseconds);
    if (ready < 0 && errno != EINTR) throw_failed_call(ExitCode::kIo, "poll", name(), errno);
    if (ready <= 0) pulse_();
  }
}

size_t LineReader::read_some(std::span<char> into) {
  ssize_t bytes = 0;
  do {
    wait_for_input();
    bytes = ::read(file_.descriptor.get(), into.data(), into.size());
  } while (bytes < 0 && errno == EINTR);
  if (bytes < 0) throw_failed_call(ExitCode::kIo, "read", name(), errno);
  return static_cast<size_t>(bytes);
}

bool LineReader::read_more() {
  const std::span<char> room(piece_.get(), kPieceBytes);
  const std::span<const char> piece = room.first(file_.unpacker ? file_.unpacker->unpack(room) : read_some(room));
  text_.append(piece.data(), piece.size());
  checksum_.add(std::as_bytes(piece));
  pulse_();
  return !piece.empty();
}

void LineReader::read_block() {
  text_.erase(0, std::exchange(used_, 0));
  size_t searched = 0;
  while (!file_.ended && text_.find('\n', searched) == std::string::npos) {
    searched = text_.size();
    if (searched > kMaxLineBytes)
      throw Error(ExitCode::kData,
                  fmt::format("{}: line {}: longer than {} bytes", name(), file_.lines + 1, kMaxLineBytes));
    file_.ended = !read_more();
  }
  const size_t end = file_.ended ? text_.size() : text_.rfind('\n') + 1;
  const std::string_view text(text_);
  for (size_t begin = 0; begin < end;) {
    const size_t stop = std::min(text.find('\n', begin), end);
    std::string_view line = text.substr(begin, stop - begin);
    begin = stop + 1;
    ++file_.lines;
    if (line.size() > kMaxLineBytes)
      throw Error(ExitCode::kData,
                  fmt::format("{}: line {}: longer than {} bytes", name(), file_.lines, kMaxLineBytes));
    line = text_of_line(line, file_.lines == 1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) lines_.push_back({file_.lines, line});
  }
  used_ = end;
}

const std::vector<Line>& LineReader::next() {
  if (std::exchange(peeked_, false)) return lines_;
  lines_.clear();
  while (lines_.empty()) {
    if (!file_.ended || used_ < text_.size())
      read_block();
    else if (!open_next())
      break;
  }
  return lines_;
}

const std::vector<Line>& LineReader::peek() {
  next();
  peeked_ = true;
  return lines_;
}

}  // namespace lfm2
