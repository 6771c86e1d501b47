#include "stage/pipeline/overlap_clock.h"

#include <algorithm>

namespace lfm2 {

void OverlapClock::computed(const Span& span) {
  computing_.push_back(span);
  if (computing_.size() <= kComputed) return;
  for (Spans* spans : {&sending_, &waiting_})
    while (!spans->open.empty() && spans->open.front().start < computing_.front().end) close_oldest(*spans);
  computing_.pop_front();
}

void OverlapClock::add(Spans& spans, const Span& span) {
  spans.total += span.end - span.start;
  spans.open.push_back(span);
  if (spans.open.size() > kOpen) close_oldest(spans);
}

void OverlapClock::close_oldest(Spans& spans) {
  const Span span = spans.open.front();
  spans.open.pop_front();
  const auto first = std::partition_point(computing_.begin(), computing_.end(),
                                          [&](const Span& computed) { return computed.end <= span.start; });
  for (auto at = first; at != computing_.end() && at->start < span.end; ++at)
    spans.hidden += std::min(at->end, span.end) - std::max(at->start, span.start);
}

void OverlapClock::finish() {
  for (Spans* spans : {&sending_, &waiting_})
    while (!spans->open.empty()) close_oldest(*spans);
}

}  // namespace lfm2
