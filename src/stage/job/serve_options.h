// The options of lfm2_stage serve.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "stage/model/hidden.h"

namespace CLI {
class App;
}

namespace lfm2 {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000;                 // 0: any free one
  std::filesystem::path address_file;  // the address is written there; empty: nowhere
  std::filesystem::path api_key_file;  // keys, one a line; empty: none is asked for
  std::vector<std::string> allowed_hosts, cors_origins;
  std::string root_path;     // "" or "/prefix"
  std::string model_name;    // empty: the last part of --weights
  int64_t max_queue = 1024;  // requests that wait
  int64_t max_body = int64_t{16} << 20;
  int64_t max_length = 0;             // tokens of a prompt and its answer; 0: as many as the model has positions
  Hidden embeddings = Hidden::kMean;  // what the embeddings of texts are made of: kMean or kLast
  bool prefix_cache = true;
  int64_t request_timeout = 600, drain_seconds = 30;  // seconds
  bool log_requests = false;
};

void add_serve_options(CLI::App& app, ServeOptions& options);

}  // namespace lfm2
