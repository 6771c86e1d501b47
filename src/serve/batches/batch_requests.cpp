#include "serve/batches/batch_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/utf8.h"
#include "serve/http/multipart.h"

namespace lfm2::serve {

namespace {

constexpr std::array<std::string_view, 3> kEndpoints{"/v1/chat/completions", "/v1/completions", "/v1/embeddings"};
constexpr size_t kMaxNameBytes = 512;
constexpr int64_t kMaxListed = 10000;
constexpr int64_t kMinLifetime = 3600, kMaxLifetime = 30 * 24 * 3600;  // seconds, as OpenAI's

// The value of a field of the query, as sent in limit=2&after=ID.
std::optional<std::string> query_field(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view field = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const size_t equals = std::min(field.find('='), field.size());
    if (field.substr(0, equals) == name) return http::decoded(field.substr(std::min(equals + 1, field.size())));
  }
  return {};
}

const std::string& text_field(const OrderedJson& body, const char* name, std::string_view expected) {
  const auto found = body.find(name);
  if (found == body.end() || !found->is_string())
    throw Error(ExitCode::kData, fmt::format("request: \"{}\" is {}, expected {}", name,
                                             found == body.end() ? "missing" : json_excerpt(*found), expected));
  return found->get_ref<const std::string&>();
}

// The whole number that a text is, or the text.
OrderedJson number_in(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? OrderedJson(number) : OrderedJson(text);
}

// The seconds in {"anchor": "created_at", "seconds": N}; nothing for null.
std::optional<int64_t> lifetime_of(const OrderedJson& expires, std::string_view name) {
  if (expires.is_null()) return {};
  const OrderedJson seconds = expires.is_object() ? expires.value("seconds", OrderedJson()) : OrderedJson();
  if (!seconds.is_number_integer() || seconds < kMinLifetime || seconds > kMaxLifetime || expires.size() != 2 ||
      expires.value("anchor", OrderedJson()) != "created_at")
    throw Error(ExitCode::kData, fmt::format("request: \"{}\" is {}, expected \"anchor\" \"created_at\" and "
                                             "\"seconds\" of {} to {}",
                                             name, json_excerpt(expires), kMinLifetime, kMaxLifetime));
  return seconds.get<int64_t>();
}

void check_metadata(const OrderedJson& metadata) {
  bool fits = metadata.is_object() && metadata.size() <= 16;
  if (fits)
    for (const auto& [key, value] : metadata.items())
      fits = fits && key.size() <= 64 && value.is_string() && value.get_ref<const std::string&>().size() <= 512;
  if (!fits)
    throw Error(ExitCode::kData,
                "request: \"metadata\" is not accepted, expected at most 16 texts of 512 bytes with names of 64 bytes");
}

}  // namespace

Upload read_upload(const http::Request& request) {
  const std::string* type = request.headers.find("Content-Type");
  std::optional<http::FormPart> file;
  std::string purpose;
  OrderedJson expires;
  for (const http::FormPart& part : http::parse_form(type != nullptr ? *type : "", request.body)) {
    if (part.name == "file")
      file = part;
    else if (part.name == "purpose")
      purpose = part.content;
    else if (part.name == "expires_after[anchor]")
      expires["anchor"] = part.content;
    else if (part.name == "expires_after[seconds]")
      expires["seconds"] = number_in(part.content);
    else
      throw Error(ExitCode::kData,
                  fmt::format("request: \"{}\" is set, which is not supported: leave it out", part.name));
  }
  if (purpose != "batch")
    throw Error(ExitCode::kData, fmt::format("request: \"purpose\" is \"{}\", expected \"batch\"", purpose));
  if (!file || file->content.empty()) throw Error(ExitCode::kData, "request: \"file\" is missing or empty");
  const std::string name = file->file_name.value_or("batch.jsonl");
  if (name.size() > kMaxNameBytes || !is_utf8(name))
    throw Error(ExitCode::kData, "request: \"file\" has a name that is no UTF-8 of at most 512 bytes");
  return {name, file->content, lifetime_of(expires, "expires_after")};
}

OrderedJson read_batch(std::string_view body) {
  const OrderedJson json = parse_ordered_json(body, "request");
  if (!json.is_object()) throw Error(ExitCode::kData, "request: expected an object");
  const std::string &input = text_field(json, "input_file_id", "the id of a file"),
                    &endpoint = text_field(json, "endpoint", "a path such as \"/v1/chat/completions\""),
                    &window = text_field(json, "completion_window", "\"24h\"");
  if (std::ranges::find(kEndpoints, endpoint) == kEndpoints.end())
    throw Error(ExitCode::kData, fmt::format("request: \"endpoint\" is \"{}\", expected /v1/chat/completions, "
                                             "/v1/completions or /v1/embeddings",
                                             endpoint));
  if (window != "24h")
    throw Error(ExitCode::kData, fmt::format("request: \"completion_window\" is \"{}\", expected \"24h\"", window));
  const OrderedJson expires = json.value("output_expires_after", OrderedJson());
  lifetime_of(expires, "output_expires_after");
  const OrderedJson metadata = json.value("metadata", OrderedJson());
  if (!metadata.is_null()) check_metadata(metadata);
  return {{"input_file_id", input},
          {"endpoint", endpoint},
          {"completion_window", window},
          {"metadata", metadata},
          {"output_expires_after", expires}};
}

ListQuery read_list_query(std::string_view query, int64_t usual_limit) {
  const auto order = query_field(query, "order"), limit_text = query_field(query, "limit");
  const OrderedJson limit = limit_text ? number_in(*limit_text) : OrderedJson(usual_limit);
  if (!limit.is_number() || limit < 1 || limit > kMaxListed)
    throw Error(ExitCode::kData,
                fmt::format("request: \"limit\" is \"{}\", expected 1 to {}", *limit_text, kMaxListed));
  if (order && order != "asc" && order != "desc")
    throw Error(ExitCode::kData, fmt::format("request: \"order\" is \"{}\", expected \"asc\" or \"desc\"", *order));
  return {query_field(query, "purpose"), query_field(query, "after"), order == "asc", limit.get<int64_t>()};
}

}  // namespace lfm2::serve
