// What clients ask of /v1/files and /v1/batches, read from their requests. All functions throw Error(kData), naming the
// field, for what is not accepted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json/json.h"
#include "serve/http/message.h"

namespace lfm2::serve {

// The form of POST /v1/files.
struct Upload {
  std::string name;
  std::string_view content;         // within the request's body
  std::optional<int64_t> lifetime;  // seconds, after which the file expires
};
Upload read_upload(const http::Request& request);

// The body of POST /v1/batches: an object with "input_file_id", "endpoint", "completion_window", "metadata" and
// "output_expires_after", of which the last two may be null.
OrderedJson read_batch(std::string_view body);

// The query of a list.
struct ListQuery {
  std::optional<std::string> purpose, after;
  bool ascends = false;
  int64_t limit = 0;
};
ListQuery read_list_query(std::string_view query, int64_t usual_limit);

}  // namespace lfm2::serve
