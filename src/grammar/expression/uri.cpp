#include "grammar/expression/uri.h"

#include <cctype>

namespace lfm2::grammar {
namespace {

struct UriParts {
  std::string_view scheme;     // with its colon
  std::string_view authority;  // with its slashes
  std::string_view path;
  std::string_view query;  // with its question mark
};

UriParts split(std::string_view text) {
  UriParts uri;
  const size_t colon = text.find_first_of(":/?");
  if (colon != std::string_view::npos && colon > 0 && text[colon] == ':') {
    uri.scheme = text.substr(0, colon + 1);
    text.remove_prefix(colon + 1);
  }
  if (text.starts_with("//")) {
    uri.authority = text.substr(0, text.find_first_of("/?", 2));
    text.remove_prefix(uri.authority.size());
  }
  uri.path = text.substr(0, text.find('?'));
  uri.query = text.substr(uri.path.size());
  return uri;
}

// Section 5.2.4: "." and ".." are carried out.
std::string without_dots(std::string_view path) {
  std::string result;
  while (!path.empty()) {
    const size_t next = path.find('/', 1);
    const std::string_view segment = path.substr(0, next);
    path.remove_prefix(segment.size());
    const std::string_view name = segment.starts_with('/') ? segment.substr(1) : segment;
    if (name == "." || name == "..") {
      if (name == "..") result.erase(result.find_last_of('/') == std::string::npos ? 0 : result.find_last_of('/'));
      if (path.empty()) result += '/';
    } else {
      result += segment;
    }
  }
  return result;
}

std::string joined(const UriParts& uri, const std::string& path) {
  return std::string(uri.scheme) + std::string(uri.authority) + path + std::string(uri.query);
}

}  // namespace

std::string resolve_uri(std::string_view base, std::string_view reference) {
  const UriParts from = split(base), to = split(reference);
  if (!to.scheme.empty()) return joined(to, without_dots(to.path));
  UriParts result = to;
  result.scheme = from.scheme;
  if (!to.authority.empty()) return joined(result, without_dots(to.path));
  result.authority = from.authority;
  if (to.path.empty()) {
    if (to.query.empty()) result.query = from.query;
    return joined(result, std::string(from.path));
  }
  if (to.path.starts_with('/')) return joined(result, without_dots(to.path));
  const size_t slash = from.path.find_last_of('/');
  std::string path(slash == std::string_view::npos ? std::string_view{} : from.path.substr(0, slash + 1));
  if (path.empty() && !from.authority.empty()) path = "/";
  return joined(result, without_dots(path + std::string(to.path)));
}

std::string decode_percent(std::string_view fragment) {
  std::string text;
  const auto digit = [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) ? c - '0' : (c | 0x20) - 'a' + 10;
  };
  for (size_t i = 0; i < fragment.size(); ++i) {
    const bool code = fragment[i] == '%' && i + 2 < fragment.size() &&
                      std::isxdigit(static_cast<unsigned char>(fragment[i + 1])) &&
                      std::isxdigit(static_cast<unsigned char>(fragment[i + 2]));
    if (code) {
      text += static_cast<char>(digit(fragment[i + 1]) * 16 + digit(fragment[i + 2]));
      i += 2;
    } else {
      text += fragment[i];
    }
  }
  return text;
}

}  // namespace lfm2::grammar
