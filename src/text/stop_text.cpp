#include "text/stop_text.h"

#include <algorithm>

#include "base/error.h"

namespace lfm2 {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    expect(!stop.empty(), "StopText: an empty stop text");
    longest_ = std::max(longest_, stop.size());
  }
}

std::optional<int64_t> StopText::feed(std::string_view bytes, bool may_stop) {
  const size_t old = tail_.size();
  const int64_t first = taken_ - static_cast<int64_t>(old);
  tail_ += bytes;
  taken_ += static_cast<int64_t>(bytes.size());
  size_t found = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!may_stop) break;
    // Stop texts that ended before these bytes were found with the previous bytes.
    const size_t from = old >= stop.size() ? old - stop.size() + 1 : 0;
    found = std::min(found, tail_.find(stop, from));
  }
  if (found != std::string::npos) return first + static_cast<int64_t>(found);
  if (longest_ > 0 && tail_.size() >= longest_) tail_.erase(0, tail_.size() - (longest_ - 1));
  return {};
}

int64_t StopText::settled() const {
  size_t open = 0;
  for (const std::string& stop : stops_)
    for (size_t length = std::min(stop.size() - 1, tail_.size()); length > open; --length)
      if (tail_.compare(tail_.size() - length, length, stop, 0, length) == 0) open = length;
  return taken_ - static_cast<int64_t>(open);
}

}  // namespace lfm2
