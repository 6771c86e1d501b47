// The header is a dictionary as Python writes it, {'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }; see
// numpy.lib.format.
#include "stage/io/inputs/npy_file.h"

#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/integers.h"

namespace lfm2 {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kSpaces = " \t\n";

// The text of an entry's value, with its quotes or brackets; "" if the entry is missing.
std::string_view value_of(std::string_view header, std::string_view quoted_key) {
  size_t at = header.find(quoted_key);
  if (at == std::string_view::npos) return {};
  at = header.find_first_not_of(kSpaces, at + quoted_key.size());
  if (at == std::string_view::npos || header[at] != ':') return {};
  at = header.find_first_not_of(kSpaces, at + 1);
  if (at == std::string_view::npos) return {};
  const std::string_view end = header[at] == '(' ? ")"sv : header[at] == '[' ? "]"sv : ",}"sv;
  const size_t stop = header.find_first_of(end, at);
  if (stop == std::string_view::npos) return {};
  return header.substr(at, stop - at + (end.size() == 1 ? 1 : 0));
}

// The numbers of "(2, 3)"; nothing for any other text.
std::vector<uint64_t> numbers_of(std::string_view tuple) {
  std::vector<uint64_t> numbers;
  for (size_t at = 0; at < tuple.size();) {
    if ("(), "sv.find(tuple[at]) != std::string_view::npos) {
      ++at;
      continue;
    }
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(tuple.data() + at, tuple.data() + tuple.size(), number);
    if (error != std::errc()) return {};
    numbers.push_back(number);
    at = static_cast<size_t>(end - tuple.data());
  }
  return numbers;
}

}  // namespace

NpyFile::NpyFile(const std::filesystem::path& path) : file_(path) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  constexpr size_t kMaxHeader = size_t{1} << 16;
  std::array<unsigned char, 12> head{};  // magic, version, length of the header: 2 bytes in version 1, then 4
  file_.read(0, std::as_writable_bytes(std::span(head)));
  const std::string_view magic(reinterpret_cast<const char*>(head.data()), kMagic.size());
  if (magic != kMagic) throw Error(ExitCode::kData, fmt::format("{}: is no .npy file", path.string()));
  if (head[6] < 1 || head[6] > 3)
    throw Error(ExitCode::kData, fmt::format("{}: .npy of version {}, expected 1 to 3", path.string(), head[6]));
  size_t length = head[8] + (size_t{head[9]} << 8), before = 10;
  if (head[6] > 1) {
    length += (size_t{head[10]} << 16) + (size_t{head[11]} << 24);
    before = 12;
  }
  if (length > kMaxHeader)
    throw Error(ExitCode::kData,
                fmt::format("{}: a header of {} bytes, expected at most {}", path.string(), length, kMaxHeader));
  std::string header(length, '\0');
  file_.read(before, std::as_writable_bytes(std::span(header)));
  begin_ = before + length;
  read_header(header);
  const uint64_t bytes = checked_multiply(checked_multiply(rows_, columns_, path.string()), width_, path.string());
  if (checked_add(begin_, bytes, path.string()) != file_.size())
    throw Error(ExitCode::kData, fmt::format("{}: {} bytes, but {} rows of {} elements need {}", path.string(),
                                             file_.size(), rows_, columns_, begin_ + bytes));
}

void NpyFile::read_header(std::string_view header) {
  const auto refuse = [&](const char* what, std::string_view found, const char* expected) {
    throw Error(ExitCode::kData, fmt::format("{}: {} {}, expected {}", file_.path().string(), what,
                                             printable(found.substr(0, 80)), expected));
  };
  const std::string_view type = value_of(header, "'descr'"), order = value_of(header, "'fortran_order'"),
                         shape = value_of(header, "'shape'");
  const std::string_view widths = "1248";
  const bool is_integer = type.size() == 5 && (type[2] == 'i' || type[2] == 'u') &&
                          widths.find(type[3]) != std::string_view::npos &&
                          (type[1] == '<' || (type[1] == '|' && type[3] == '1'));
  if (!is_integer) refuse("elements of type", type, "little-endian integers, as '<i4'");
  if (order != "False") refuse("'fortran_order' is", order, "False: row by row, as numpy.ascontiguousarray makes it");
  const std::vector<uint64_t> dims = numbers_of(shape);
  if (dims.size() != 2) refuse("an array of shape", shape, "(samples, length)");
  is_signed_ = type[2] == 'i';
  width_ = static_cast<size_t>(type[3] - '0');
  rows_ = dims[0];
  columns_ = dims[1];
}

std::vector<int64_t> NpyFile::read(uint64_t first, uint64_t count) const {
  std::vector<std::byte> bytes(count * columns_ * width_);
  file_.read(begin_ + first * columns_ * width_, bytes);
  return integers_of(bytes, width_, is_signed_);
}

}  // namespace lfm2
