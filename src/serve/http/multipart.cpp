#include "serve/http/multipart.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "serve/http/message.h"

namespace lfm2::http {

namespace {

constexpr std::string_view kType = "multipart/form-data", kLineEnd = "\r\n", kHeadEnd = "\r\n\r\n";
constexpr size_t kMaxParts = 64, kMaxHeadBytes = 8 << 10, kMaxBoundaryBytes = 70;

[[noreturn]] void refuse(std::string_view why) {
  throw Error(ExitCode::kData, fmt::format("request: {}, expected multipart/form-data as RFC 7578 has it", why));
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// The value of a parameter such as name="file", in quotes or without; empty: there is none.
std::optional<std::string> parameter(std::string_view field, std::string_view name) {
  for (size_t at = field.find(';'); at < field.size();) {
    field.remove_prefix(at + 1);
    const size_t equals = field.find('=');
    if (equals == std::string_view::npos) return {};
    const bool found = equal_ignoring_case(trimmed(field.substr(0, equals)), name);
    field = field.substr(equals + 1);
    std::string value;
    at = 0;
    if (field.starts_with('"')) {
      for (at = 1; at < field.size() && field[at] != '"'; ++at) {
        if (field[at] == '\\' && at + 1 < field.size()) ++at;
        value += field[at];
      }
      if (at == field.size()) refuse("a parameter has no closing quote");
    } else {
      value = trimmed(field.substr(0, field.find(';')));
    }
    if (found) return value;
    at = field.find(';', at);
  }
  return {};
}

FormPart part_of(std::string_view head, std::string_view content) {
  while (!head.empty()) {
    const size_t end = std::min(head.find(kLineEnd), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + kLineEnd.size(), head.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) refuse("a part has a header without a colon");
    if (!equal_ignoring_case(trimmed(line.substr(0, colon)), "Content-Disposition")) continue;
    const std::optional<std::string> name = parameter(line, "name");
    if (!name) refuse("a part has no name");
    return {*name, parameter(line, "filename"), content};
  }
  refuse("a part has no Content-Disposition");
}

}  // namespace

std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body) {
  if (!equal_ignoring_case(trimmed(content_type.substr(0, content_type.find(';'))), kType))
    refuse(fmt::format("Content-Type is \"{}\"", content_type.substr(0, 100)));
  const std::optional<std::string> boundary = parameter(content_type, "boundary");
  if (!boundary || boundary->empty() || boundary->size() > kMaxBoundaryBytes)
    refuse("Content-Type has no boundary of 1 to 70 characters");
  const std::string delimiter = fmt::format("{}--{}", kLineEnd, *boundary);
  const std::string_view first = std::string_view(delimiter).substr(kLineEnd.size());
  const size_t begin = body.starts_with(first) ? 0 : body.find(delimiter);
  if (begin == std::string_view::npos) refuse("the body has no boundary");
  body.remove_prefix(begin + (begin == 0 && body.starts_with(first) ? first.size() : delimiter.size()));
  std::vector<FormPart> parts;
  while (!body.starts_with("--")) {
    if (!body.starts_with(kLineEnd)) refuse("a boundary is not followed by a line break");
    if (parts.size() == kMaxParts) refuse("more than 64 parts");
    // A part may have no header, so the line break that ends the boundary counts as the first half of the head's end.
    const size_t head_end = body.substr(0, kMaxHeadBytes).find(kHeadEnd);
    if (head_end == std::string_view::npos) refuse("the head of a part does not end");
    const std::string_view rest = body.substr(head_end + kHeadEnd.size());
    const size_t end = rest.find(delimiter);
    if (end == std::string_view::npos) refuse("a part does not end");
    const std::string_view head = head_end == 0 ? "" : body.substr(kLineEnd.size(), head_end - kLineEnd.size());
    FormPart part = part_of(head, rest.substr(0, end));
    if (std::ranges::find(parts, part.name, &FormPart::name) != parts.end())
      throw Error(ExitCode::kData, fmt::format("request: two parts are named \"{}\", expected one", part.name));
    parts.push_back(std::move(part));
    body = rest.substr(end + delimiter.size());
  }
  return parts;
}

}  // namespace lfm2::http
