// Writes access records as JSON lines.
#include "serve/http/access_log.h"

#include <fmt/chrono.h>

#include <cmath>

#include "base/json/json.h"

namespace lfm2::http {

std::string access_line(const AccessRecord& record) {
  using std::chrono::milliseconds;
  const auto since = std::chrono::duration_cast<milliseconds>(record.time.time_since_epoch());
  const time_t seconds = static_cast<time_t>(since / std::chrono::seconds(1));
  OrderedJson line{{"time", fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(seconds), since.count() % 1000)},
                   {"id", record.id},
                   {"peer", record.peer},
                   {"method", record.method},
                   {"path", record.path},
                   {"status", record.status},
                   {"bytes", record.bytes},
                   {"seconds", std::round(record.seconds * 1e6) / 1e6},
                   {"complete", record.complete}};
  const Notes& notes = record.notes;
  if (notes.seed) line["seed"] = *notes.seed;
  if (notes.replicas.size() == 1)
    line["replica"] = *notes.replicas.begin();
  else if (!notes.replicas.empty())  // its choices or prompts went to several
    line["replica"] = notes.replicas;
  return json_text(line);
}

}  // namespace lfm2::http
