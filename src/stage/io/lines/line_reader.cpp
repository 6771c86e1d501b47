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

LineReader::LineReader(std::filesystem::path path, std::function<void()> pulse)
    : path_(std::move(path)),
      pulse_(std::move(pulse)),
      file_(open_lines(path_)),
      unpacker_(make_unpacker(path_, [this](std::span<char> into) { return read_some(into); })),
      piece_(std::make_unique_for_overwrite<char[]>(kPieceBytes)) {
  if (file_.get() < 0) throw_failed_call(ExitCode::kNoInput, "dup", name(), errno);
}

// A read would wait without limit while no process writes.
void LineReader::wait_for_input() {
  pollfd input{.fd = file_.get(), .events = POLLIN, .revents = 0};
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
    bytes = ::read(file_.get(), into.data(), into.size());
  } while (bytes < 0 && errno == EINTR);
  if (bytes < 0) throw_failed_call(ExitCode::kIo, "read", name(), errno);
  return static_cast<size_t>(bytes);
}

bool LineReader::read_more() {
  const std::span<char> room(piece_.get(), kPieceBytes);
  const std::span<const char> piece = room.first(unpacker_ ? unpacker_->unpack(room) : read_some(room));
  text_.append(piece.data(), piece.size());
  checksum_.add(std::as_bytes(piece));
  pulse_();
  return !piece.empty();
}

void LineReader::read_block() {
  text_.erase(0, std::exchange(used_, 0));
  size_t searched = 0;
  while (!ended_ && text_.find('\n', searched) == std::string::npos) {
    searched = text_.size();
    if (searched > kMaxLineBytes)
      throw Error(ExitCode::kData,
                  fmt::format("{}: line {}: longer than {} bytes", name(), number_ + 1, kMaxLineBytes));
    ended_ = !read_more();
  }
  const size_t end = ended_ ? text_.size() : text_.rfind('\n') + 1;
  const std::string_view text(text_);
  for (size_t begin = 0; begin < end;) {
    const size_t stop = std::min(text.find('\n', begin), end);
    std::string_view line = text.substr(begin, stop - begin);
    begin = stop + 1;
    ++number_;
    if (line.size() > kMaxLineBytes)
      throw Error(ExitCode::kData, fmt::format("{}: line {}: longer than {} bytes", name(), number_, kMaxLineBytes));
    line = text_of_line(line, number_ == 1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) lines_.push_back({number_, line});
  }
  used_ = end;
}

const std::vector<Line>& LineReader::next() {
  if (std::exchange(peeked_, false)) return lines_;
  lines_.clear();
  while (lines_.empty() && !(ended_ && used_ == text_.size())) read_block();
  return lines_;
}

const std::vector<Line>& LineReader::peek() {
  next();
  peeked_ = true;
  return lines_;
}

}  // namespace lfm2
