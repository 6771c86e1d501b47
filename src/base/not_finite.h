// Counts results that are not finite, which are reported at the end. NaN and infinity then cannot pass for results of
// the model. The usual causes are damaged weights and overflows of fp16.
#pragma once

#include <cstdint>
#include <string>

#include "base/json/json_fwd.h"
#include "base/words.h"

namespace lfm2 {

// In scoring, `count` counts rows of results; in generation, choices that ended because no token could be drawn.
struct NotFinite {
  int64_t count = 0;
  int64_t first_sample = -1;  // the lowest sample concerned; -1: none

  void add(const NotFinite& other);
  bool operator==(const NotFinite&) const = default;
};
void for_each_field(MaybeConst<NotFinite> auto& found, const auto& each) {  // see base/words.h
  each(found.count, found.first_sample);
}
OrderedJson as_json(const NotFinite& found);  // {"count", "first_sample"}, which is null where there is none
// "7 results are not finite (NaN or infinity), the first of sample 3"
std::string not_finite_text(const NotFinite& found);

}  // namespace lfm2
