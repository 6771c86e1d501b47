#include "base/not_finite.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json/json.h"

namespace lfm2 {

void NotFinite::add(const NotFinite& other) {
  if (other.count == 0) return;
  first_sample = count == 0 ? other.first_sample : std::min(first_sample, other.first_sample);
  count += other.count;
}

OrderedJson as_json(const NotFinite& found) {
  OrderedJson json{{"count", found.count}, {"first_sample", nullptr}};
  if (found.count > 0) json["first_sample"] = found.first_sample;
  return json;
}

std::string not_finite_text(const NotFinite& found) {
  return fmt::format("{} result{} not finite (NaN or infinity), the first of sample {}", found.count,
                     found.count == 1 ? " is" : "s are", found.first_sample);
}

}  // namespace lfm2
