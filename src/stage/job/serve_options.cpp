// The options of lfm2_stage serve.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/options/choice.h"
#include "base/options/number_option.h"
#include "stage/job/options.h"

namespace lfm2 {

namespace {

bool is_visible(char c) { return c > ' ' && c < 0x7f; }

// As browsers send the origin of a page: scheme://host or scheme://host:port, without the scheme's usual port.
bool is_origin(std::string_view text) {
  const size_t end = text.find("://");
  if (end == 0 || end == std::string_view::npos || !std::all_of(text.begin(), text.end(), is_visible)) return false;
  const std::string_view scheme = text.substr(0, end), host = text.substr(end + 3);
  const size_t bracket = host.starts_with('[') ? host.find(']') : 0;  // around an address of IPv6
  if (bracket == std::string_view::npos) return false;
  const size_t colon = host.find(':', bracket);
  if (host.substr(0, colon).empty() || host.find_first_of("/?#@,*") != std::string_view::npos) return false;
  if (colon == std::string_view::npos) return true;
  const std::string_view port = host.substr(colon + 1), usual = scheme == "http"    ? "80"
                                                                : scheme == "https" ? "443"
                                                                                    : "";
  return port != usual && parse_number<int64_t>(port, {1, 65535});
}

bool is_host_name(std::string_view text) {
  return !text.empty() && !text.ends_with('.') && std::all_of(text.begin(), text.end(), is_visible) &&
         text.find_first_of(":/@,*") == std::string_view::npos;
}

// A prefix of characters that no client escapes.
bool is_path_prefix(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/-._~").find(c) != std::string_view::npos;
  };
  return text.size() > 1 && text.front() == '/' && text.back() != '/' && text.find("//") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), plain);
}

std::function<std::string(const std::string&)> check_text(bool (*fits)(std::string_view), const char* expected) {
  return [=](const std::string& text) {
    return fits(text) ? std::string() : fmt::format("\"{}\", expected {}", printable(text), expected);
  };
}

}  // namespace

void add_serve_options(CLI::App& app, ServeOptions& options) {
  constexpr int64_t kMaxSeconds = 86400 * 30;
  app.add_option("--host", options.host, "Address or name to listen on")->capture_default_str();
  add_setting(app, "--port", options.port, "Port to listen on; 0: any free one", 0, 65535);
  app.add_option("--address-file", options.address_file,
                 "File for the address, written once the weights are loaded; an older one is removed before")
      ->type_name("FILE");
  app.add_option("--api-key-file", options.api_key_file,
                 "File of keys, one a line, of which a client must send one; without it everybody who can open a "
                 "connection to --host is answered, but for web pages from elsewhere")
      ->type_name("FILE");
  app.add_option("--allowed-host", options.allowed_hosts,
                 "Name that a request may have in Host without a key, besides --host, localhost, addresses and, where "
                 "--host is no loopback address, this machine's name; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->check(check_text(is_host_name, "a name without a port"));
  app.add_option("--cors-origin", options.cors_origins,
                 "Origin of web pages that may use the server, as http://name:port, or * for all; may be repeated")
      ->type_name("ORIGIN")
      ->allow_extra_args(false)
      ->check(check_text([](std::string_view text) { return text == "*" || is_origin(text); },
                         "http://name or http://name:port, without path and usual port, or *"));
  app.add_option("--root-path", options.root_path,
                 "Prefix of all paths, as /api, for a proxy that passes it on; paths without it are answered, too")
      ->type_name("PREFIX")
      ->check(check_text(is_path_prefix, "/prefix, of letters, digits and -._~"));
  app.add_option("--model-name", options.model_name, "What clients call the model; default: the folder of shards");
  add_setting(app, "--max-queue", options.max_queue, "Requests that may wait; others get 429", 1, 1 << 20);
  add_setting(app, "--max-body", options.max_body, "Bytes of a request's body", 1024, int64_t{1} << 30);
  add_setting(app, "--max-length", options.max_length,
              "Tokens of a prompt and its answer together; 0: the number of positions of the model", 0,
              std::numeric_limits<int32_t>::max());
  app.add_flag("--no-prefix-cache{false}", options.prefix_cache,
               "Compute every prompt from its first token on, whatever texts were seen before");
  app.add_option("--hidden", options.embeddings,
                 "Hidden states that embeddings are made of: those of the last position, or the mean over all")
      ->transform(one_of<Hidden>({{"last", Hidden::kLast}, {"mean", Hidden::kMean}}))
      ->default_str("mean");
  add_setting(app, "--request-timeout", options.request_timeout, "Seconds that a request may take", 1, kMaxSeconds);
  add_setting(app, "--drain-seconds", options.drain_seconds,
              "Seconds that running requests have to end once USR1 or TERM has come", 0, kMaxSeconds);
  app.add_flag("--log-requests", options.log_requests,
               "Log what clients send, texts and all, and not only that they do");
  CLI::Option* batch_dir =
      app.add_option("--batch-dir", options.batch_dir,
                     "Folder for /v1/files and /v1/batches, which outlive the server; without it there are none")
          ->type_name("DIR");
  add_setting(app, "--max-batch-bytes", options.max_batch_bytes, "Bytes of all files in --batch-dir", 1 << 20,
              int64_t{1} << 50)
      ->needs(batch_dir);
}

}  // namespace lfm2
