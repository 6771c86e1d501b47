// Writes access records as JSON lines.
#include "serve/http/access_log.h"

#include <fmt/format.h>
#include <time.h>

#include <cmath>

#include "base/json/json.h"

namespace lfm2::http {

std::string access_line(const AccessRecord& record) {
  using std::chrono::milliseconds;
  const auto since = std::chrono::duration_cast<milliseconds>(record.time.time_since_epoch());
  const time_t seconds = static_cast<time_t>(since / std::chrono::seconds(1));
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  const std::string time =
      fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                  parts.tm_hour, parts.tm_min, parts.tm_sec, since.count() % 1000);
  OrderedJson line{{"time", time},
                   {"id", record.id},
                   {"peer", record.peer},
                   {"method", record.method},
                   {"path", record.path},
                   {"status", record.status},
                   {"bytes", record.bytes},
                   {"seconds", std::round(record.seconds * 1e6) / 1e6},
                   {"complete", record.complete}};
  if (record.seed) line["seed"] = *record.seed;
  return json_text(line);
}

}  // namespace lfm2::http
